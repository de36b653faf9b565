"""Rotary position embedding: the frequencies of an mlx-lm module, for kernels that turn by themselves."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn


class Rotation:
    """Half-split rotation by position. `frequencies` (head_dim / 2) float32 are radians a position, 0 where none."""

    def __init__(self, rope: Any) -> None:
        """From an mlx-lm rope module without scaling by context."""
        self.rope = rope
        self.frequencies = _frequencies(rope)
        mx.eval(self.frequencies)


def _frequencies(rope: Any) -> mx.array:
    if isinstance(rope, nn.RoPE):
        exponents = mx.arange(0, rope.dims, 2, dtype=mx.float32) / rope.dims
        frequencies: mx.array = rope.scale / rope.base**exponents
        return frequencies
    periods: mx.array = rope._freqs  # MLX's `freqs` are the reciprocals, infinite where nothing turns
    return 1.0 / periods
