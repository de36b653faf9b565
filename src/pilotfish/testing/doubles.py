"""Stand-ins for the drafter, the device and the clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from pilotfish.engine.decode import Device
from pilotfish.engine.drafters import Propose
from pilotfish.engine.state import Buffers, DecodeState, Draft, RoundResult


class ScriptedDrafter:
    """Proposes the known answer, right for as many drafts a round as a script says and wrong after that.

    answers: by row, the whole sequence (prompt and plain continuation) as token ids.
    right: how many leading drafts are right, by number of the round, counted from 0.
    """

    reads_hidden = True

    def __init__(self, answers: Sequence[Sequence[int]], right: Callable[[int], int], vocab_size: int,
                 max_depth: int = 16) -> None:  # fmt: skip
        longest = max(map(len, answers))
        self._answers = mx.array([[*a, *[0] * (longest - len(a))] for a in answers], dtype=mx.int32)
        self._right, self._vocab = right, vocab_size
        self.max_depth, self.rounds = max_depth, 0

    def draft(self, state: DecodeState, depth: int, propose: Propose) -> Draft:
        """Ignores `propose`: the script decides."""
        positions = state.length[:, None] + 1 + mx.arange(depth, dtype=mx.int32)
        inside = mx.minimum(positions, self._answers.shape[1] - 1)
        answers = mx.take_along_axis(self._answers, inside, axis=1)
        wrong = (answers + 1) % self._vocab
        tokens = mx.where(mx.arange(depth) < self._right(self.rounds), answers, wrong)
        self.rounds += 1
        return Draft(tokens)


class CountingDevice(Device):
    """Records every dispatch ("D"), read ("R") and prefill wait ("W") in order."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def dispatch(self, result: RoundResult, packed: mx.array) -> None:
        """Record and dispatch."""
        self.log.append("D")
        super().dispatch(result, packed)

    def read(self, packed: mx.array) -> list[list[int]]:
        """Record and read."""
        self.log.append("R")
        return super().read(packed)

    def wait(self, caches: Sequence[Buffers]) -> None:
        """Record and wait."""
        self.log.append("W")
        super().wait(caches)


class FakeClock:
    """A clock that moves only when told; each call returns the same time until `advance`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.now += seconds
