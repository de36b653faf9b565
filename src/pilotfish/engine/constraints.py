"""Which tokens may follow: what a grammar tells the decode loop.

A grammar lives on the host, so a constrained round reads its drafts back once (`engine/constrained.py`): row i is
masked by the grammar's state after drafts[:i], as plain decoding would mask it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Constraint(Protocol):
    """The state of one sequence's grammar, after its committed tokens."""

    def forced(self, most: int) -> list[int]:
        """Up to `most` tokens that the grammar all but dictates next: good drafts that need no drafter."""

    def masks(self, drafts: Sequence[int]) -> Any:
        """What may follow the committed tokens, and each draft after those before it; the state stays as it is.

        int32 words (len(drafts) + 1, words) in a numpy array, where bit t % 32 of word t // 32 says whether token t may
        come. Rows after a draft that may not come mean nothing.
        """

    def commit(self, tokens: Sequence[int]) -> None:
        """Tokens are final."""
