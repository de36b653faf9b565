"""From prompt ids to text events: tokens become text here, and stop strings end it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pilotfish.engine.acceptance import RULES
from pilotfish.engine.decode import Committed, Counts, DecodeLoop, Device, Progress, Row, prefill
from pilotfish.engine.depth import AutoDepth, DepthPolicy, FixedDepth
from pilotfish.engine.round import RoundParts
from pilotfish.engine.sampling import Sampler
from pilotfish.runtime.request import AUTO, Event, Prepared, Stats
from pilotfish.text.detokenize import Detokenizer
from pilotfish.text.stops import StopStrings

if TYPE_CHECKING:
    from pilotfish.runtime.loaded import LoadedModel

Clock = Callable[[], float]


def complete(
    model: LoadedModel, request: Prepared, clock: Clock, device: Device, progress: Progress | None = None
) -> Iterator[Event]:
    """Decode one prepared request, yielding an event a round."""
    started = clock()
    row = Row(prompt_length=len(request.prompt), max_tokens=request.max_tokens, eos=model.eos)
    sampler = Sampler([request.sampling], model.suppress, model.target.operations)
    drafter = model.drafter if request.depth else None
    parts = RoundParts(model.target, drafter, RULES[request.acceptance], sampler)
    state = prefill(model.target, request.prompt, device, progress=progress)
    loop = DecodeLoop(parts, _policy(model, request), state, [row], device, clock)
    prefilled = clock()
    text = TextOf(Detokenizer(model.backend_tokenizer, request.prompt), StopStrings(request.stops), model.eos)
    for step in loop.steps():
        for committed in step:
            pieces = text.add(committed)
            kept = len(pieces)
            dropped = len(committed.tokens) - kept
            if text.stopped:
                loop.stop(row, len(row.tokens) - dropped)
            if row.finish_reason:
                pieces[-1] += text.finish()
                if text.stopped:  # only the last, never completed bytes completed a stop string
                    row.finish_reason = "stop"
            yield Event(
                text="".join(pieces),
                tokens=tuple(committed.tokens[:kept]),
                drafted=tuple(committed.drafted[:kept]),
                pieces=tuple(pieces),
                finish_reason=row.finish_reason,
                stats=_stats(model, request, row, loop.counts, prefilled - started, clock() - prefilled)
                if row.finish_reason
                else None,
            )


def _policy(model: LoadedModel, request: Prepared) -> DepthPolicy:
    if request.depth == AUTO:
        return AutoDepth(model.depth_memory, request.max_depth)
    return FixedDepth(int(request.depth))


class TextOf:
    """The text of one row's tokens, cut at stop strings."""

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings, eos: frozenset[int]) -> None:
        self._detokenizer, self._stops, self._eos = detokenizer, stops, eos

    @property
    def stopped(self) -> bool:
        """A stop string is complete."""
        return self._stops.stopped

    def add(self, committed: Committed) -> list[str]:
        """A piece of text for each token, up to the token that completes a stop string."""
        pieces = []
        for token in committed.tokens:
            pieces.append("" if token in self._eos else self._stops.add(self._detokenizer.add(token)))
            if self._stops.stopped:
                break
        return pieces

    def finish(self) -> str:
        """What was held back: the start of a stop string that never came, bytes that never became a character."""
        if self._stops.stopped:
            return ""
        return self._stops.add(self._detokenizer.finish()) + self._stops.finish()


def _stats(model: LoadedModel, request: Prepared, row: Row, counts: Counts, prefill_seconds: float,
           decode_seconds: float) -> Stats:  # fmt: skip
    assert row.finish_reason is not None
    return Stats(
        prompt_tokens=len(request.prompt),
        tokens=len(row.tokens),
        finish_reason=row.finish_reason,
        rounds=counts.rounds,
        drafted=counts.drafted,
        accepted=counts.accepted,
        accepted_at=tuple(counts.accepted_at),
        drafted_at=tuple(counts.drafted_at),
        depth=request.depth,
        depths=tuple(counts.depths),
        no_drafting=_why_not(model, request),
        drafter=model.drafter_name if request.depth else "none",
        acceptance=request.acceptance,
        temperature=request.sampling.temperature,
        seed=request.sampling.seed,
        cache_length=row.length,
        prefill_seconds=prefill_seconds,
        decode_seconds=decode_seconds,
        parked_seconds=counts.plain_seconds if request.depth == AUTO else 0.0,
    )


def _why_not(model: LoadedModel, request: Prepared) -> str:
    if request.depth:
        return ""
    return "no drafter was found or given" if model.drafter is None else "it was turned off"
