"""What the host knows of the sequences that are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pilotfish.engine.logprobs import TokenLogprob
from pilotfish.engine.state import DecodeState


@dataclass
class Counts:
    """Totals over the rounds that were read. `accepted_at[i]` counts rounds that kept draft i; `depths`: of each."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)
    drafted_at: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    plain_seconds: float = 0.0  # of plain rounds
    looked_up: int = 0  # of those accepted, the drafts that look-up made

    def add(self, depth: int, accepted: int, by_lookup: bool) -> None:
        self.rounds += 1
        self.depths.append(depth)
        self.drafted += depth
        self.accepted += accepted
        self.looked_up += accepted if by_lookup else 0
        missing = [0] * (depth - len(self.drafted_at))
        self.drafted_at += missing
        self.accepted_at += missing
        for i in range(depth):
            self.drafted_at[i] += 1
            self.accepted_at[i] += i < accepted


@dataclass
class Row:
    """What the host knows of one sequence."""

    prompt_length: int
    max_tokens: int
    eos: frozenset[int] = frozenset()
    tokens: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the tokens, where they were asked for
    counts: Counts = field(default_factory=Counts)
    finish_reason: str | None = None  # "stop" or "length"
    final_state: DecodeState | None = None  # once finished; its `hidden` belongs to a later token and means nothing

    @property
    def length(self) -> int:
        """Tokens with keys and values; the newest token has none, in plain decoding as in drafted."""
        return self.prompt_length + len(self.tokens) - 1

    def take(self, tokens: Sequence[int], accepted: int) -> int:
        """Append what a round committed, up to an end of text or the budget; returns how many were taken."""
        for j, token in enumerate(tokens[: accepted + 1]):
            self.tokens.append(token)
            self.drafted.append(j < accepted)
            if token in self.eos:
                self.finish_reason = "stop"
            elif len(self.tokens) >= self.max_tokens:
                self.finish_reason = "length"
            if self.finish_reason:
                return j + 1
        return accepted + 1


class Committed(NamedTuple):
    """Tokens that one round added to one row."""

    row: Row
    tokens: list[int]
    drafted: list[bool]
    logprobs: list[TokenLogprob]  # empty unless asked for
