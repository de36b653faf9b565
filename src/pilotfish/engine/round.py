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
from pilotfish.engine.state import DecodeState, Draft, RoundResult, row_positions
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


def _draft(parts: RoundParts, state: DecodeState, depth: int) -> Draft:
    if depth == 0:
        return Draft(mx.zeros((state.token.shape[0], 0), dtype=mx.int32), None)
    if parts.drafter is None:
        raise AssertionError(f"depth {depth} without a drafter")
    sampler, rule, vocab = parts.sampler, parts.rule, parts.target.vocab_size

    def propose(logits: mx.array, ahead: int, ids: mx.array | None = None) -> tuple[mx.array, mx.array | None]:
        stream = rule.draft_stream(sampler)
        if not rule.wants_probabilities(sampler):
            return sampler.choose(logits, state.length, ahead, ids, stream), None
        if ids is not None:
            # Tokens outside the chosen clusters have probability zero, in the draw and in the ratio alike.
            full = mx.full((*logits.shape[:2], vocab), -float("inf"), dtype=mx.float32)
            logits = mx.put_along_axis(full, ids, logits.astype(mx.float32), axis=-1)
        p = sampler.probabilities(logits)
        return sampler.draw(p, row_positions(state.length + ahead, 1), stream), p

    return parts.drafter.draft(state, depth, propose)
