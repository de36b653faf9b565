"""Which operations this process uses: the best that the default device has."""

from __future__ import annotations

from functools import cache

import mlx.core as mx

from pilotfish.kernels.cpu import CpuOperations, native
from pilotfish.kernels.operations import Operations
from pilotfish.kernels.stock import StockOperations


def best_operations() -> Operations:
    """The fastest implementation for MLX's default device."""
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    return _for_cpu() if on_cpu else StockOperations()


@cache
def _for_cpu() -> Operations:
    extension = native()
    return StockOperations() if extension is None else CpuOperations(extension)
