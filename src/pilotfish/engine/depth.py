"""How many tokens to draft. Plain Python, no arrays.

A policy is asked for the depth of the next round before that round is dispatched, and is told later what a round
gave. `FixedDepth` is the only one so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class DepthPolicy(Protocol):
    """Chooses the depth of each round of one sequence or batch."""

    def next_depth(self) -> int:
        """Drafts for the next round; 0 is plain decoding."""

    def observe(self, depth: int, accepted: int) -> None:
        """In a round of `depth` drafts one row kept `accepted` of them."""


@dataclass(frozen=True)
class FixedDepth:
    """The same depth in every round."""

    depth: int

    def next_depth(self) -> int:
        return self.depth

    def observe(self, depth: int, accepted: int) -> None:
        return None
