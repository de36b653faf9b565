"""From prompt ids to events: tokens become parts of an answer here, and stop strings end it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pilotfish.engine import batch
from pilotfish.engine.acceptance import RULES, SameText
from pilotfish.engine.decode import DecodeLoop, Device, Progress, prefill
from pilotfish.engine.depth import AutoDepth, AutoLookup, DepthPolicy, FixedDepth, FixedLookup
from pilotfish.engine.drafters.lookup import PromptLookup
from pilotfish.engine.logprobs import TokenLogprob
from pilotfish.engine.processors import Processors
from pilotfish.engine.reuse import Kept, Marks, keep
from pilotfish.engine.round import RoundParts
from pilotfish.engine.rows import Committed, Row
from pilotfish.engine.sampling import MAX_SEED, Sampler, SamplingParams
from pilotfish.engine.scoring import score
from pilotfish.engine.state import DecodeState
from pilotfish.runtime.prefixes import PrefixCache, marks_of
from pilotfish.runtime.request import AUTO, Event, Prepared, Stats
from pilotfish.text.answer import Answer, Kind, Markers, Part, is_open
from pilotfish.text.grammar import GrammarConstraint

if TYPE_CHECKING:
    from pilotfish.runtime.loaded import LoadedModel

Clock = Callable[[], float]


def complete(
    model: LoadedModel, request: Prepared, clock: Clock, device: Device, progress: Progress | None = None,
    prefixes: PrefixCache | None = None,
) -> Iterator[Event]:  # fmt: skip
    """Decode one prepared request, yielding an event a round and answer.

    What it computed is left in `prefixes` for the next request, also where the caller stops half-way.
    """
    if request.n > 1 and request.grammar is not None:  # a grammar is of one row
        for i in range(request.n):
            one = replace(
                request, n=1, sampling=_seeded(request, i), prompt_logprobs=None if i else request.prompt_logprobs
            )
            for event in complete(model, one, clock, device, progress, prefixes):
                yield replace(event, index=i)
        return
    started = clock()
    said: tuple[TokenLogprob, ...] = ()
    if request.prompt_logprobs is not None:
        said = tuple(score(model.target, request.prompt, device, request.prompt_logprobs, progress))
    eos = frozenset[int]() if request.ignore_eos else model.eos
    rows = [Row(len(request.prompt), request.max_tokens, eos) for _ in range(request.n)]
    if not request.max_tokens:
        yield from _nothing(model, request, rows, said, clock() - started)
        return
    begun = prefixes.start(model, request.prompt) if prefixes else None
    marks = Marks(marks_of(model, request.prompt) if prefixes else ())
    state = prefill(model.target, request.prompt, device, progress=progress, start=begun, marks=marks)
    loop = _loop(model, request, state, rows, device, clock)
    prefilled = clock()
    answers = [Answer(model.backend_tokenizer, request.prompt, request.stops, model.eos) for _ in rows]

    def stats(i: int) -> Stats:
        found = _stats(model, request, i, rows[i], begun.length if begun else 0, prefilled - started,
                       clock() - prefilled)  # fmt: skip
        parked = loop.counts.plain_seconds if request.depth == AUTO else 0.0
        return replace(found, thinking_tokens=answers[i].thinking_tokens, parked_seconds=parked)

    try:
        for step in loop.steps():
            for committed in step:
                i = next(i for i, row in enumerate(rows) if row is committed.row)
                event = replace(_event(answers[i], committed, loop, request.one_call), index=i, prompt_logprobs=said)
                said = ()
                yield replace(event, stats=stats(i)) if event.finish_reason else event
    finally:
        if prefixes:
            prefixes.add(model, _kept(model, request, rows[0], state, marks))


def _loop(
    model: LoadedModel, request: Prepared, state: DecodeState, rows: list[Row], device: Device, clock: Clock
) -> DecodeLoop:
    """The decode loop for as many rows as there are answers, all after the same prompt."""
    prompts, target = [request.prompt] * len(rows), model.target
    sampler = Sampler([_seeded(request, i) for i in range(len(rows))], model.suppress, target.operations)
    processors = None
    if not request.adjustments.changes_nothing:
        adjustments = [request.adjustments] * len(rows)
        processors = Processors(adjustments, target.vocab_size, [len(p) for p in prompts], target.operations)
    # Under a grammar drafts may come from the grammar itself, without a distribution to judge them by.
    rule = RULES[request.acceptance if request.grammar is None else SameText.name]
    drafter = model.drafter if request.depth else None
    parts = RoundParts(target, drafter, rule, sampler, processors, request.logprobs)
    state = batch.join(target.specs, [state] * len(rows))
    if processors is not None:
        state = state._replace(past=processors.begin(prompts))
    policy = _policy(model, request)
    return DecodeLoop(parts, policy, state, rows, device, clock, _constraint(model, request),
                      _lookup(model, request, policy, prompts))  # fmt: skip


def _seeded(request: Prepared, i: int) -> SamplingParams:
    """How the i-th answer is sampled."""
    return replace(request.sampling, seed=(request.sampling.seed + i) % (MAX_SEED + 1))


def _nothing(
    model: LoadedModel, request: Prepared, rows: list[Row], said: tuple[TokenLogprob, ...], seconds: float
) -> Iterator[Event]:
    """Answers without a token: only the prompt was of interest."""
    for i, row in enumerate(rows):
        row.finish_reason = "length"
        yield Event("", (), (), (), prompt_logprobs=() if i else said, index=i, finish_reason="length",
                    stats=_stats(model, request, i, row, 0, seconds, 0.0))  # fmt: skip


def _event(answer: Answer, committed: Committed, loop: DecodeLoop, one_call: bool) -> Event:
    """What a round's tokens say; a stop string or the only call that may be made ends the row where plain decoding
    would have ended it."""
    row, by_token = committed.row, []
    ended = False
    for token in committed.tokens:
        by_token.append(answer.add(token))
        ended = answer.stopped or (one_call and any(part.call for part in by_token[-1]))
        if ended:
            break
    kept = len(by_token)
    if ended:
        loop.stop(row, len(row.tokens) - (len(committed.tokens) - kept))
    if row.finish_reason:
        by_token[-1] += answer.finish()
        if answer.stopped:  # only the last, never completed bytes completed a stop string
            row.finish_reason = "stop"
    pieces = tuple("".join(p.text for p in parts if p.kind == Kind.TEXT) for parts in by_token)
    return Event(
        text="".join(pieces),
        tokens=tuple(committed.tokens[:kept]),
        drafted=tuple(committed.drafted[:kept]),
        pieces=pieces,
        parts=_joined([part for parts in by_token for part in parts]),
        logprobs=tuple(committed.logprobs[:kept]),
        finish_reason=row.finish_reason,
        stop_string=answer.stop_string,
    )


def _joined(parts: list[Part]) -> tuple[Part, ...]:
    """Neighbours of one kind as one part; a call stays by itself."""
    out: list[Part] = []
    for part in parts:
        if out and part.call is None and out[-1].kind == part.kind:
            out[-1] = Part(part.kind, out[-1].text + part.text)
        else:
            out.append(part)
    return tuple(out)


def _kept(model: LoadedModel, request: Prepared, row: Row, prefilled: DecodeState, marks: Marks) -> Kept:
    """The whole sequence if it ended, else its prompt. A running state that cannot be rolled back is past its end."""
    specs = model.target.specs
    if row.final_state is not None and model.target.can_roll_back:
        return keep(specs, [*request.prompt, *row.tokens[:-1]], row.final_state, marks)
    return keep(specs, request.prompt[:-1], prefilled, marks)


def _constraint(model: LoadedModel, request: Prepared) -> GrammarConstraint | None:
    if request.grammar is None:
        return None
    marks, grammar = Markers.of(model.backend_tokenizer), model.grammar_tokenizer
    return GrammarConstraint(request.grammar.deep_copy(), grammar.vocab, model.eos, marks.channel, marks.channel_end,
                             request.thinks, is_open(request.prompt, marks))  # fmt: skip


def _policy(model: LoadedModel, request: Prepared) -> DepthPolicy:
    if request.depth == AUTO:
        return AutoDepth(model.depth_memory, request.max_depth if model.drafter else 0, request.grammar is not None)
    return FixedDepth(int(request.depth))


def _lookup(
    model: LoadedModel, request: Prepared, policy: DepthPolicy, prompts: list[list[int]]
) -> PromptLookup | None:
    """Look-up beside the drafter; a depth that is asked for is that of the drafter, if there is one."""
    if not (request.lookup and request.depth):
        return None
    if isinstance(policy, AutoDepth):
        return PromptLookup(prompts, AutoLookup(policy, request.max_depth))
    return None if model.drafter else PromptLookup(prompts, FixedLookup(int(request.depth)))


def _stats(model: LoadedModel, request: Prepared, i: int, row: Row, cached: int, prefill_seconds: float,
           decode_seconds: float) -> Stats:  # fmt: skip
    counts = row.counts
    assert row.finish_reason is not None
    return Stats(
        prompt_tokens=len(request.prompt),
        cached_tokens=cached,
        tokens=len(row.tokens),
        delivered=len(row.tokens) - (row.tokens[-1:] != [] and row.tokens[-1] in model.eos),
        thinking_tokens=0,
        finish_reason=row.finish_reason,
        rounds=counts.rounds,
        drafted=counts.drafted,
        accepted=counts.accepted,
        looked_up=counts.looked_up,
        accepted_at=tuple(counts.accepted_at),
        drafted_at=tuple(counts.drafted_at),
        depth=request.depth,
        depths=tuple(counts.depths),
        no_drafting=_why_not(model, request),
        drafter=model.drafter_name if request.depth else "none",
        acceptance=request.acceptance if request.grammar is None else SameText.name,
        temperature=request.sampling.temperature,
        seed=_seeded(request, i).seed,
        cache_length=row.length,
        prefill_seconds=prefill_seconds,
        decode_seconds=decode_seconds,
        parked_seconds=0.0,
    )


def _why_not(model: LoadedModel, request: Prepared) -> str:
    if request.depth:
        return ""
    return "it was turned off" if model.drafts else "no drafter was found or given"
