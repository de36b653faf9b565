"""What a round costs at each depth, learned from completion times.

Every sample is taken relative to the pace, the median of the last few rounds whatever their depth, so the growth of the
context and a busy machine, which all depths share, do not matter. What a depth costs is the median of its own last
samples: a stalled round changes nothing.
"""

from __future__ import annotations

from collections import deque
from statistics import median_low

FIRST_SLOPE = 0.15  # what a draft is taken to cost of a plain round, before anything was measured
PACE_SAMPLES, DEPTH_SAMPLES, FEW = 5, 9, 3
FRESH = 150  # rounds after which a sample counts only if there are FEW


class Costs:
    """For one size of batch."""

    def __init__(self, max_depth: int) -> None:
        self._recent: deque[float] = deque(maxlen=PACE_SAMPLES)
        self._samples: list[deque[tuple[int, float]]] = [deque(maxlen=DEPTH_SAMPLES) for _ in range(max_depth + 1)]
        self._rounds = 0
        self._table = [1 + FIRST_SLOPE * d for d in range(max_depth + 1)]

    @property
    def pace(self) -> float:
        """Seconds of a plain round at present; 0 before anything was timed."""
        return median_low(self._recent) if self._recent else 0.0

    def samples(self, depth: int) -> int:
        """How often this depth was timed, up to a few."""
        return len(self._samples[depth])

    def relative(self, depth: int) -> float:
        """Cost of a round over that of a plain one."""
        return self._table[depth] / self._table[0]

    def observe(self, depth: int, seconds: float) -> None:
        """One round took so long."""
        if seconds <= 0:
            return
        self._rounds += 1
        pace = self.pace or seconds / self._table[depth]
        self._samples[depth].append((self._rounds, seconds / pace))
        self._recent.append(seconds / self._own(depth))
        self._table = self._interpolated()

    def _own(self, depth: int) -> float:
        samples = self._samples[depth]
        fresh = [s for at, s in samples if self._rounds - at <= FRESH]
        return median_low(fresh if len(fresh) >= FEW else [s for _, s in samples][-FEW:])

    def _interpolated(self) -> list[float]:
        """What was never timed lies on a line between what was, and beyond that goes on as a draft costs on average."""
        known = [(d, self._own(d)) for d, samples in enumerate(self._samples) if samples]
        if len(known) == 1:
            depth, own = known[0]
            return [own * (1 + FIRST_SLOPE * d) / (1 + FIRST_SLOPE * depth) for d in range(len(self._samples))]
        (first, low), (last, high) = known[0], known[-1]
        slope = max(0.0, high - low) / (last - first)
        table, upper = [], 0
        for d in range(len(self._samples)):
            while upper < len(known) - 1 and known[upper][0] < d:
                upper += 1
            at, own = known[upper]
            if at <= d:
                table.append(own + slope * (d - at))
            elif upper == 0:
                table.append(max(0.2 * own, own - slope * (at - d)))
            else:
                before, below = known[upper - 1]
                table.append(below + (own - below) * (d - before) / (at - before))
        return table
