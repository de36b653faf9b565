"""When to draft by look-up, and how many tokens: whatever expects more tokens a second than the other drafter.

How often a match holds for one token more depends on how long it is already. That is learned from every token that is
read, whoever drafted it, so looking costs no round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pilotfish.engine.depth.auto import SWITCH, AutoDepth
from pilotfish.engine.depth.costs import Costs
from pilotfish.engine.depth.matches import MatchMemory
from pilotfish.engine.depth.policy import RoundSeen

MARGIN = 1.05  # look-up must promise so much more than the other drafter
DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)  # few, so that a round is often followed by one of its depth and can be timed


class LookupPolicy(Protocol):
    """Chooses the drafts that look-up makes."""

    def next_depth(self, matches: Sequence[int], ahead: float) -> int:
        """Drafts for the next round, 0 to leave it to others. matches: length of each row's; ahead: tokens in flight
        that have to follow them first."""

    def saw_token(self, match: int, foretold: bool) -> None:
        """A token came where a match of that length foretold one."""

    def observe(self, seen: RoundSeen) -> None:
        """A round that look-up drafted was read."""


@dataclass(frozen=True)
class FixedLookup:
    """The same depth in every round, match or not."""

    depth: int

    def next_depth(self, matches: Sequence[int], ahead: float) -> int:
        return self.depth

    def saw_token(self, match: int, foretold: bool) -> None:
        return None

    def observe(self, seen: RoundSeen) -> None:
        return None


class AutoLookup:
    """Look-up beside an `AutoDepth`, which chooses for the other drafter (none where its `max_depth` is 0)."""

    def __init__(self, beside: AutoDepth, max_depth: int | None = None) -> None:
        memory = beside.memory
        self._beside, self._matches = beside, MatchMemory(memory.matches)
        most = memory.max_depth if max_depth is None else min(max_depth, memory.max_depth)
        self._depths = [d for d in DEPTHS if d <= most]
        self._last = 0

    def next_depth(self, matches: Sequence[int], ahead: float) -> int:
        if not any(matches) or self._beside.warming_up:
            return 0
        costs = self._costs(len(matches))
        best, most = 0, MARGIN * self._beside.value
        for depth, tokens in zip(self._depths, self._expected(matches, ahead), strict=True):
            value = tokens / costs.relative(depth) * (SWITCH if depth == self._last else 1)
            if value > most:
                best, most = depth, value
        self._last = best
        return best

    def saw_token(self, match: int, foretold: bool) -> None:
        self._matches.observe(match, foretold)

    def observe(self, seen: RoundSeen) -> None:
        if seen.seconds is not None:
            self._costs(seen.rows).observe(seen.depth, seen.seconds)

    def _costs(self, rows: int) -> Costs:
        return self._beside.memory.lookup_costs(self._beside.kind._replace(rows=rows))

    def _expected(self, matches: Sequence[int], ahead: float) -> list[float]:
        """Tokens that a row gets on average, for each of the depths."""
        out = [1.0] * len(self._depths)
        for match in matches:
            if not match:
                continue
            in_flight = round(ahead)
            reached, tokens, length = 1.0, 0.0, match
            for i in range(in_flight + (self._depths[-1] if self._depths else 0)):
                reached *= self._matches.probability(length)
                length += 1
                tokens += reached if i >= in_flight else 0.0
                if i - in_flight + 1 in self._depths:
                    out[self._depths.index(i - in_flight + 1)] += tokens / len(matches)
        return out
