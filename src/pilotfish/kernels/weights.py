"""A weight matrix as the kernels take it: where its arrays are and how they are packed."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

GLOBAL_UNIT = 2688.0  # an nvfp4 global scale counts in units of one over the largest product of code and scale


class Weights(NamedTuple):
    """A matrix (n, k), or a stack (experts, n, k), as MLX stores it.

    w: dense, or packed uint32 as `mx.quantize` gives it; scales and biases: (n, k / group_size).
    bits: 0 for dense. global_scale: float32 (1) or (experts), nvfp4 only.
    """

    w: mx.array
    scales: mx.array | None = None
    biases: mx.array | None = None
    group_size: int = 0
    bits: int = 0
    mode: str = "affine"
    global_scale: mx.array | None = None

    @property
    def inputs(self) -> int:
        """k, the width of what the matrix is multiplied with."""
        return self.w.shape[-1] * 32 // self.bits if self.bits else self.w.shape[-1]

    @property
    def outputs(self) -> int:
        """n, the width of the product."""
        return self.w.shape[-2]


def quantized(w: mx.array, mode: str, group_size: int, bits: int) -> Weights:
    """Dense weights (..., n, k), quantized."""
    packed, scales, *biases = mx.quantize(w, group_size=group_size, bits=bits, mode=mode)
    return Weights(packed, scales, biases[0] if biases else None, group_size, bits, mode)


def weights_of(module: nn.Module) -> Weights:
    """The weights of a linear, embedding or expert layer, quantized or not."""
    parameters: Any = module
    if "scales" not in parameters:
        return Weights(parameters["weight"])
    return Weights(
        parameters["weight"], parameters["scales"], parameters.get("biases"),
        parameters.group_size, parameters.bits, parameters.mode, parameters.get("global_scale"),
    )  # fmt: skip
