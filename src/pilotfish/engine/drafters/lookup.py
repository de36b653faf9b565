"""Prompt look-up: proposes what followed an earlier occurrence of the newest tokens, in the prompt or the answer.

Needs no weights, so it drafts for any model; it pays where text is repeated: edits, quotations, refactorings. The match
is found on the host in tokens that were read, so it is a round old; on the device the drafts begin after what the round
in flight commits, and are wrong where that one left the match. (Prompt lookup decoding: Apoorv Saxena, 2023.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx

from pilotfish.engine.depth import LookupPolicy
from pilotfish.engine.depth.matches import LONGEST
from pilotfish.engine.state import Draft, Offer

SIZES = (5, 2, 1)  # tokens that begin a match, the longest first; it is followed for as long as it holds


class TextIndex:
    """The tokens of one sequence, and where the newest of them stood before.

    match: how many of the newest tokens, up to LONGEST, stand before the continuation as well; 0 where nothing does.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens, self.match, self._place = list(tokens[:-1]), 0, 0
        self._latest = [self._places(size) for size in SIZES]
        for token in tokens[-1:]:
            self.add(token)

    def add(self, token: int) -> bool | None:
        """One more token; whether it is the one that the match foretold, None where there was no match."""
        foretold = None if not self.match else self.tokens[self._place] == token
        self.tokens.append(token)
        if foretold:
            self.match, self._place = min(self.match + 1, LONGEST), self._place + 1
        else:
            self._find()
        for size, latest in zip(SIZES, self._latest, strict=True):
            latest[tuple(self.tokens[-size:])] = len(self.tokens)
        return foretold

    def continuation(self, count: int) -> list[int]:
        """`count` tokens after the match; one that reaches the end goes on with the same period."""
        period = len(self.tokens) - self._place
        if not self.match or period <= 0:
            return self.tokens[-1:] * count
        return [self.tokens[self._place + i % period] for i in range(count)]

    def _places(self, size: int) -> dict[tuple[int, ...], int]:
        """After which token each run of `size` tokens ended last."""
        runs = zip(*(self.tokens[i:] for i in range(size)), strict=False)
        return dict(zip(runs, range(size, len(self.tokens) + 1), strict=False))

    def _find(self) -> None:
        for size, latest in zip(SIZES, self._latest, strict=True):
            place = latest.get(tuple(self.tokens[-size:]))
            if place is not None:
                self._place, self.match = place, self._length(place)
                return
        self.match = 0

    def _length(self, place: int) -> int:
        tokens, newest, most = self.tokens, len(self.tokens), min(place, LONGEST)
        return next((n for n in range(most) if tokens[place - 1 - n] != tokens[newest - 1 - n]), most)


class PromptLookup:
    """Look-up for the rows of a batch: their texts so far, and the policy that says when to draft from them."""

    def __init__(self, texts: Sequence[Sequence[int]], policy: LookupPolicy) -> None:
        self.rows, self.policy = [TextIndex(t) for t in texts], policy

    def next_depth(self, ahead: float) -> int:
        """Drafts for the next round; 0 leaves it to others. ahead: tokens a row expected of rounds in flight."""
        return self.policy.next_depth([row.match for row in self.rows], ahead)

    def add(self, row: int, tokens: Sequence[int]) -> None:
        """Tokens of a row were read."""
        index = self.rows[row]
        for token in tokens:
            match = index.match
            foretold = index.add(token)
            if foretold is not None:
                self.policy.saw_token(match, foretold)

    def select(self, rows: Sequence[int]) -> None:
        """Keep some rows."""
        self.rows = [self.rows[i] for i in rows]

    def draft(self, length: mx.array, depth: int, most_ahead: int, vocab: int | None) -> Draft:
        """`depth` tokens a row after the newest committed ones, lazily.

        length: (B,) int32, of the state. most_ahead: tokens that rounds in flight may bring. vocab: its size where the
        acceptance rule wants to know what drafts were drawn from, else None.
        """
        follow = mx.array([row.continuation(most_ahead + depth) for row in self.rows], dtype=mx.int32)
        known = mx.array([len(row.tokens) for row in self.rows], dtype=mx.int32)
        at = (length + 1 - known)[:, None] + mx.arange(depth, dtype=mx.int32)
        tokens = mx.take_along_axis(follow, at, axis=1)
        if vocab is None:
            return Draft(tokens)
        sure = mx.where(mx.arange(vocab) == tokens[..., None], 0.0, -math.inf)
        return Draft(tokens, tuple(Offer(sure[:, j : j + 1], None) for j in range(depth)))
