"""A round under a grammar: drafts are read once, so that every row of the verify pass can be masked.

Its graph, masks aside, is built while the round before it is computed; the grammar is asked for the rows' masks while
the device verifies. A forbidden draft is never what the target chooses, so it is refused like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from pilotfish.engine.constraints import Constraint
from pilotfish.engine.round import RoundParts, Verified, draft_round, judge_round, verify_round
from pilotfish.engine.state import DecodeState, Draft, RoundResult


class Ready(NamedTuple):
    """A draft and its verification, not yet computed.

    first: (1, 1, words) int32, the mask of a drafter's first draft, to be filled in; None where drafts are known.
    known: those drafts.
    """

    state: DecodeState
    draft: Draft
    verified: Verified
    first: mx.array | None
    known: list[int]


def prepare(parts: RoundParts, state: DecodeState, depth: int) -> Ready:
    """A round whose `depth` drafts the drafter makes."""
    if not depth:
        return prepare_known(parts, state, [])
    words = (parts.target.vocab_size + 31) // 32
    first = mx.array(np.zeros((1, 1, words), dtype=np.int32))  # has its memory at once, without waiting for the device
    draft = draft_round(parts, state, depth, first)
    return Ready(state, draft, verify_round(parts, state, draft), first, [])


def prepare_known(parts: RoundParts, state: DecodeState, drafts: Sequence[int]) -> Ready:
    """A round whose drafts are known already."""
    draft = Draft(mx.array([drafts], dtype=mx.int32).reshape(1, len(drafts)))
    return Ready(state, draft, verify_round(parts, state, draft), None, list(drafts))


def run(
    parts: RoundParts, ready: Ready, constraint: Constraint, start: Callable[[Sequence[mx.array]], None],
    read: Callable[[mx.array], list[list[int]]],
) -> RoundResult:  # fmt: skip
    """Compute a round up to its verification, and the rest lazily."""
    draft, verified, drafts = ready.draft, ready.verified, ready.known
    if ready.first is not None:
        # Nothing has been computed from it yet: a view of an array's memory may still be written to.
        np.array(ready.first, copy=False)[0] = constraint.masks([])
        start([draft.tokens])
    start([verified.logits, verified.hidden, *(b for buffers in verified.caches for b in buffers)])
    if ready.first is not None:
        (drafts,) = read(draft.tokens)
    return judge_round(parts, ready.state, draft, verified, mx.array(constraint.masks(drafts))[None])
