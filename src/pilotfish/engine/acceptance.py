"""Which drafts are kept, and which token follows them.

`same-text` keeps a draft when it equals the target's own choice for that position: the text of plain decoding.
`rejection` keeps it with probability min(1, p/q) and draws from the normalised residual otherwise (Leviathan et al.,
arXiv 2211.17192): the same distribution, not the same text, and somewhat more drafts kept. At temperature 0 both
are the same rule.
"""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from pilotfish.engine.state import DRAFT_NOISE, TEXT_NOISE, Draft, leading


class Chooser(Protocol):
    """What a rule needs of a sampler."""

    greedy: bool

    def choose(self, logits: mx.array, length: mx.array, shift: int, ids: mx.array | None = None,
               stream: int = 0) -> mx.array: ...  # fmt: skip
    def reject(self, draft: Draft, logits: mx.array, length: mx.array) -> tuple[mx.array, mx.array]: ...


class AcceptanceRule(Protocol):
    """How drafts are drawn and judged. Pure functions of arrays."""

    name: str

    def wants_offers(self, sampler: Chooser) -> bool:
        """Whether `judge` needs what the drafts were drawn from."""

    def draft_stream(self, sampler: Chooser) -> int:
        """The stream of noise that drafts are drawn with."""

    def judge(self, sampler: Chooser, draft: Draft, logits: mx.array, length: mx.array) -> tuple[mx.array, mx.array]:
        """Target logits (B, depth + 1, V) for positions length[b] + 1 ... -> tokens (B, depth + 1), accepted (B,).

        tokens[:accepted] are the kept drafts, tokens[accepted] is the token after them.
        """


class SameText:
    """A draft is right when it is what the target chooses itself, with the same noise."""

    name = "same-text"

    def wants_offers(self, sampler: Chooser) -> bool:
        return False

    def draft_stream(self, sampler: Chooser) -> int:
        return TEXT_NOISE

    def judge(self, sampler: Chooser, draft: Draft, logits: mx.array, length: mx.array) -> tuple[mx.array, mx.array]:
        tokens = sampler.choose(logits, length, 1)
        return tokens, leading(draft.tokens == tokens[:, :-1])


class Rejection:
    """Keep a draft with probability min(1, p/q), else draw from max(p - q, 0)."""

    name = "rejection"

    def wants_offers(self, sampler: Chooser) -> bool:
        return not sampler.greedy

    def draft_stream(self, sampler: Chooser) -> int:
        return TEXT_NOISE if sampler.greedy else DRAFT_NOISE

    def judge(self, sampler: Chooser, draft: Draft, logits: mx.array, length: mx.array) -> tuple[mx.array, mx.array]:
        if sampler.greedy or draft.tokens.shape[1] == 0:
            return SameText().judge(sampler, draft, logits, length)
        if not draft.offers:
            raise AssertionError("the rejection rule needs what drafts were drawn from")
        return sampler.reject(draft, logits, length)


RULES: dict[str, AcceptanceRule] = {rule.name: rule for rule in (SameText(), Rejection())}
