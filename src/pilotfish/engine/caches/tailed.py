"""Full attention as a frozen history and a small tail, for devices whose attention reads both in place.

Rounds write the tail only, so what they copy does not grow with the context. Now and then, with no round in flight, the
tail moves into the history (`settle`), which nothing else holds then, so that is not a copy either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from pilotfish.engine.caches.base import AttentionSpec, View, concatenated, empty, padded
from pilotfish.engine.caches.full import FullPrefillView, grown
from pilotfish.engine.state import Buffers
from pilotfish.kernels.operations import Operations, Runs

TAIL = 128  # positions; a longer one settles less often and copies more


@dataclass(frozen=True)
class TailedSpec(AttentionSpec):
    """Buffers (keys, values, tail keys, tail values, start): from position start[b] on, row b lies in the tail.

    A prefill leaves keys and values only; the first round adds the tail.
    """

    operations: Operations
    tail: int = TAIL

    def decode_view(self, buffers: Buffers, length: mx.array) -> View:
        return _TailedView(self, buffers, length)

    def prefill_view(self, buffers: Buffers, length: int) -> View:
        return FullPrefillView(self.operations, buffers, length)

    def settle(self, buffers: Buffers, lengths: Sequence[int]) -> Buffers:
        if not buffers:
            return buffers
        start = mx.array(list(lengths), dtype=mx.int32)
        if len(buffers) == 2:
            return self.with_tail(buffers, start)
        keys, values, tail_keys, tail_values, old_start = buffers
        slots = grown(keys.shape[2], max(lengths))
        keys, values = self.operations.write(
            padded(keys, slots), padded(values, slots), tail_keys, tail_values, old_start
        )
        return keys, values, tail_keys, tail_values, start

    def as_prefilled(self, buffers: Buffers, length: int) -> Buffers:
        return self.settle(buffers, [length])[:2] if len(buffers) > 2 else buffers

    def with_tail(self, history: Buffers, start: mx.array) -> Buffers:
        """(keys, values) of a prefill with an empty tail after them."""
        return *history, *empty(history[0], history[1], self.tail), start

    def join(self, parts: Sequence[Buffers], lengths: Sequence[mx.array]) -> Buffers:
        filled = [p for p in parts if p]
        if not filled:
            return ()
        none = tuple(mx.zeros((1, *b.shape[1:]), dtype=b.dtype) for b in filled[0][:2])
        whole = [p or none for p in parts]
        whole = [self.with_tail(p, n) if len(p) == 2 else p for p, n in zip(whole, lengths, strict=True)]
        history, tail = concatenated([p[:2] for p in whole]), concatenated([p[2:4] for p in whole])
        return *history, *tail, mx.concatenate([p[4] for p in whole])


class _TailedView:
    def __init__(self, spec: TailedSpec, buffers: Buffers, length: mx.array) -> None:
        self.spec, self.buffers, self.offset = spec, buffers, length

    @property
    def positions(self) -> mx.array:
        return self.offset

    def update(self, keys: mx.array, values: mx.array) -> None:
        if not self.buffers:  # the first round after a prompt of one token
            self.buffers = empty(keys, values, 1)
        if len(self.buffers) == 2:
            self.buffers = self.spec.with_tail(self.buffers, self.offset)
        old_keys, old_values, tail_keys, tail_values, start = self.buffers
        tail = self.spec.operations.write(tail_keys, tail_values, keys, values, self.offset, start)
        self.buffers = (old_keys, old_values, *tail, start)

    def attend(self, queries: mx.array, scale: float) -> mx.array:
        runs = Runs((self.buffers[0],), (self.buffers[1],))
        if len(self.buffers) == 5:
            keys, values, tail_keys, tail_values, start = self.buffers
            runs = Runs((keys, tail_keys), (values, tail_values), start)
        return self.spec.operations.attention(queries, runs, self.offset, None, scale)

    def make_mask(self, rows: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        raise NotImplementedError("mlx-lm's models read one buffer; give them a FullSpec")

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        raise NotImplementedError("mlx-lm's models read one buffer; give them a FullSpec")
