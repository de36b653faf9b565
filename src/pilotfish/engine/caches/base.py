"""What every cache can do, and the pieces they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from pilotfish.engine.state import Buffers

GROWTH = 256  # slots a full-attention buffer grows by at least; smaller steps copy it more often


class View(Protocol):
    """One layer's cache during one forward pass."""

    buffers: Buffers

    @property
    def offset(self) -> mx.array | int:
        """Tokens in the cache before the pass: (B,) int32, or an int that the host knows."""

    @property
    def positions(self) -> mx.array:
        """`offset` as (B,) int32."""

    def update(self, keys: mx.array, values: mx.array) -> None:
        """Store (B, kv_heads, rows, head_dim) keys and values of the pass."""

    def attend(self, queries: mx.array, scale: float) -> mx.array:
        """(B, rows, heads, head_dim) queries of the pass, after `update` -> (B, rows, heads * head_dim)."""

    def make_mask(self, rows: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """For mlx-lm's models: mask (B, 1, rows, slots) bool for the keys that `update_and_fetch` will return."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """For mlx-lm's models: `update`, then all keys and values of the layer."""


class CacheSpec(Protocol):
    """One layer's cache as a description. Buffers go in and out; a spec never keeps them."""

    can_roll_back: bool
    can_cut: bool  # whether buffers serve any shorter length too, after later tokens were written

    @property
    def tail(self) -> int:
        """Tokens that fit in after `settle`; 0 where `with_capacity` alone makes room."""

    def decode_view(self, buffers: Buffers, length: mx.array) -> Any:
        """A `View` for a pass of a few rows a sequence; `length` (B,) int32 may differ by row and stays unread."""

    def prefill_view(self, buffers: Buffers, length: int) -> Any:
        """A `View` for a chunk of any size of one sequence whose length the host knows."""

    def collect(self, view: Any) -> Buffers:
        """The buffers after the pass that `view` was opened for."""

    def with_capacity(self, buffers: Buffers, tokens: int) -> Buffers:
        """Buffers with room for `tokens` tokens; the same buffers if they have it."""

    def settle(self, buffers: Buffers, lengths: Sequence[int]) -> Buffers:
        """Buffers with an empty tail; the host knows the length of each row, so no round may be in flight."""

    def as_prefilled(self, buffers: Buffers, length: int) -> Buffers:
        """Buffers of one sequence of `length` tokens in the form that a prefill leaves them in, to go on from."""

    def join(self, parts: Sequence[Buffers], lengths: Sequence[mx.array]) -> Buffers:
        """Buffers of several sequences, with the length (b,) of each, as those of one batch."""

    def checkpoint(self, buffers: Buffers) -> Buffers:
        """What `rollback` will need of the buffers before a pass; empty where a smaller length is enough."""

    def rollback(self, buffers: Buffers, checkpoint: Buffers, accepted: mx.array) -> Buffers:
        """Buffers after a pass of which only `accepted + 1` rows are kept, accepted (B,).

        Attention caches return `buffers` untouched. Raises DraftingUnsupportedError where that is impossible.
        """


class AttentionSpec:
    """What the caches of attention have in common: rolling back is only a smaller length."""

    can_roll_back = True
    can_cut = True
    tail = 0

    def collect(self, view: Any) -> Buffers:
        buffers: Buffers = view.buffers
        return buffers

    def with_capacity(self, buffers: Buffers, tokens: int) -> Buffers:
        return buffers

    def settle(self, buffers: Buffers, lengths: Sequence[int]) -> Buffers:
        return buffers

    def as_prefilled(self, buffers: Buffers, length: int) -> Buffers:
        return buffers

    def checkpoint(self, buffers: Buffers) -> Buffers:
        return ()

    def rollback(self, buffers: Buffers, checkpoint: Buffers, accepted: mx.array) -> Buffers:
        return buffers


def empty(keys: mx.array, values: mx.array, slots: int) -> Buffers:
    """Buffers of `slots` slots for keys and values like these."""
    return tuple(mx.zeros((*x.shape[:2], slots, x.shape[3]), dtype=x.dtype) for x in (keys, values))


def padded(buffer: mx.array, slots: int) -> mx.array:
    """`buffer` (B, H, C, D) with at least `slots` slots."""
    missing = slots - buffer.shape[2]
    return mx.pad(buffer, [(0, 0), (0, 0), (0, missing), (0, 0)]) if missing > 0 else buffer


def concatenated(parts: Sequence[Buffers]) -> Buffers:
    """Buffers of several sequences, padded to the longest and put together along the batch."""
    filled = [p for p in parts if p]
    if not filled:
        return ()
    slots = max(p[0].shape[2] for p in filled)
    out = []
    for j, like in enumerate(filled[0]):
        none = mx.zeros((1, like.shape[1], slots, like.shape[3]), dtype=like.dtype)
        out.append(mx.concatenate([padded(p[j], slots) if p else none for p in parts]))
    return tuple(out)
