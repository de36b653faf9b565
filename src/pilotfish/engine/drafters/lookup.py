"""Prompt look-up: proposes what followed the longest recent match of the newest tokens, in the prompt or the answer.

Needs no weights, so it drafts for any model; it pays where text is repeated: edits, quotations, refactorings. All of it
is on the device: a few comparisons a position of the text. (Prompt lookup decoding: Apoorv Saxena, 2023.)
"""

from __future__ import annotations

import math

import mlx.core as mx

from pilotfish.engine.drafters import Propose
from pilotfish.engine.state import DecodeState, Draft, Offer

LONGEST = 8  # tokens of a match that count; the longest wins, and among equals the newest


class PromptLookup:
    """The drafter. `vocab` is the target's."""

    reads_hidden, reads_text = False, True

    def __init__(self, max_depth: int, vocab: int) -> None:
        self.max_depth, self._vocab = max_depth, vocab

    def draft(self, state: DecodeState, depth: int, propose: Propose) -> Draft:
        """Ignores what `propose` would choose: there are no logits to choose from."""
        assert state.text is not None, "look-up needs the text in the state"
        tokens = continuation(state.text, state.length, depth)
        if not propose.wants_offers:
            return Draft(tokens)
        sure = mx.where(mx.arange(self._vocab) == tokens[..., None], 0.0, -math.inf)
        return Draft(tokens, tuple(Offer(sure[:, j : j + 1], None) for j in range(depth)))


def continuation(text: mx.array, newest: mx.array, depth: int) -> mx.array:
    """text (B, C) int32, of which row b is known up to newest[b] -> (B, depth) int32, what may come next.

    Where nothing matches, anything: the newest token again.
    """
    batch, capacity = text.shape
    places = mx.arange(capacity, dtype=mx.int32)
    newest = newest[:, None]
    matching = mx.ones((batch, capacity), dtype=mx.bool_)
    score = mx.zeros((batch, capacity), dtype=mx.int32)
    for back in range(LONGEST):
        wanted = mx.take_along_axis(text, mx.maximum(newest - back, 0), axis=1)
        nothing = mx.full((batch, back), -1, dtype=mx.int32)
        earlier = mx.concatenate([nothing, text[:, : capacity - back]], axis=1)
        matching = matching & (earlier == wanted) & (newest >= back)
        score = score + matching
    found = mx.where(places < newest, score * capacity + places, -1)
    best = mx.argmax(found, axis=1, keepdims=True).astype(mx.int32)
    best = mx.where(mx.take_along_axis(score, best, axis=1) > 0, best, newest - 1)
    # What follows a match near the end may run into the end: it is taken to go on with the same period.
    step = mx.arange(depth, dtype=mx.int32) % mx.maximum(newest - best, 1)
    return mx.take_along_axis(text, mx.clip(best + 1 + step, 0, capacity - 1), axis=1)
