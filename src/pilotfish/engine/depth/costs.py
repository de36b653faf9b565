"""What a round costs at each depth, learned from completion times.

Seconds of a round of d drafts = pace * (1 + slope * d) * bump[d]. The pace is shared: it follows the context's growth
and a busy machine, and does not matter for a choice. The slope is what a draft costs of a plain round; looks at plain
decoding keep it right while the context grows. Bumps hold what is not a line: steps where a kernel changes.
"""

from __future__ import annotations

import math

FIRST_SLOPE = 0.15  # before anything was measured
LEAST_SLOPE = 0.002
STALL = 2.0  # a sample so many times what was expected is a stall, unless it keeps coming
STALLS_BELIEVED = 6
PACE_RATE, LOOK_RATE, BUMP_RATE = 0.15, 0.4, 0.03


class Costs:
    """For one size of batch."""

    def __init__(self, max_depth: int) -> None:
        self.pace, self.slope = 0.0, FIRST_SLOPE
        self._bumps: list[float | None] = [None] * (max_depth + 1)
        self._bumps[0] = 1.0
        self._samples = [0] * (max_depth + 1)
        self._drafted = self._stalls = self._last = 0
        self._table: list[float] | None = None

    def known(self, depth: int) -> bool:
        """Whether rounds of this depth were timed at all."""
        return self._samples[depth] > 0

    def relative(self, depth: int) -> float:
        """Cost of a round over that of a plain one."""
        if self._table is None:
            self._table = [(1 + self.slope * d) * self._bump(d) for d in range(len(self._bumps))]
        return self._table[depth]

    def observe(self, depth: int, seconds: float) -> None:
        """One round took so long."""
        if seconds <= 0:
            return
        if not self.pace:
            self.pace = seconds / (1 + self.slope * depth)
        ratio = seconds / (self.pace * self.relative(depth))
        if self._is_stall(ratio, self._samples[depth]):
            return
        self._samples[depth] += 1
        change = math.log(ratio)
        if depth == 0:
            self._plain(change)
        else:
            self._drafting(depth, change)
        self._last = depth
        self._table = None

    def _plain(self, change: float) -> None:
        """The pace is what a plain round takes; what drafting takes has not changed by looking."""
        looking = self._last > 0
        step = math.exp(max(LOOK_RATE if looking else PACE_RATE, 1 / self._samples[0]) * change)
        self.pace *= step
        if looking:
            self.slope = max(LEAST_SLOPE, ((1 + self.slope * self._last) / step - 1) / self._last)

    def _drafting(self, depth: int, change: float) -> None:
        self._drafted += 1
        bump = self._bump(depth)
        if self._samples[0] == 0:
            self.pace *= math.exp(change / self._drafted)
        elif self._drafted <= 4:  # the slope is as good as unknown
            self.slope = max(LEAST_SLOPE, ((1 + self.slope * depth) * math.exp(change) - 1) / depth)
            return
        elif depth == self._last:
            self.pace *= math.exp(PACE_RATE * change)
        rate = max(BUMP_RATE if depth == self._last else LOOK_RATE, 1 / self._samples[depth])
        self._bumps[depth] = bump * math.exp(rate * change)

    def _is_stall(self, ratio: float, samples: int) -> bool:
        limit = STALL if samples >= 3 else 4 * STALL  # before a depth is known, the guess may be far off
        if 1 / limit < ratio < limit:
            self._stalls = 0
            return False
        self._stalls += 1
        if self._stalls < STALLS_BELIEVED:
            return True
        self._stalls = 0
        self.pace *= ratio  # it keeps coming: everything has become slower, or faster
        return False

    def _bump(self, depth: int) -> float:
        """As measured; between two that were, on a line; beyond them, as the nearest."""
        known = self._bumps[depth]
        if known is not None:
            return known
        below = max(d for d in range(depth) if self._bumps[d] is not None)
        above = next((d for d in range(depth + 1, len(self._bumps)) if self._bumps[d] is not None), None)
        low = self._bumps[below] or 1.0
        if above is None:
            return low
        return low + ((self._bumps[above] or 1.0) - low) * (depth - below) / (above - below)
