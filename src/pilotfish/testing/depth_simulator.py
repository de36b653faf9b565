"""Policies for draft depth against synthetic texts and machines: no model, millions of rounds, fixed seeds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from pilotfish.engine.depth import DepthPolicy, Kept, RoundSeen

Cost = Callable[[int, int], float]
"""(depth, context) -> relative seconds of a round."""
Text = Callable[[int, int], float]
"""(token index, position in the draft) -> probability that the draft is kept, given those before it."""


COSTS: dict[str, Cost] = {
    "flat": lambda d, c: 1 + 0.02 * d,
    "linear": lambda d, c: 1 + 0.12 * d,
    "steep": lambda d, c: 1 + 0.5 * d,
    "steps": lambda d, c: 1 + 0.05 * d + (0.6 if d > 4 else 0),
    "context": lambda d, c: (1 + c / 4000) * (1 + 0.05 * d) + 0.1 * d * c / 2000,
}


def _always(p: float) -> Text:
    return lambda t, i: p


STEADY: dict[str, Text] = {
    **{f"p={p}": _always(p) for p in (0.0, 0.2, 0.5, 0.8, 0.98)},
    "fading": lambda t, i: 0.9 * 0.8**i,
    "rising": lambda t, i: min(0.95, 0.6 + 0.1 * i),
}
SWITCHING: dict[str, Text] = {
    "code-prose-code": lambda t, i: 0.88 if t // 600 % 2 == 0 else 0.35,
    "adversarial": lambda t, i: 0.95 if t // 150 % 2 == 0 else 0.05,
}
TEXTS = {**STEADY, **SWITCHING}


@dataclass(frozen=True)
class Machine:
    """What rounds cost. noise: relative standard deviation; stall: probability that a round takes ten times as long."""

    cost: Cost
    noise: float = 0.05
    stall: float = 0.0


@dataclass
class Run:
    """What a policy made of it. depths: of every round."""

    tokens: int
    seconds: float
    depths: list[int]

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def simulate(
    policy: DepthPolicy,
    machine: Machine,
    text: Text,
    tokens: int,
    seed: int,
    start: int = 200,
    every_time: bool = False,
) -> Run:
    """Decode `tokens` tokens; a round is observed after the next one was chosen, as in the decode loop.

    Stalls cost the run nothing but mislead the policy, so that runs compare. every_time: rounds followed by one of
    another depth are timed as well, which the loop cannot do.
    """
    chance = random.Random(seed)
    made, seconds, depths = 0, 0.0, []
    waiting: list[RoundSeen] = []
    while made < tokens:
        depth = policy.next_depth(1)
        kept = 0
        while kept < depth and chance.random() < text(made, kept):
            kept += 1
        true = machine.cost(depth, start + made)
        shown = true * max(0.3, chance.gauss(1, machine.noise)) * (10 if chance.random() < machine.stall else 1)
        if waiting:  # timed only if the round behind it is of the same depth, as in the loop
            seen = waiting.pop()
            known = every_time or seen.depth == depth
            policy.observe(seen if known else replace(seen, seconds=None))
        waiting.append(RoundSeen(depth, 1, [Kept(kept, kept < depth)], shown))
        made += kept + 1
        seconds += true
        depths.append(depth)
    return Run(made, seconds, depths)


class ExpectedValueRule:
    """The rule that Ollama documents, for comparison: expected tokens over cost, from running means.

    Acceptance by position is a running mean of rate 0.1, trusted after 10 samples; cost by depth one of rate 0.3, each
    sample clamped to a quarter of the mean; it looks one deeper every 4 rounds, backing off by doubling; plain decoding
    is timed once and never again.
    """

    def __init__(self, max_depth: int) -> None:
        self.max_depth, self.depth = max_depth, 1
        self._rates, self._samples = [0.0] * max_depth, [0] * max_depth
        self._costs: dict[int, float] = {}
        self._every = self._wait = 4
        self._started = False

    def next_depth(self, rows: int) -> int:
        """As the rule has it."""
        if not self._started:
            self._started = True
            return 0
        self._wait -= 1
        if self._wait <= 0 and self.depth < self.max_depth:
            self._wait = self._every
            self._every = min(2 * self._every, 1024)
            return self.depth + 1
        return self.depth

    def observe(self, seen: RoundSeen) -> None:
        """Running means, then the best depth among those that are known."""
        if seen.seconds is not None:
            self._time(seen.depth, seen.seconds)
        for row in seen.kept:
            for i in range(min(row.accepted + row.judged, seen.depth)):
                self._samples[i] += 1
                rate = max(0.1, 1 / self._samples[i])
                self._rates[i] += rate * ((i < row.accepted) - self._rates[i])
        before = self.depth
        self.depth = max(self._costs, key=self._value, default=before)
        if self.depth != before:
            self._every = 4

    def _time(self, depth: int, seconds: float) -> None:
        if depth not in self._costs:
            self._costs[depth] = seconds
        elif depth:
            mean = self._costs[depth]
            self._costs[depth] = mean + 0.3 * (min(1.25 * mean, max(0.75 * mean, seconds)) - mean)

    def _value(self, depth: int) -> float:
        reached, tokens = 1.0, 1.0
        for i in range(depth):
            trusted = self._samples[i] >= 10
            reached *= self._rates[i] if trusted else max(self._rates[i], 0.5)
            tokens += reached
        return tokens / self._costs[depth]
