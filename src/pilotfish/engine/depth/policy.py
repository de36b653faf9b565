"""The contract: a policy is asked before a round is dispatched, and told later what the round gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Kept(NamedTuple):
    """What one row kept of a round's drafts.

    accepted: leading drafts kept. judged: whether the next draft was looked at and refused; False where all were kept,
    or where an end of text or the budget cut the round short, which says nothing about the drafts after it.
    """

    accepted: int
    judged: bool


@dataclass(frozen=True)
class RoundSeen:
    """One round of a batch of `rows`, as read.

    kept: of each row that was not finished before. seconds: from the completion of the round before it to its own, in a
    full pipeline, or None where that is not known.
    """

    depth: int
    rows: int
    kept: Sequence[Kept]
    seconds: float | None


class DepthPolicy(Protocol):
    """Chooses the depth of each round of one sequence or batch."""

    def next_depth(self, rows: int) -> int:
        """Drafts for the next round of a batch of `rows`; 0 is plain decoding."""

    def observe(self, seen: RoundSeen) -> None:
        """A round was read; rounds come in the order in which they were dispatched, one or two later."""


@dataclass(frozen=True)
class FixedDepth:
    """The same depth in every round."""

    depth: int

    def next_depth(self, rows: int) -> int:
        return self.depth

    def observe(self, seen: RoundSeen) -> None:
        return None
