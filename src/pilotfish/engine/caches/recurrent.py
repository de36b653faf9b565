"""Running state (Mamba, gated delta nets): plain decoding only."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from pilotfish.engine.state import Buffers
from pilotfish.errors import DraftingUnsupportedError


class RecurrentSpec:
    """A cache of running state (Mamba, gated delta nets), through mlx-lm's own class; plain decoding only.

    Rolling back would need a copy of the state per row of the pass, which mlx-lm's models do not give out.
    """

    can_roll_back = False
    can_cut = False
    tail = 0

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

    def settle(self, buffers: Buffers, lengths: Sequence[int]) -> Buffers:
        return buffers

    def as_prefilled(self, buffers: Buffers, length: int) -> Buffers:
        return buffers

    def join(self, parts: Sequence[Buffers], lengths: Sequence[mx.array]) -> Buffers:
        return tuple(mx.concatenate(list(arrays)) for arrays in zip(*parts, strict=True))

    def checkpoint(self, buffers: Buffers) -> Buffers:
        return buffers

    def rollback(self, buffers: Buffers, checkpoint: Buffers, accepted: mx.array) -> Buffers:
        raise DraftingUnsupportedError(f"{type(self.template).__name__} cannot be rolled back to an earlier token")
