"""The compiled CPU kernels, if they were built for this MLX and pass a test at load."""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import version
from typing import Any

import mlx.core as mx

log = logging.getLogger("pilotfish")


@cache
def native() -> Any | None:
    """The extension module, or None; says once why it is not used."""
    try:
        from pilotfish.kernels.cpu import _native
    except ImportError as error:
        log.warning("compiled CPU kernels are not available (%s); using MLX's own operations, which are slower", error)
        return None
    module: Any = _native
    if not _self_test(module):
        log.warning(
            "compiled CPU kernels failed their self-test with mlx %s; using MLX's own operations", version("mlx")
        )
        return None
    return module


def _self_test(module: Any) -> bool:
    x = mx.arange(128, dtype=mx.float32).reshape(2, 64) / 64
    w, scales, biases = mx.quantize(mx.arange(512, dtype=mx.float32).reshape(8, 64) / 512, 64, 4)
    try:
        got = module.qmm(x, w, scales, biases, 64, 4, "affine")
        want = mx.quantized_matmul(x, w, scales, biases, group_size=64, bits=4)
        return bool(mx.allclose(got, want, rtol=1e-4, atol=1e-4).item())
    except (TypeError, RuntimeError, ValueError):  # another nanobind, another MLX
        return False
