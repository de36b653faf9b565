"""What a round costs at each depth, learned from completion times.

Every sample is taken relative to the pace, the median of the last few rounds whatever their depth, so the growth of the
context and a busy machine, which all depths share, do not matter. What a depth costs is the median of its own last
samples, so a stalled round changes nothing, drawn towards a straight line through all depths while they are few: noise
that met one depth in a burst must not banish it.
"""

from __future__ import annotations

from collections import deque
from statistics import median_low
from typing import NamedTuple

FIRST_SLOPE = 0.15  # what a draft is taken to cost of a plain round, before anything was measured
PACE_SAMPLES, DEPTH_SAMPLES, FEW = 5, 25, 6
FRESH = 400  # rounds after which a sample counts only if there are FEW
LINE_WEIGHT = 2  # samples that the line is worth
STALE = 2  # samples that old ones are worth, however many


class _Own(NamedTuple):
    """What one depth showed: the median of so many samples, the last of them at this round."""

    cost: float
    samples: int
    at: int


class _Pace:
    """What all rounds of one size of batch share, whoever drafts."""

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=PACE_SAMPLES)
        self.rounds = 0


class Costs:
    """For one size of batch and one drafter.

    beside: the costs of another drafter, of whose rounds only the plain ones cost the same.
    """

    def __init__(self, max_depth: int, beside: Costs | None = None) -> None:
        self._pace: _Pace = _Pace() if beside is None else beside._pace
        self._beside = beside
        self._samples: list[deque[tuple[int, float]]] = [deque(maxlen=DEPTH_SAMPLES) for _ in range(max_depth + 1)]
        self._timed: dict[int, _Own] = {}  # by depth
        self._table = [1 + FIRST_SLOPE * d for d in range(max_depth + 1)]
        self._table_of = 0  # rounds that were known when it was made

    @property
    def pace(self) -> float:
        """Seconds of a round of cost 1 at present; 0 before anything was timed."""
        return median_low(self._pace.recent) if self._pace.recent else 0.0

    @property
    def _own(self) -> dict[int, _Own]:
        """What was timed, by depth."""
        plain = self._beside._timed.get(0) if self._beside is not None else None
        return self._timed if plain is None else {0: plain, **self._timed}

    def is_known(self, depth: int) -> bool:
        """Whether this depth was timed often enough, and not too long ago."""
        own = self._own.get(depth)
        return own is not None and own.samples >= FEW and self._pace.rounds - own.at <= FRESH

    @property
    def deepest(self) -> int:
        """The largest depth that was timed."""
        return max(self._own, default=0)

    def relative(self, depth: int) -> float:
        """Cost of a round over that of a plain one."""
        if self._table_of != self._pace.rounds and self._own:
            self._table, self._table_of = self._interpolated(), self._pace.rounds
        return self._table[depth] / self._table[0]

    def begin_text(self) -> None:
        """Forget the pace: another text has another context, and the machine may be as busy as it likes by now."""
        self._pace.recent.clear()

    def observe(self, depth: int, seconds: float) -> None:
        """One round took so long."""
        if seconds <= 0:
            return
        rounds = self._pace.rounds = self._pace.rounds + 1
        pace = self.pace
        if not pace:  # nothing to compare with yet
            self._pace.recent.append(seconds / self._table[depth])
            return
        samples = self._samples[depth]
        samples.append((rounds, seconds / pace))
        fresh = [s for at, s in samples if rounds - at <= FRESH]
        counted = fresh if len(fresh) >= FEW else [s for _, s in samples][-FEW:]
        self._timed[depth] = _Own(median_low(counted), len(counted), rounds)
        self._pace.recent.append(seconds / self._timed[depth].cost)

    def _line(self) -> tuple[float, float]:
        """Plain cost and slope of the line through all depths, by number of samples; old ones count little."""
        points = [
            (d, own.cost, own.samples if self._pace.rounds - own.at <= FRESH else STALE) for d, own in self._own.items()
        ]
        weight = sum(n for *_, n in points)
        mean_depth = sum(d * n for d, _, n in points) / weight
        mean_cost = sum(cost * n for _, cost, n in points) / weight
        spread = sum(n * (d - mean_depth) ** 2 for d, _, n in points)
        if not spread:
            slope = FIRST_SLOPE * mean_cost / (1 + FIRST_SLOPE * mean_depth)
        else:
            slope = sum(n * (d - mean_depth) * (cost - mean_cost) for d, cost, n in points) / spread
        slope = max(0.0, slope)
        return mean_cost - slope * mean_depth, slope

    def _interpolated(self) -> list[float]:
        """What was never timed lies on a line between what was, and beyond that goes on as a draft costs on average."""
        base, slope = self._line()
        known = []
        for d, (cost, samples, at) in sorted(self._own.items()):
            n = samples if self._pace.rounds - at <= FRESH else STALE
            known.append((d, (n * cost + LINE_WEIGHT * max(0.2 * cost, base + slope * d)) / (n + LINE_WEIGHT)))
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
