"""Full attention in one buffer: slot p holds position p; it grows in steps, and what is not committed is not seen.

Each write copies the buffer while a round is in flight. It is what mlx-lm's models can read, and the form for devices
whose attention cannot read a tail (see `tailed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask

from pilotfish.engine.caches.base import GROWTH, AttentionSpec, View, concatenated, empty, padded
from pilotfish.engine.state import Buffers
from pilotfish.kernels.operations import Operations, Runs
from pilotfish.kernels.stock import visible


@dataclass(frozen=True)
class FullSpec(AttentionSpec):
    """Keys and values of all positions, in order."""

    operations: Operations

    def decode_view(self, buffers: Buffers, length: mx.array) -> View:
        return _DecodeView(self.operations, buffers, length)

    def prefill_view(self, buffers: Buffers, length: int) -> View:
        return FullPrefillView(self.operations, buffers, length)

    def with_capacity(self, buffers: Buffers, tokens: int) -> Buffers:
        return tuple(padded(b, grown(b.shape[2], tokens)) for b in buffers)

    def join(self, parts: Sequence[Buffers], lengths: Sequence[mx.array]) -> Buffers:
        return concatenated(parts)


def grown(slots: int, tokens: int) -> int:
    """Slots of a buffer that must hold `tokens`: as they are, or a quarter more than they were, in whole steps."""
    return slots if tokens <= slots else -(-max(tokens, slots * 5 // 4) // GROWTH) * GROWTH


class _DecodeView:
    def __init__(self, operations: Operations, buffers: Buffers, length: mx.array) -> None:
        self.operations, self.buffers, self.offset = operations, buffers, length

    @property
    def positions(self) -> mx.array:
        return self.offset

    def update(self, keys: mx.array, values: mx.array) -> None:
        old = self.buffers or empty(keys, values, max(GROWTH, keys.shape[2]))
        self.buffers = self.operations.write(old[0], old[1], keys, values, self.offset)

    def attend(self, queries: mx.array, scale: float) -> mx.array:
        keys, values = self.buffers
        return self.operations.attention(queries, Runs((keys,), (values,)), self.offset, None, scale)

    def make_mask(self, rows: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        slots = self.buffers[0].shape[2] if self.buffers else max(GROWTH, rows)
        return visible(mx.arange(slots, dtype=mx.int32), self.offset, rows, window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.update(keys, values)
        return self.buffers[0], self.buffers[1]


class FullPrefillView:
    """A chunk of one sequence, written after what is there."""

    def __init__(self, operations: Operations, buffers: Buffers, length: int) -> None:
        self.operations, self.buffers, self.offset = operations, buffers, length

    @property
    def positions(self) -> mx.array:
        return mx.array([self.offset], dtype=mx.int32)

    def update(self, keys: mx.array, values: mx.array) -> None:
        old = self.buffers or empty(keys, values, 0)
        slots = grown(old[0].shape[2], self.offset + keys.shape[2])
        start = mx.array([self.offset])  # a new array, not an assignment into one that an older state may hold
        self.buffers = tuple(
            mx.slice_update(padded(buffer, slots), new.astype(buffer.dtype), start, axes=[2])
            for buffer, new in zip(old, (keys, values), strict=True)
        )

    def attend(self, queries: mx.array, scale: float) -> mx.array:
        keys, values = self.buffers
        return self.operations.attention(queries, Runs((keys,), (values,)), self.positions, None, scale)

    def make_mask(self, rows: int, return_array: bool = False, window_size: int | None = None) -> Any:
        if return_array or window_size is not None:
            return create_causal_mask(rows, self.offset, window_size=window_size)
        return "causal"

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.update(keys, values)
        end = self.offset + keys.shape[2]
        return self.buffers[0][..., :end, :], self.buffers[1][..., :end, :]
