"""A round under a grammar: drafts are read once, so that every row of the verify pass can be masked.

Its whole graph is built ahead, while the round before it is computed, over masks that are filled in when they are
known: that of the first draft before drafting begins, those of the rows while the device verifies. A forbidden draft is
never what the target chooses, so it is refused like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from pilotfish.engine.constraints import Constraint
from pilotfish.engine.round import RoundParts, Verified, draft_round, judge_round, verify_round
from pilotfish.engine.state import DecodeState, Draft, RoundResult

Start = Callable[[Sequence[mx.array]], None]
Read = Callable[[mx.array], list[list[int]]]


class Ready(NamedTuple):
    """A round that is built and not yet computed.

    known: its drafts, where no drafter makes them. first: the mask of the drafter's first draft, (1, 1, words) int32,
    or None. bits: the masks of the rows, (1, depth + 1, words) int32.
    """

    depth: int
    draft: Draft
    verified: Verified
    result: RoundResult
    known: list[int]
    first: mx.array | None
    bits: mx.array


def prepare(parts: RoundParts, state: DecodeState, depth: int) -> Ready:
    """A round whose `depth` drafts the drafter makes."""
    first = _to_be_filled(parts, 1) if depth else None
    draft = draft_round(parts, state, depth, first)
    return _ready(parts, state, draft, [], first)


def prepare_known(parts: RoundParts, state: DecodeState, drafts: Sequence[int]) -> Ready:
    """A round whose drafts are known already."""
    draft = Draft(mx.array([drafts], dtype=mx.int32))
    return _ready(parts, state, draft, list(drafts), None)


def begin(ready: Ready, constraint: Constraint, start: Start) -> None:
    """Start drafting and verification."""
    if ready.first is not None:
        _fill(ready.first, constraint.masks([]))
        start([ready.draft.tokens])
    start([ready.verified.logits, ready.verified.hidden, *(b for bs in ready.verified.caches for b in bs)])


def finish(ready: Ready, constraint: Constraint, read: Read) -> None:
    """Read the drafts and fill in the masks, after which the rest of the round can be computed."""
    drafts = ready.known
    if ready.first is not None:
        (drafts,) = read(ready.draft.tokens)
    _fill(ready.bits, constraint.masks(drafts))


def _ready(parts: RoundParts, state: DecodeState, draft: Draft, known: list[int], first: mx.array | None) -> Ready:
    depth = int(draft.tokens.shape[1])
    bits = _to_be_filled(parts, depth + 1)
    verified = verify_round(parts, state, draft)
    return Ready(depth, draft, verified, judge_round(parts, state, draft, verified, bits), known, first, bits)


def _to_be_filled(parts: RoundParts, rows: int) -> mx.array:
    """An array that has its memory at once, without waiting for the device."""
    return mx.array(np.zeros((1, rows, (parts.target.vocab_size + 31) // 32), dtype=np.int32))


def _fill(array: mx.array, rows: Any) -> None:
    """Write through a view; nothing has been computed from the array yet."""
    np.array(array, copy=False)[0] = rows
