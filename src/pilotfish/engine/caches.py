"""Key/value caches whose length lives on the device, handed to mlx-lm's model classes as if they were mlx-lm's own.

A `CacheSpec` describes one layer's cache and holds no arrays. Its buffers are part of the decode state. For one
forward pass a spec opens a *view* over buffers and length; the model reads `offset`, calls `make_mask` and
`update_and_fetch`; afterwards `collect` gives the new buffers. A rollback is a smaller `length` and nothing else.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from pilotfish.engine.state import Buffers
from pilotfish.errors import DraftingUnsupportedError, UnsupportedModelError

GROWTH = 256  # slots a full-attention buffer grows by; smaller steps copy it more often, larger ones waste attention


class View(Protocol):
    """One layer's cache during one forward pass; imitates the parts of an mlx-lm cache that models use."""

    @property
    def offset(self) -> mx.array | int:
        """Tokens in the cache before the pass: (B,) int32, or an int that the host knows."""

    def make_mask(self, rows: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """Mask (B, 1, rows, slots) bool, "causal", or None, for the keys that `update_and_fetch` will return."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Store (B, kv_heads, rows, head_dim) keys and values, return all keys and values of the layer."""


class CacheSpec(Protocol):
    """One layer's cache as a description. Buffers go in and out; a spec never keeps them."""

    can_roll_back: bool

    def decode_view(self, buffers: Buffers, length: mx.array) -> Any:
        """A `View` for a pass of a few rows a sequence; `length` (B,) int32 may differ by row and stays unread."""

    def prefill_view(self, buffers: Buffers, length: int) -> Any:
        """A `View` for a chunk of any size of one sequence whose length the host knows."""

    def collect(self, view: Any) -> Buffers:
        """The buffers after the pass that `view` was opened for."""

    def with_capacity(self, buffers: Buffers, tokens: int) -> Buffers:
        """Buffers with room for `tokens` tokens; the same buffers if they have it."""

    def checkpoint(self, buffers: Buffers) -> Buffers:
        """What `rollback` will need of the buffers before a pass; empty where a smaller length is enough."""

    def rollback(self, buffers: Buffers, checkpoint: Buffers, accepted: mx.array) -> Buffers:
        """Buffers after a pass of which only `accepted + 1` rows are kept, accepted (B,).

        Attention caches return `buffers` untouched. Raises DraftingUnsupportedError where that is impossible.
        """


def write_slots(buffer: mx.array, new: mx.array, slots: mx.array) -> mx.array:
    """`buffer` (B, H, C, D) with `new` (B, H, rows, D) at `slots` (B, rows) int32."""
    index = mx.broadcast_to(slots[:, None, :, None], (*new.shape[:3], 1))
    return mx.put_along_axis(buffer, index, new.astype(buffer.dtype), axis=2)


def row_positions(length: mx.array, rows: int) -> mx.array:
    """(B, rows) int32: positions of the rows of a pass that starts at `length`."""
    return length[:, None] + mx.arange(rows, dtype=mx.int32)


class _AttentionSpec:
    """What full and sliding caches have in common: rolling back is only a smaller length."""

    can_roll_back = True

    def collect(self, view: Any) -> Buffers:
        buffers: Buffers = view.buffers
        return buffers

    def checkpoint(self, buffers: Buffers) -> Buffers:
        return ()

    def rollback(self, buffers: Buffers, checkpoint: Buffers, accepted: mx.array) -> Buffers:
        return buffers


@dataclass(frozen=True)
class FullSpec(_AttentionSpec):
    """Full attention: slot p holds position p; the buffer grows in steps and a mask hides what is not committed."""

    def decode_view(self, buffers: Buffers, length: mx.array) -> View:
        return _FullView(buffers, length)

    def prefill_view(self, buffers: Buffers, length: int) -> View:
        return _FullPrefillView(buffers, length)

    def with_capacity(self, buffers: Buffers, tokens: int) -> Buffers:
        if not buffers or tokens <= buffers[0].shape[2]:
            return buffers
        missing = -(-tokens // GROWTH) * GROWTH - buffers[0].shape[2]
        return tuple(mx.pad(b, [(0, 0), (0, 0), (0, missing), (0, 0)]) for b in buffers)


class _FullView:
    def __init__(self, buffers: Buffers, length: mx.array) -> None:
        self.buffers, self.offset = buffers, length

    def make_mask(self, rows: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        slots = self.buffers[0].shape[2] if self.buffers else max(GROWTH, rows)
        key, query = mx.arange(slots, dtype=mx.int32), row_positions(self.offset, rows)[:, :, None]
        visible = key <= query
        if window_size is not None:
            visible = visible & (key > query - window_size)
        return visible[:, None]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        rows = keys.shape[2]
        old = self.buffers or _empty(keys, values, max(GROWTH, rows))
        slots = row_positions(self.offset, rows)
        new_keys, new_values = write_slots(old[0], keys, slots), write_slots(old[1], values, slots)
        self.buffers = (new_keys, new_values)
        return new_keys, new_values


class _FullPrefillView:
    def __init__(self, buffers: Buffers, length: int) -> None:
        self.buffers, self.offset = buffers, length

    def make_mask(self, rows: int, return_array: bool = False, window_size: int | None = None) -> Any:
        if return_array or window_size is not None:
            return create_causal_mask(rows, self.offset, window_size=window_size)
        return "causal"

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        end = self.offset + keys.shape[2]
        if not self.buffers:
            self.buffers = _empty(keys, values, 0)
        start = mx.array([self.offset])  # a new array, not an assignment into one that an older state may hold
        new_keys, new_values = (
            mx.slice_update(buffer, new.astype(buffer.dtype), start, axes=[2])
            for buffer, new in zip(FullSpec().with_capacity(self.buffers, end), (keys, values), strict=True)
        )
        self.buffers = (new_keys, new_values)
        return new_keys[..., :end, :], new_values[..., :end, :]


@dataclass(frozen=True)
class SlidingSpec(_AttentionSpec):
    """Sliding attention: a ring in which position p lives in slot p % capacity.

    `slack` slots beyond the window take the rows of two rounds (one in flight, one being dispatched), so a
    speculative write only lands on slots that no row of its pass, or of a pass after a rejection, can see.
    """

    window: int
    slack: int

    @property
    def capacity(self) -> int:
        return self.window + self.slack

    def decode_view(self, buffers: Buffers, length: mx.array) -> View:
        return _RingView(self, buffers, length)

    def prefill_view(self, buffers: Buffers, length: int) -> View:
        return _RingPrefillView(self, buffers, length)

    def with_capacity(self, buffers: Buffers, tokens: int) -> Buffers:
        return buffers


def ring_mask(spec: SlidingSpec, length: mx.array, rows: int) -> mx.array:
    """(B, 1, rows, capacity) bool: which slots each row sees, once the rows are written at `length ...`.

    A slot holds the newest position, up to the last row's, that is congruent to it.
    """
    query = row_positions(length, rows)
    last = query[:, -1:]
    age = (last - mx.arange(spec.capacity, dtype=mx.int32)) % spec.capacity  # mx's % is never negative
    position = (last - age)[:, None]
    query = query[:, :, None]
    visible: mx.array = (position >= 0) & (position <= query) & (position > query - spec.window)
    return visible[:, None]


class _RingView:
    def __init__(self, spec: SlidingSpec, buffers: Buffers, length: mx.array) -> None:
        self.spec, self.buffers, self.offset = spec, buffers, length

    def make_mask(self, rows: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        return ring_mask(self.spec, self.offset, rows)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        old = self.buffers or _empty(keys, values, self.spec.capacity)
        slots = row_positions(self.offset, keys.shape[2]) % self.spec.capacity
        new_keys, new_values = write_slots(old[0], keys, slots), write_slots(old[1], values, slots)
        self.buffers = (new_keys, new_values)
        return new_keys, new_values


class _RingPrefillView:
    """Attends over (kept window + chunk) in order of position, then stores the newest positions in the ring."""

    def __init__(self, spec: SlidingSpec, buffers: Buffers, length: int) -> None:
        self.spec, self.buffers, self.offset = spec, buffers, length
        self.kept = min(length, spec.window - 1)

    def make_mask(self, rows: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        mask: mx.array = create_causal_mask(rows, self.kept, window_size=self.spec.window)
        return mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        capacity, rows = self.spec.capacity, keys.shape[2]
        old = self.buffers or _empty(keys, values, capacity)
        end = self.offset + rows
        kept = mx.arange(self.offset - self.kept, self.offset, dtype=mx.int32) % capacity
        stored = min(rows, capacity)
        slots = (mx.arange(end - stored, end, dtype=mx.int32) % capacity)[None]
        seen, buffers = [], []
        for buffer, new in zip(old, (keys, values), strict=True):
            seen.append(mx.concatenate([mx.take(buffer, kept, axis=2), new], axis=2))
            buffers.append(write_slots(buffer, new[:, :, rows - stored :], slots))
        self.buffers = tuple(buffers)
        return seen[0], seen[1]


def _empty(keys: mx.array, values: mx.array, slots: int) -> Buffers:
    return tuple(mx.zeros((*x.shape[:2], slots, x.shape[3]), dtype=x.dtype) for x in (keys, values))


class RecurrentSpec:
    """A cache of running state (Mamba, gated delta nets), through mlx-lm's own class; plain decoding only.

    Rolling back would need a copy of the state per row of the pass, which mlx-lm's models do not give out.
    """

    can_roll_back = False

    def __init__(self, template: Any) -> None:
        self.template = template

    def decode_view(self, buffers: Buffers, length: mx.array) -> Any:
        return self.prefill_view(buffers, 0)

    def prefill_view(self, buffers: Buffers, length: int) -> Any:
        view = copy.copy(self.template)
        view.cache = list(buffers) if buffers else [None] * len(self.template.cache)
        return view

    def collect(self, view: Any) -> Buffers:
        return tuple(view.cache)

    def with_capacity(self, buffers: Buffers, tokens: int) -> Buffers:
        return buffers

    def checkpoint(self, buffers: Buffers) -> Buffers:
        return buffers

    def rollback(self, buffers: Buffers, checkpoint: Buffers, accepted: mx.array) -> Buffers:
        raise DraftingUnsupportedError(f"{type(self.template).__name__} cannot be rolled back to an earlier token")


def specs_for(mlx_caches: list[Any], slack: int) -> tuple[CacheSpec, ...]:
    """Specs for the caches that mlx-lm would make for a model.

    Raises UnsupportedModelError for a cache class that the engine cannot hold on the device.
    """
    specs: list[CacheSpec] = []
    for cache in mlx_caches:
        if isinstance(cache, KVCache):
            specs.append(FullSpec())
        elif isinstance(cache, RotatingKVCache) and cache.keep == 0:
            specs.append(SlidingSpec(window=cache.max_size, slack=slack))
        elif isinstance(cache, ArraysCache):
            specs.append(RecurrentSpec(cache))
        else:
            raise UnsupportedModelError(
                f"this model keeps a {type(cache).__name__}, which pilotfish cannot hold; "
                "supported are mlx-lm's KVCache, RotatingKVCache (keep=0) and ArraysCache"
            )
    return tuple(specs)
