"""How likely drafts are kept, by position, given that those before were."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pilotfish.engine.depth.policy import Kept

FIRST_GUESS = 0.7
PRIOR_WEIGHT = 4.0  # observations that what earlier requests showed is worth
POOLED_WEIGHT = 6.0
SMOOTH = 2.0  # as expected: three refusals are no proof that nothing will ever be kept
SLOW, FAST, MEMORY = 0.98, 0.85, 0.999  # what is kept of old counts at each observation
SURPRISE, MANY = 3.7, 2.3  # standard deviations, and drafts, that fast and slow counts must lie apart to mean a change


class AcceptanceMemory:
    """What earlier requests of a loaded model showed: where the next one starts."""

    def __init__(self, max_depth: int) -> None:
        self._kept, self._seen = [0.0] * max_depth, [0.0] * max_depth

    def observe(self, position: int, kept: bool) -> None:
        self._kept[position] = MEMORY * self._kept[position] + kept
        self._seen[position] = MEMORY * self._seen[position] + 1

    def probabilities(self) -> list[float]:
        """By position; one that was hardly ever reached is taken to be as the one before it."""
        out: list[float] = []
        for kept, seen in zip(self._kept, self._seen, strict=True):
            before = out[-1] if out else FIRST_GUESS
            out.append((kept + 4 * before) / (seen + 4))
        return out


class Acceptance:
    """Of one request: slow counts that are accurate, and fast ones that notice when the text changes its kind."""

    def __init__(self, memory: AcceptanceMemory, max_depth: int) -> None:
        self._memory = memory
        self._set_prior(memory.probabilities())
        self._kept, self._seen = [0.0] * max_depth, [0.0] * max_depth
        self._fast_kept = self._fast_seen = 0.0
        self._expected = self._variance = 0.0  # of the fast count, by the slow ones
        self._table: list[float] | None = None

    def observe(self, depth: int, kept: Sequence[Kept]) -> bool:
        """Count a round's drafts; True where the text has changed its kind and the counts began anew."""
        changed = False
        for row in kept:
            for position in range(min(row.accepted + row.judged, depth)):
                changed |= self._count(position, position < row.accepted)
        self._table = None
        return changed

    def _count(self, position: int, kept: bool) -> bool:
        p = self.probabilities()[position]
        self._memory.observe(position, kept)
        self._expected = FAST * self._expected + p
        self._variance = FAST * FAST * self._variance + p * (1 - p) + 0.01
        self._fast_kept, self._fast_seen = FAST * self._fast_kept + kept, FAST * self._fast_seen + 1
        self._kept[position] = SLOW * self._kept[position] + kept
        self._seen[position] = SLOW * self._seen[position] + 1
        if abs(self._fast_kept - self._expected) < max(SURPRISE * math.sqrt(self._variance), MANY):
            return False
        self._restart()
        return True

    def _set_prior(self, prior: list[float]) -> None:
        self._prior = prior
        self._odds = [math.exp(-_logit(p)) for p in prior]  # against being kept

    def _restart(self) -> None:
        """Another kind of text: what was known by position is shifted to what the last few drafts show."""
        shift = _logit((self._fast_kept + 1) / (self._fast_seen + 2)) - _logit(self._expected / self._fast_seen)
        self._set_prior([_shifted(p, shift) for p in self.probabilities()])
        self._kept, self._seen = [0.0] * len(self._prior), [0.0] * len(self._prior)
        self._fast_kept = self._fast_seen = self._expected = self._variance = 0.0
        self._table = None

    def probabilities(self) -> list[float]:
        """By position. Positions that were hardly reached follow those that were: if drafts are kept more often than
        earlier requests made expect, so will the deeper ones be."""
        if self._table is None:
            seen = sum(self._seen)
            shift = 0.0
            if seen:
                expected = sum(n * p for n, p in zip(self._seen, self._prior, strict=True)) / seen
                shown = (sum(self._kept) + SMOOTH * expected) / (seen + SMOOTH)
                shift = (_logit(shown) - _logit(expected)) * seen / (seen + POOLED_WEIGHT)
            by = math.exp(-shift)
            self._table = [
                (kept + PRIOR_WEIGHT / (1 + odds * by)) / (n + PRIOR_WEIGHT)
                for kept, n, odds in zip(self._kept, self._seen, self._odds, strict=True)
            ]
        return self._table


def _logit(p: float) -> float:
    p = min(0.995, max(0.005, p))
    return math.log(p / (1 - p))


def _shifted(p: float, by: float) -> float:
    return 1 / (1 + math.exp(-_logit(p) - by))
