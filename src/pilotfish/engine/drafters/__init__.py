"""Whatever proposes tokens. One file per drafter; this one holds the contract."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from pilotfish.engine.state import DecodeState, Draft


class Propose(Protocol):
    """Given to a drafter by the round: turns its logits into a token, as the acceptance rule wants it."""

    @property
    def wants_offers(self) -> bool:
        """Whether the draft must carry what its tokens were drawn from."""

    def adjusted(self, logits: mx.array, ahead: int, ids: mx.array | None) -> mx.array:
        """The same logits with penalties and biases, as the target's will be; given to `__call__` afterwards."""

    def __call__(self, logits: mx.array, ahead: int, ids: mx.array | None = None) -> mx.array:
        """(B, 1, M) adjusted logits for position length + ahead -> token (B, 1) int32.

        `ids` (B, 1, M) int32 names the tokens that the logits stand for; without it, logit j is token j.
        """


class Drafter(Protocol):
    """Proposes tokens after `state.token`. Stateless between calls; everything it reads is in the decode state."""

    max_depth: int
    reads_hidden: bool  # whether it needs the target's hidden state, which there is none of right after a prefill

    def draft(self, state: DecodeState, depth: int, propose: Propose) -> Draft:
        """`depth` >= 1 tokens for positions `length + 1 ...`, lazily. Must not evaluate or write to caches."""
