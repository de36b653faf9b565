"""The controller: the depth with the most expected tokens per second, now and then another one to look again.

Published points of comparison: Ollama's expected-value rule, GammaTune, BanditSpec, TapOut, SpecDec++. Like the first
it maximises expected tokens over cost; unlike it, costs share a pace, plain decoding is timed again, and a change in
the kind of text is noticed rather than averaged over.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from pilotfish.engine.depth.acceptance import Acceptance, AcceptanceMemory
from pilotfish.engine.depth.costs import Costs
from pilotfish.engine.depth.matches import MatchMemory
from pilotfish.engine.depth.policy import RoundSeen

log = logging.getLogger("pilotfish")

WARM_UP = 4  # rounds of a loaded model that are not timed
LOOK = 3  # rounds of a look: only a round that is followed by one of its depth can be timed
FIRST_LOOK = (2, 0, 4, 1, 3, 0)  # depths of the first rounds of a loaded model
FIRST_DEEPEST = max(FIRST_LOOK)
PLAIN_EVERY, PLAIN_AT_MOST = 24, 320  # rounds between looks at plain decoding, which cost their drafts
DEEPER_EVERY, DEEPER_AT_MOST = 24, 384  # rounds between looks one step deeper; doubled when it was not better
BACK_EVERY, BACK_AT_MOST = 28, 56  # the same for drafting again after it stopped
PROMISING = 0.97  # of plain decoding's speed, from which on a look that kept drafts is followed by more
SOON = 4  # the same where it drafts as deep as was ever timed, and would go deeper
PARK_AFTER = 8  # rounds at least between a change in the text and the end of drafting
SWITCH = 1.005  # another depth must promise so much more
NEVER_REACHED = 0.005  # a draft that is kept so rarely is not worth weighing
NOTHING_KEPT_AFTER = 64  # drafted rounds without one kept draft that are worth a word in the log


class Kind(NamedTuple):
    """Rounds that cost alike. rows: of the batch. awaited: whether the host reads each before the next one begins."""

    rows: int
    awaited: bool = False


class DepthMemory:
    """What a loaded model has shown, kept from request to request."""

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self.acceptance = AcceptanceMemory(max_depth)
        self.matches = MatchMemory()
        self._costs: dict[Kind, Costs] = {}
        self._lookup_costs: dict[Kind, Costs] = {}
        self.rounds = self.timed = self.since_plain = 0
        self.plain_every = PLAIN_EVERY
        self.rounds_with_nothing = 0
        self.warned = False

    def begin_text(self) -> None:
        """Another request begins."""
        for costs in self._costs.values():
            costs.begin_text()

    def costs(self, kind: Kind) -> Costs:
        """Of one kind of rounds."""
        if kind not in self._costs:
            self._costs[kind] = Costs(self.max_depth)
        return self._costs[kind]

    def lookup_costs(self, kind: Kind) -> Costs:
        """The same for rounds that look-up drafts."""
        if kind not in self._lookup_costs:
            self._lookup_costs[kind] = Costs(self.max_depth, beside=self.costs(kind))
        return self._lookup_costs[kind]


class AutoDepth:
    """Chooses for one sequence or batch. `max_depth` caps it below what the model allows; awaited: see `Kind`."""

    def __init__(self, memory: DepthMemory, max_depth: int | None = None, awaited: bool = False) -> None:
        self.memory = memory
        self.max_depth = memory.max_depth if max_depth is None else min(max_depth, memory.max_depth)
        self.best = min(2, self.max_depth)
        self._acceptance = Acceptance(memory.acceptance, memory.max_depth)
        self.kind = Kind(1, awaited)
        self._since_look = 0
        self._deeper_every, self._back_every = DEEPER_EVERY, BACK_EVERY
        self._probes: list[int] = []
        self._far, self._follow_ups = False, 0
        self._promise = 0.0  # expected speed of the best depth that drafts, over plain decoding's
        self.value = 1.0  # expected speed of `best`, over plain decoding's
        self._doubtful = 0  # rounds for which drafting goes on although the text seems to have changed
        memory.begin_text()
        self._choose()

    @property
    def parked(self) -> bool:
        """Whether drafting does not pay at present."""
        return self.best == 0

    @property
    def warming_up(self) -> bool:
        """Whether the first looks of the loaded model are not over yet."""
        return self.max_depth > 0 and self.memory.rounds < LOOK * len(FIRST_LOOK)

    def next_depth(self, rows: int) -> int:
        self.kind = self.kind._replace(rows=rows)
        memory = self.memory
        memory.rounds += 1
        if memory.rounds <= LOOK * len(FIRST_LOOK):
            return min(FIRST_LOOK[(memory.rounds - 1) // LOOK], self.max_depth)
        if self._probes:
            return self._probes.pop(0)
        memory.since_plain += 1
        self._since_look += 1
        if self.parked:
            if self._since_look >= self._back_every and self.max_depth:
                self._since_look, self._follow_ups = 0, 1
                self._back_every = min(2 * self._back_every, BACK_AT_MOST)
                # What one draft costs may have been timed in a bad moment: only a longer look can be timed again.
                self._probes = [1] * (0 if memory.costs(self.kind).is_known(1) else LOOK - 1)
                return 1
            return 0
        if memory.since_plain >= memory.plain_every:
            memory.since_plain, memory.plain_every = 0, min(2 * memory.plain_every, PLAIN_AT_MOST)
            self._probes = [0] * (LOOK - 1)
            return 0
        due = SOON if self.best >= memory.costs(self.kind).deepest else self._deeper_every
        if self._since_look >= due and self.best < self.max_depth:
            self._since_look = 0
            self._deeper_every = min(2 * self._deeper_every, DEEPER_AT_MOST)
            deeper = self._deeper()
            self._probes = [deeper] * (0 if memory.costs(self.kind).is_known(deeper) else LOOK - 1)
            return deeper
        return self.best

    def _deeper(self) -> int:
        """Where to look: one deeper, or in turn at twice the depth where drafts are kept so often that it might pay."""
        p, far = self._acceptance.probabilities(), min(2 * self.best, self.max_depth)
        reached, near_tokens, tokens = 1.0, 0.0, 1.0
        for depth in range(1, far + 1):
            reached *= p[depth - 1]
            tokens += reached
            near_tokens = tokens if depth <= self.best else near_tokens
        unknown = self.best >= self.memory.costs(self.kind).deepest
        self._far = (unknown or not self._far) and tokens > 1.1 * near_tokens
        return far if self._far else self.best + 1

    def observe(self, seen: RoundSeen) -> None:
        self.memory.timed += seen.seconds is not None
        if seen.seconds is not None and self.memory.timed > WARM_UP:
            self.memory.costs(self.kind._replace(rows=seen.rows)).observe(seen.depth, seen.seconds)
        if seen.depth == 0:
            self._choose()
            return
        changed = self._acceptance.observe(seen.depth, seen.kept)
        self._doubtful = PARK_AFTER if changed and self.best else max(0, self._doubtful - 1)
        anything = any(row.accepted for row in seen.kept)
        self._note(anything)
        before = self.best
        self._choose()
        if changed or self.best > before:
            self._deeper_every, self._back_every = DEEPER_EVERY, BACK_EVERY
        if before == 0 and anything and not self._probes and (self._promise > PROMISING or self._follow_ups):
            self._probes = [1] * LOOK  # it may pay again: look more closely
            self._follow_ups -= 1

    def _choose(self) -> None:
        costs, p = self.memory.costs(self.kind), self._acceptance.probabilities()
        best, most = 0, 1.0
        reached, tokens, current = 1.0, 1.0, 1.0 if self.parked else 0.0
        self._promise = 0.0
        # Beyond what was timed costs may jump (a second tile of rows): a look goes there first.
        for depth in range(1, min(self.max_depth, max(costs.deepest, FIRST_DEEPEST)) + 1):
            reached *= p[depth - 1]
            if reached < NEVER_REACHED:
                break
            tokens += reached
            value = tokens / costs.relative(depth)
            self._promise = max(self._promise, value)
            if depth == self.best:
                current = value
            if value > most:
                best, most = depth, value
        self.value = most
        if best == 0 and self._doubtful > 0:
            best = 1  # a few refusals in a row are no reason to stop
        elif best != self.best and most <= SWITCH * current:
            return
        self.best = min(best, self.max_depth)

    def _note(self, anything: bool) -> None:
        memory = self.memory
        memory.rounds_with_nothing = 0 if anything else memory.rounds_with_nothing + 1
        if memory.rounds_with_nothing >= NOTHING_KEPT_AFTER and not memory.warned:
            memory.warned = True
            log.warning(
                "drafting is on, but none of the drafts of %d rounds was accepted: decoding plainly, with a look now "
                "and then; is this the drafter that belongs to the model?", memory.rounds_with_nothing,
            )  # fmt: skip
