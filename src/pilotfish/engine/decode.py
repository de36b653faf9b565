"""Prefill and the decode loop: the one place that evaluates and reads back.

Round n + 1 is dispatched before the tokens of round n are read, so the device never waits for Python. What a round
overshoots (an end of text, a stop, the budget) is dropped: the length goes back and nothing else has to.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

import mlx.core as mx

from pilotfish.engine import batch, constrained
from pilotfish.engine.constrained import Ready
from pilotfish.engine.constraints import Constraint
from pilotfish.engine.depth import DepthPolicy, Kept, RoundSeen
from pilotfish.engine.drafters.lookup import PromptLookup
from pilotfish.engine.logprobs import Logprobs, TokenLogprob
from pilotfish.engine.reuse import Marks, Start
from pilotfish.engine.round import RoundParts, run_round
from pilotfish.engine.rows import Committed, Counts, Row
from pilotfish.engine.state import DecodeState, Draft, RoundResult
from pilotfish.engine.target import Target

AWAY = 0.25  # of a round's time with the caller, from which on it says nothing about the device
PREFILL_CHUNK = 512  # rows of one prefill pass; larger ones need more memory for attention scores


Progress = Callable[[int, int], None]  # (prompt tokens done, of how many)


class Device:
    """Evaluation and read-back, in one place so that tests can count them."""

    def dispatch(self, result: RoundResult, packed: mx.array) -> None:
        """Start computing a round; returns at once."""
        past = result.state.past or ()
        mx.async_eval(packed, *result.state[:3], *result.state.caches, *past, *(result.logprobs or ()))  # type: ignore[no-untyped-call]

    def start(self, arrays: Sequence[mx.array]) -> None:
        """Start computing a part of a round; returns at once."""
        mx.async_eval(*arrays)  # type: ignore[no-untyped-call]

    def read(self, packed: mx.array) -> list[list[int]]:
        """Wait for (B, n) int32 values and bring them to the host."""
        values: list[list[int]] = packed.tolist()  # type: ignore[assignment]
        return values

    def read_logprobs(self, found: Logprobs) -> list[list[TokenLogprob]]:
        """Wait for log probabilities (B, N) and bring them to the host; tokens are filled in by the caller."""
        chosen, ids, values = (x.tolist() for x in found)
        return [
            [TokenLogprob(-1, c, tuple(zip(i, v, strict=True))) for c, i, v in zip(*row, strict=True)]  # type: ignore[arg-type]
            for row in zip(chosen, ids, values, strict=True)  # type: ignore[arg-type]
        ]

    def wait(self, caches: Sequence[tuple[mx.array, ...]]) -> None:
        """Wait for a prefill chunk, so that its activations are freed before the next one."""
        mx.eval([b for buffers in caches for b in buffers])


class Source(Enum):
    """Who made a round's drafts."""

    DRAFTER = auto()
    LOOKUP = auto()
    GRAMMAR = auto()


class _InFlight(NamedTuple):
    rows: list[Row]
    depth: int
    behind: bool  # dispatched while another round was in flight, so the device went straight on to it
    packed: mx.array  # (B, 1 + depth + 1): accepted, then tokens
    logprobs: Logprobs | None
    source: Source
    expected: float  # tokens that a row will probably get


def prefill(
    target: Target,
    prompt: Sequence[int],
    device: Device,
    chunk: int = PREFILL_CHUNK,
    progress: Progress | None = None,
    start: Start | None = None,
    marks: Marks | None = None,
) -> DecodeState:
    """Keys and values of all of `prompt` but its last token, which becomes the state's `token`.

    `start` holds those of its first tokens already; `marks` keeps what stands at some lengths on the way.

    Logits are never asked for, and neither are layers that only serve them (KV-shared layers): lazily, they are not
    computed. The state has no hidden state yet, so the first round after it must be plain.
    """
    at, caches = start or (0, ((),) * len(target.specs))
    marks = marks or Marks()
    end = len(prompt) - 1
    while at < end:
        upto = marks.end_of_chunk(at, min(at + chunk - at % chunk, end))
        ids = mx.array([prompt[at:upto]], dtype=mx.int32)
        views = [spec.prefill_view(b, at) for spec, b in zip(target.specs, caches, strict=True)]
        target.forward(ids, views)
        caches = tuple(spec.collect(view) for spec, view in zip(target.specs, views, strict=True))
        device.wait(caches)
        marks.note(target.specs, caches, upto)
        at = upto
        if progress is not None:
            progress(at, end)
    return DecodeState(
        length=mx.array([end], dtype=mx.int32),
        token=mx.array([[prompt[-1]]], dtype=mx.int32),
        hidden=mx.zeros((1, 1, 1)),
        caches=caches,
    )


