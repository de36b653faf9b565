"""How often a match in the text holds for one token more, by its length."""

from __future__ import annotations

LONGEST = 16  # tokens of a match that are counted
SLOW, MEMORY = 0.98, 0.999  # what is kept of old counts at each token, of a request and of a loaded model
PRIOR_WEIGHT = 6.0


class MatchMemory:
    """How often matches held, by length: of a loaded model, or (with `prior`) of one request."""

    def __init__(self, prior: MatchMemory | None = None) -> None:
        self._prior, self._keep = prior, MEMORY if prior is None else SLOW
        self._held, self._seen = [0.0] * (LONGEST + 1), [0.0] * (LONGEST + 1)

    def observe(self, match: int, held: bool) -> None:
        self._held[match] = self._keep * self._held[match] + held
        self._seen[match] = self._keep * self._seen[match] + 1
        if self._prior is not None:
            self._prior.observe(match, held)

    def probability(self, match: int) -> float:
        """That a match of so many tokens (capped) holds for one more."""
        match = min(match, LONGEST)
        # Short matches are chance, long ones are copies.
        before = 1 - 0.9 / max(match, 1) ** 0.7 if self._prior is None else self._prior.probability(match)
        return (self._held[match] + PRIOR_WEIGHT * before) / (self._seen[match] + PRIOR_WEIGHT)
