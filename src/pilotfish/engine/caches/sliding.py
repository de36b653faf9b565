"""Sliding attention: a ring in which position p lies in slot p % capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask

from pilotfish.engine.caches.base import AttentionSpec, View, concatenated, empty
from pilotfish.engine.state import Buffers
from pilotfish.kernels.operations import Operations, Runs
from pilotfish.kernels.stock import ring_positions, visible


@dataclass(frozen=True)
class SlidingSpec(AttentionSpec):
    """The newest `window` positions.

    `slack` slots beyond the window take the rows of two rounds (one in flight, one being dispatched), so a
    speculative write only lands on slots that no row of its pass, or of a pass after a rejection, can see.
    """

    operations: Operations
    window: int
    slack: int

    can_cut = False

    @property
    def capacity(self) -> int:
        return self.window + self.slack

    def decode_view(self, buffers: Buffers, length: mx.array) -> View:
        return _RingView(self, buffers, length)

    def prefill_view(self, buffers: Buffers, length: int) -> View:
        return _RingPrefillView(self, buffers, length)

    def join(self, parts: Sequence[Buffers], lengths: Sequence[mx.array]) -> Buffers:
        return concatenated(parts)


class _RingView:
    def __init__(self, spec: SlidingSpec, buffers: Buffers, length: mx.array) -> None:
        self.spec, self.buffers, self.offset = spec, buffers, length

    @property
    def positions(self) -> mx.array:
        return self.offset

    def update(self, keys: mx.array, values: mx.array) -> None:
        old = self.buffers or empty(keys, values, self.spec.capacity)
        self.buffers = self.spec.operations.write(old[0], old[1], keys, values, self.offset, ring=self.spec.capacity)

    def attend(self, queries: mx.array, scale: float) -> mx.array:
        runs = Runs((self.buffers[0],), (self.buffers[1],), ring=True)
        return self.spec.operations.attention(queries, runs, self.offset, self.spec.window, scale)

    def make_mask(self, rows: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        positions = ring_positions(self.offset, rows, self.spec.capacity)
        return visible(positions, self.offset, rows, self.spec.window)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.update(keys, values)
        return self.buffers[0], self.buffers[1]


class _RingPrefillView:
    """Attends over (kept window + chunk) in order of position, then stores the newest positions in the ring."""

    def __init__(self, spec: SlidingSpec, buffers: Buffers, length: int) -> None:
        self.spec, self.buffers, self.offset = spec, buffers, length
        self.kept = min(length, spec.window - 1)
        self.seen: Buffers = ()

    @property
    def positions(self) -> mx.array:
        return mx.array([self.offset], dtype=mx.int32)

    def update(self, keys: mx.array, values: mx.array) -> None:
        capacity, rows = self.spec.capacity, keys.shape[2]
        old = self.buffers or empty(keys, values, capacity)
        kept = mx.arange(self.offset - self.kept, self.offset, dtype=mx.int32) % capacity
        self.seen = tuple(
            mx.concatenate([mx.take(buffer, kept, axis=2), new.astype(buffer.dtype)], axis=2)
            for buffer, new in zip(old, (keys, values), strict=True)
        )
        stored = min(rows, capacity)
        newest = mx.array([self.offset + rows - stored], dtype=mx.int32)
        self.buffers = self.spec.operations.write(
            old[0], old[1], keys[:, :, rows - stored :], values[:, :, rows - stored :], newest, ring=capacity
        )

    def attend(self, queries: mx.array, scale: float) -> mx.array:
        runs = Runs((self.seen[0],), (self.seen[1],), first=self.offset - self.kept)
        return self.spec.operations.attention(queries, runs, self.positions, self.spec.window, scale)

    def make_mask(self, rows: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        mask: mx.array = create_causal_mask(rows, self.kept, window_size=self.spec.window)
        return mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.update(keys, values)
        return self.seen[0], self.seen[1]
