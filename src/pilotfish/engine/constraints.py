"""Which tokens may follow: what a grammar tells the decode loop.

A grammar lives on the host, so a constrained round reads its drafts back once, before verification: row i is masked
by the grammar's state after drafts[:i], as plain decoding would mask it. Forbidden drafts are cut off there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Constraint(Protocol):
    """The state of one sequence's grammar, after its committed tokens."""

    def forced(self, most: int) -> list[int]:
        """Up to `most` tokens that the grammar all but dictates next: good drafts that need no drafter."""

    def masks(self, drafts: Sequence[int]) -> tuple[Any, int]:
        """What may follow the committed tokens, and each draft after those before it; the state stays as it is.

        int32 words (rows, words) in a numpy array, where bit t % 32 of word t // 32 says whether token t may come, and
        how many leading drafts may: there is one row more.
        """

    def commit(self, tokens: Sequence[int]) -> None:
        """Tokens are final."""