class DecodeLoop:
    """Decodes B prefilled rows until each has finished. Iterate `steps`; call `stop` to end a row at a token."""

    def __init__(self, parts: RoundParts, policy: DepthPolicy, state: DecodeState, rows: Sequence[Row],
                 device: Device, clock: Callable[[], float] = time.perf_counter,
                 constraint: Constraint | None = None, lookup: PromptLookup | None = None) -> None:  # fmt: skip
        self.constraint, self.lookup = constraint, lookup  # a constraint is that of the only row
        self.parts, self.policy, self.device, self._clock = parts, policy, device, clock
        self._completed: float | None = None  # when the last round was read
        self._away = 0.0  # what the caller took since then
        self.rows, self.counts = list(rows), Counts()
        self._state, self._live = state, list(rows)
        self._in_flight: deque[_InFlight] = deque()
        self._first = True
        self._ready: Ready | None = None  # under a constraint, the next round where its drafter drafts it
        self._settled = [row.length for row in self._live]  # lengths when the caches' tails were last empty
        self._tail = min((spec.tail for spec in parts.target.specs if spec.tail), default=0)

    def steps(self) -> Iterator[list[Committed]]:
        """Yield what each round committed, by row, one round after it was dispatched."""
        while self._live:
            while len(self._in_flight) < (2 if self.constraint is None else 1) and self._another_is_needed():
                if not self._another_fits():
                    if self._in_flight:
                        break  # the tails are full: let the device finish, then settle
                    self._settle()
                self._dispatch()
            step = self._read()
            left = self._clock()
            yield step
            self._away = self._clock() - left
            self._retire()

    def stop(self, row: Row, kept: int) -> None:
        """End `row` after its first `kept` tokens, as if the rest had never been decoded."""
        del row.tokens[kept:], row.drafted[kept:], row.logprobs[kept:]
        row.finish_reason = "stop"

    def _ahead(self) -> int:
        """The most tokens that a row may gain in the rounds in flight."""
        return sum(flight.depth + 1 for flight in self._in_flight)

    def _another_fits(self) -> bool:
        used = max(row.length - settled for row, settled in zip(self._live, self._settled, strict=True))
        return not self._tail or used + self._ahead() + self.parts.target.max_depth + 1 <= self._tail

    def _settle(self) -> None:
        """Move the caches' tails into their histories. Nothing is in flight, so nothing else holds the buffers."""
        self._settled = [row.length for row in self._live]
        specs = self.parts.target.specs
        caches = tuple(s.settle(b, self._settled) for s, b in zip(specs, self._state.caches, strict=True))
        self._state = self._state._replace(caches=caches)

    def _dispatch(self) -> None:
        if self.constraint is not None:
            self._dispatch_constrained(self.constraint)
            return
        depth, source = self._plan()
        state = self._with_room(depth)
        draft = self._looked_up(state, depth) if source is Source.LOOKUP else None
        result = run_round(self.parts, state, depth, draft)
        self.device.dispatch(result, self._fly(result, depth, source))

    def _dispatch_constrained(self, constraint: Constraint) -> None:
        """A round under a grammar; the one behind it is built while the device drafts and verifies."""
        ready, self._ready = self._ready, None
        drafts, source = self._known_drafts(constraint)
        if drafts:
            ready = constrained.prepare_known(self.parts, self._with_room(len(drafts)), drafts)
        elif ready is None:
            ready = self._prepared()
        constrained.begin(ready, constraint, self.device.start)
        packed = self._fly(ready.result, ready.depth, source)
        if self._another_is_needed() and self._another_fits():
            self._ready = self._prepared()
        constrained.finish(ready, constraint, self.device.read)
        self.device.dispatch(ready.result, packed)

    def _prepared(self) -> Ready:
        depth = self._drafter_depth()
        return constrained.prepare(self.parts, self._with_room(depth), depth)

    def _fly(self, result: RoundResult, depth: int, source: Source) -> mx.array:
        """Count a round among those in flight; what will be read of it."""
        packed = mx.concatenate([result.accepted[:, None], result.tokens], axis=1)
        self._state = result.state
        expected = 1 + depth * (1.0 if source is Source.LOOKUP else self.counts.accepted / max(1, self.counts.drafted))
        flight = _InFlight(list(self._live), depth, bool(self._in_flight), packed, result.logprobs, source, expected)
        self._in_flight.append(flight)
        return packed

    def _with_room(self, depth: int) -> DecodeState:
        """The newest state, its caches large enough for another round."""
        tokens = max(row.length for row in self._live) + self._ahead() + depth + 1
        specs = self.parts.target.specs
        caches = tuple(s.with_capacity(b, tokens) for s, b in zip(specs, self._state.caches, strict=True))
        return self._state._replace(caches=caches)

    def _plan(self) -> tuple[int, Source]:
        """How many drafts the next round has, and who makes them."""
        if self.lookup is not None:
            depth = self.lookup.next_depth(sum(flight.expected for flight in self._in_flight))
            if depth:
                self._first = False
                return depth, Source.LOOKUP
        return self._drafter_depth(), Source.DRAFTER

    def _drafter_depth(self) -> int:
        first, self._first = self._first, False
        # Right after prefill there is no hidden state yet to draft from.
        without_hidden = self.parts.drafter is None or (first and self.parts.drafter.reads_hidden)
        return 0 if without_hidden else self.policy.next_depth(len(self._live))

    def _known_drafts(self, constraint: Constraint) -> tuple[list[int], Source]:
        """Drafts that need no drafter: what the grammar dictates, else what look-up finds."""
        if self.parts.drafter is None and self.lookup is None:
            return [], Source.DRAFTER  # drafting is off
        if forced := constraint.forced(self.parts.target.max_depth):
            return forced, Source.GRAMMAR
        if self.lookup is not None and (depth := self.lookup.next_depth(0)):
            return self.lookup.rows[0].continuation(depth), Source.LOOKUP
        return [], Source.DRAFTER

    def _looked_up(self, state: DecodeState, depth: int) -> Draft:
        assert self.lookup is not None
        vocab = self.parts.target.vocab_size if self.parts.rule.wants_offers(self.parts.sampler) else None
        return self.lookup.draft(state.length, depth, self._ahead(), vocab)

    def _another_is_needed(self) -> bool:
        """False when every row is sure to finish in the rounds already in flight, which bring a token each."""
        ahead = len(self._in_flight)
        return any(len(row.tokens) + ahead < row.max_tokens for row in self._live)

    def _read(self) -> list[Committed]:
        flight = self._in_flight.popleft()
        values = self.device.read(flight.packed)
        seconds = self._seconds(flight)
        step, kept = [], []
        found = self.device.read_logprobs(flight.logprobs) if flight.logprobs else [[] for _ in flight.rows]
        for row, (accepted, *tokens), logprobs in zip(flight.rows, values, found, strict=True):
            if row.finish_reason:
                continue
            taken = row.take(tokens, accepted)
            if self.lookup is not None:
                self.lookup.add(next(i for i, live in enumerate(self._live) if live is row), row.tokens[-taken:])
            said = [p._replace(token=t) for p, t in zip(logprobs, tokens[:taken], strict=False)]
            row.logprobs += said
            for counts in (self.counts, row.counts):
                counts.add(flight.depth, min(accepted, taken), flight.source is Source.LOOKUP)
            kept.append(Kept(min(accepted, taken), accepted < flight.depth and taken == accepted + 1))
            if self.constraint is not None:
                self.constraint.commit(row.tokens[-taken:])
            step.append(Committed(row, row.tokens[-taken:], row.drafted[-taken:], said))
        self.counts.plain_seconds += seconds if seconds is not None and flight.depth == 0 else 0.0
        seen = RoundSeen(flight.depth, len(flight.rows), kept, seconds)
        if flight.source is Source.DRAFTER:
            self.policy.observe(seen)
        elif flight.source is Source.LOOKUP and self.lookup is not None:
            self.lookup.policy.observe(seen)
        return step

    def _seconds(self, flight: _InFlight) -> float | None:
        """From one completion to the next: what the round took, unless the device had to wait for something else.

        Between the two the host builds the round behind this one, which may take longer than the device: so it must be
        of the same depth.
        """
        now = self._clock()
        before, self._completed = self._completed, now
        if before is None or self._behind(flight) != (flight.depth, flight.source):
            return None
        taken = now - before
        return taken if self._away < AWAY * taken else None

    def _behind(self, flight: _InFlight) -> tuple[int, Source] | None:
        """Drafts, and who makes them, of the round that was built while this one was computed."""
        if self.constraint is not None:
            if flight.source is Source.LOOKUP:  # built while nothing is computed: its time is its own
                return flight.depth, flight.source
            return None if self._ready is None else (self._ready.depth, Source.DRAFTER)
        if not (flight.behind and self._in_flight):
            return None
        return self._in_flight[0].depth, self._in_flight[0].source

    def _retire(self) -> None:
        """Drop finished rows. Their state is the newest one with the length put back: a rollback moves nothing."""
        done = [i for i, row in enumerate(self._live) if row.finish_reason]
        if not done:
            return
        for i in done:
            row = self._live[i]
            state = self._state if len(self._live) == 1 else batch.select(self._state, [i])
            row.final_state = state._replace(
                length=mx.array([row.length], dtype=mx.int32), token=mx.array([[row.tokens[-1]]], dtype=mx.int32)
            )
        keep = [i for i, row in enumerate(self._live) if not row.finish_reason]
        self._live = [self._live[i] for i in keep]
        self._settled = [self._settled[i] for i in keep]
        if self.lookup is not None:
            self.lookup.select(keep)
        if keep:
            self._state = batch.select(self._state, keep)
            self.parts = self.parts.select(keep)
        else:
            self._in_flight.clear()
