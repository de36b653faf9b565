"""Rows of a batch: joining sequences, keeping some of them.

Buffers are copied, so this is done when rows come and go, never per round.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from pilotfish.engine.caches import CacheSpec
from pilotfish.engine.state import DecodeState, Past


def join(specs: Sequence[CacheSpec], states: Sequence[DecodeState]) -> DecodeState:
    """One state of B rows from states of any number of rows; full-attention buffers are padded to the longest."""
    if len(states) == 1:
        return states[0]
    lengths = [s.length for s in states]
    caches = tuple(spec.join([s.caches[i] for s in states], lengths) for i, spec in enumerate(specs))
    pasts = [s.past for s in states if s.past is not None]  # of one width: one `Processors` made them
    return DecodeState(
        length=mx.concatenate([s.length for s in states]),
        token=mx.concatenate([s.token for s in states]),
        hidden=mx.concatenate([s.hidden for s in states]),
        caches=caches,
        past=Past(mx.concatenate([p.tokens for p in pasts]), mx.concatenate([p.open for p in pasts]))
        if len(pasts) == len(states)
        else None,
    )


def select(state: DecodeState, rows: Sequence[int]) -> DecodeState:
    """The state of some rows, in the order given."""
    index = mx.array(list(rows), dtype=mx.int32)
    return DecodeState(
        length=state.length[index],
        token=state.token[index],
        hidden=state.hidden[index],
        caches=tuple(tuple(b[index] for b in buffers) for buffers in state.caches),
        past=None if state.past is None else Past(*(a[index] for a in state.past)),
    )
