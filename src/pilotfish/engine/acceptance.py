"""Which drafts are kept, and which token follows them.

`same-text` keeps a draft when it equals the target's own choice for that position: the text of plain decoding.
`rejection` keeps it with probability min(1, p/q) and draws from the normalised residual otherwise (Leviathan et al.,
arXiv 2211.17192): the same distribution, not the same text, and somewhat more drafts kept. At temperature 0 both
are the same rule.
"""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from pilotfish.engine.state import ACCEPT_NOISE, DRAFT_NOISE, TEXT_NOISE, Draft, row_positions


class Chooser(Protocol):
    """What a rule needs of a sampler."""

    greedy: bool

    def choose(self, logits: mx.array, length: mx.array, shift: int, ids: mx.array | None = None,
               stream: int = 0) -> mx.array: ...  # fmt: skip
    def probabilities(self, logits: mx.array) -> mx.array: ...
    def draw(self, probabilities: mx.array, positions: mx.array, stream: int) -> mx.array: ...
    def uniform(self, positions: mx.array, stream: int) -> mx.array: ...


class AcceptanceRule(Protocol):
    """How drafts are drawn and judged. Pure functions of arrays."""

    name: str

    def wants_probabilities(self, sampler: Chooser) -> bool:
        """Whether `judge` needs the distributions that the drafts were drawn from."""

    def draft_stream(self, sampler: Chooser) -> int:
        """The stream of noise that drafts are drawn with."""

    def judge(self, sampler: Chooser, draft: Draft, logits: mx.array, length: mx.array) -> tuple[mx.array, mx.array]:
        """Target logits (B, depth + 1, V) for positions length[b] + 1 ... -> tokens (B, depth + 1), accepted (B,).

        tokens[:accepted] are the kept drafts, tokens[accepted] is the token after them.
        """


def leading(kept: mx.array) -> mx.array:
    """(B, depth) bool -> (B,) int32: how many are true before the first false."""
    return mx.sum(mx.cumprod(kept.astype(mx.int32), axis=1), axis=1)


class SameText:
    """A draft is right when it is what the target chooses itself, with the same noise."""

    name = "same-text"

    def wants_probabilities(self, sampler: Chooser) -> bool:
        return False

    def draft_stream(self, sampler: Chooser) -> int:
        return TEXT_NOISE

    def judge(self, sampler: Chooser, draft: Draft, logits: mx.array, length: mx.array) -> tuple[mx.array, mx.array]:
        tokens = sampler.choose(logits, length, 1)
        return tokens, leading(draft.tokens == tokens[:, :-1])


class Rejection:
    """Keep a draft with probability min(1, p/q), else draw from max(p - q, 0)."""

    name = "rejection"

    def wants_probabilities(self, sampler: Chooser) -> bool:
        return not sampler.greedy

    def draft_stream(self, sampler: Chooser) -> int:
        return TEXT_NOISE if sampler.greedy else DRAFT_NOISE

    def judge(self, sampler: Chooser, draft: Draft, logits: mx.array, length: mx.array) -> tuple[mx.array, mx.array]:
        if sampler.greedy or draft.tokens.shape[1] == 0:
            return SameText().judge(sampler, draft, logits, length)
        if draft.probabilities is None:
            raise AssertionError("the rejection rule needs the distributions that drafts were drawn from")
        positions = row_positions(length + 1, logits.shape[1])
        p, q = sampler.probabilities(logits), draft.probabilities
        at = draft.tokens[..., None]
        p_draft = mx.take_along_axis(p[:, :-1], at, axis=-1)[..., 0]
        q_draft = mx.take_along_axis(q, at, axis=-1)[..., 0]
        # u * q < p instead of u < p / q: no division by zero, and p = 0 is never accepted.
        accepted = leading(sampler.uniform(positions[:, :-1], ACCEPT_NOISE) * q_draft < p_draft)
        residual = mx.maximum(p[:, :-1] - q, 0)
        # Where p <= q everywhere by rounding, a rejection can only be a rounding accident: fall back to p.
        empty = mx.sum(residual, axis=-1, keepdims=True) <= 0
        remaining = mx.concatenate([mx.where(empty, p[:, :-1], residual), p[:, -1:]], axis=1)
        drawn = sampler.draw(remaining, positions, TEXT_NOISE)
        kept = mx.arange(draft.tokens.shape[1]) < accepted[:, None]
        return mx.concatenate([mx.where(kept, draft.tokens, drawn[:, :-1]), drawn[:, -1:]], axis=1), accepted


RULES: dict[str, AcceptanceRule] = {rule.name: rule for rule in (SameText(), Rejection())}
