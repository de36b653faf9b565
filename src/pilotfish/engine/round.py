"""One round: draft, verify, accept, sample. A pure function of arrays; nothing here evaluates or reads back.

L is the length before the round, k the depth, m the accepted drafts. Row i of the verify pass stands at position
L + i and its logits choose the token for position L + i + 1. After the round the length is L + m + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import mlx.core as mx

from pilotfish.engine.acceptance import AcceptanceRule
from pilotfish.engine.drafters import Drafter
from pilotfish.engine.logprobs import Logprobs
from pilotfish.engine.processors import Processors
from pilotfish.engine.sampling import Sampler
from pilotfish.engine.state import Buffers, DecodeState, Draft, RoundResult
from pilotfish.engine.target import Target


@dataclass(frozen=True)
class RoundParts:
    """What stays the same from round to round of one batch."""

    target: Target
    drafter: Drafter | None
    rule: AcceptanceRule
    sampler: Sampler
    processors: Processors | None = None
    top_logprobs: int | None = None  # None: log probabilities are not asked for

    def select(self, rows: Sequence[int]) -> RoundParts:
        """For some of the rows of the batch."""
        processors = self.processors.select(rows) if self.processors else None
        return replace(self, sampler=self.sampler.select(rows), processors=processors)


class Verified(NamedTuple):
    """What a verify pass gives: logits (B, depth + 1, V), hidden states (B, depth + 1, hidden), the caches after it."""

    logits: mx.array
    hidden: mx.array
    caches: tuple[Buffers, ...]


def run_round(parts: RoundParts, state: DecodeState, depth: int, draft: Draft | None = None) -> RoundResult:
    """Draft `depth` tokens, verify them in one pass of `depth + 1` rows, keep those that hold.

    The caller has made room for `depth + 1` more tokens (`CacheSpec.with_capacity`); the device cannot ask for it.
    draft: of `depth` tokens, where they are made already.
    """
    draft = draft or draft_round(parts, state, depth)
    return judge_round(parts, state, draft, verify_round(parts, state, draft))


def verify_round(parts: RoundParts, state: DecodeState, draft: Draft) -> Verified:
    """The target's pass over a draft."""
    depth, specs = draft.tokens.shape[1], parts.target.specs
    rows = parts.target.operations.concatenate([state.token, draft.tokens]) if depth else state.token
    views = [spec.decode_view(b, state.length) for spec, b in zip(specs, state.caches, strict=True)]
    logits, hidden = parts.target.forward(rows, views)
    return Verified(logits, hidden, tuple(spec.collect(view) for spec, view in zip(specs, views, strict=True)))


def judge_round(
    parts: RoundParts, state: DecodeState, draft: Draft, verified: Verified, bits: mx.array | None = None
) -> RoundResult:
    """Which drafts are kept and what follows them. bits: (B, depth + 1, words), what may be chosen in each row."""
    (logits, hidden, caches), depth = verified, draft.tokens.shape[1]
    raw, past, operations = logits, state.past, parts.target.operations
    if bits is not None:
        logits = operations.mask(raw, bits)
    if parts.processors is not None and past is not None:
        logits = parts.processors.apply(logits, past, draft.tokens, state.length)
    tokens, accepted = parts.rule.judge(parts.sampler, draft, logits, state.length)
    if parts.processors is not None and past is not None:
        past = parts.processors.advance(past, tokens, accepted)

    if depth:
        caches = tuple(
            spec.rollback(after, spec.checkpoint(before), accepted)
            for spec, before, after in zip(parts.target.specs, state.caches, caches, strict=True)
        )
    last = accepted[:, None]
    new_state = DecodeState(
        length=state.length + accepted + 1,
        token=mx.take_along_axis(tokens, last, axis=1),
        hidden=mx.take_along_axis(hidden, last[..., None], axis=1),
        caches=caches,
        past=past,
    )
    asked = parts.top_logprobs
    found = None if asked is None else Logprobs(*operations.logprobs(raw, tokens, asked))
    return RoundResult(new_state, tokens, accepted, found)


@dataclass
class _Propose:
    """Draws drafts as the rule wants them; see `drafters.Propose`."""

    parts: RoundParts
    state: DecodeState
    first_bits: mx.array | None
    drafted: list[mx.array] = field(default_factory=list)

    @property
    def wants_offers(self) -> bool:
        return self.parts.rule.wants_offers(self.parts.sampler)

    def adjusted(self, logits: mx.array, ahead: int, ids: mx.array | None) -> mx.array:
        processors, state, operations = self.parts.processors, self.state, self.parts.target.operations
        if self.first_bits is not None and not self.drafted:
            logits = operations.mask(logits, self.first_bits, ids)
        if processors is None or state.past is None:
            return logits
        drafts = operations.concatenate(self.drafted) if self.drafted else _no_tokens(state)
        return processors.apply(logits, state.past, drafts, state.length, len(self.drafted), ids)

    def __call__(self, logits: mx.array, ahead: int, ids: mx.array | None = None) -> mx.array:
        parts, state = self.parts, self.state
        stream = parts.rule.draft_stream(parts.sampler)
        token = parts.sampler.choose(logits, state.length, ahead, ids, stream)
        self.drafted.append(token)
        return token


def draft_round(parts: RoundParts, state: DecodeState, depth: int, first_bits: mx.array | None = None) -> Draft:
    """A round's drafts alone. first_bits: (B, 1, words), what the first of them may be."""
    if depth == 0:
        return Draft(_no_tokens(state))
    if parts.drafter is None:
        raise AssertionError(f"depth {depth} without a drafter")
    return parts.drafter.draft(state, depth, _Propose(parts, state, first_bits))


def _no_tokens(state: DecodeState) -> mx.array:
    return mx.zeros((state.token.shape[0], 0), dtype=mx.int32)
