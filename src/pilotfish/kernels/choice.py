"""Which operations this process uses: the best that the default device has."""

from __future__ import annotations

from functools import cache

import mlx.core as mx

from pilotfish.kernels.cpu import CpuOperations, native
from pilotfish.kernels.gpu import GpuOperations
from pilotfish.kernels.operations import Operations
from pilotfish.kernels.stock import StockOperations


def best_operations() -> Operations:
    """The fastest implementation for MLX's default device."""
    if mx.default_device().type == mx.DeviceType.cpu:
        return _for_cpu()
    return _for_gpu()


@cache
def _for_cpu() -> Operations:
    extension = native()
    return StockOperations() if extension is None else CpuOperations(extension)


@cache
def _for_gpu() -> Operations:
    if mx.metal.is_available():
        return GpuOperations("metal", mx.fast.metal_kernel)
    return GpuOperations("cuda", mx.fast.cuda_kernel) if mx.cuda.is_available() else StockOperations()
