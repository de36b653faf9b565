"""One round: draft, verify, accept, sample. A pure function of arrays; nothing here evaluates or reads back.

L is the length before the round, k the depth, m the accepted drafts. Row i of the verify pass stands at position
L + i and its logits choose the token for position L + i + 1. After the round the length is L + m + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from pilotfish.engine.acceptance import AcceptanceRule
from pilotfish.engine.drafters import Drafter
from pilotfish.engine.sampling import Sampler
from pilotfish.engine.state import DecodeState, Draft, RoundResult
from pilotfish.engine.target import Target


@dataclass(frozen=True)
class RoundParts:
    """What stays the same from round to round of one batch."""

    target: Target
    drafter: Drafter | None
    rule: AcceptanceRule
    sampler: Sampler


def run_round(parts: RoundParts, state: DecodeState, depth: int) -> RoundResult:
    """Draft `depth` tokens, verify them in one pass of `depth + 1` rows, keep those that hold.

    The caller has made room for `depth + 1` more tokens (`CacheSpec.with_capacity`); the device cannot ask for it.
    """
    draft = _draft(parts, state, depth)
    rows = parts.target.operations.concatenate([state.token, draft.tokens]) if depth else state.token

    specs = parts.target.specs
    views = [spec.decode_view(b, state.length) for spec, b in zip(specs, state.caches, strict=True)]
    logits, hidden = parts.target.forward(rows, views)

    tokens, accepted = parts.rule.judge(parts.sampler, draft, logits, state.length)

    caches = tuple(spec.collect(view) for spec, view in zip(specs, views, strict=True))
    if depth:
        caches = tuple(
            spec.rollback(after, spec.checkpoint(before), accepted)
            for spec, before, after in zip(specs, state.caches, caches, strict=True)
        )
    last = accepted[:, None]
    new_state = DecodeState(
        length=state.length + accepted + 1,
        token=mx.take_along_axis(tokens, last, axis=1),
        hidden=mx.take_along_axis(hidden, last[..., None], axis=1),
        caches=caches,
    )
    return RoundResult(new_state, tokens, accepted)


@dataclass(frozen=True)
class _Propose:
    """Draws drafts as the rule wants them; see `drafters.Propose`."""

    sampler: Sampler
    length: mx.array
    stream: int
    wants_offers: bool

    def __call__(self, logits: mx.array, ahead: int, ids: mx.array | None = None) -> mx.array:
        return self.sampler.choose(logits, self.length, ahead, ids, self.stream)


def _draft(parts: RoundParts, state: DecodeState, depth: int) -> Draft:
    if depth == 0:
        return Draft(mx.zeros((state.token.shape[0], 0), dtype=mx.int32))
    if parts.drafter is None:
        raise AssertionError(f"depth {depth} without a drafter")
    sampler, rule = parts.sampler, parts.rule
    propose = _Propose(sampler, state.length, rule.draft_stream(sampler), rule.wants_offers(sampler))
    return parts.drafter.draft(state, depth, propose)
