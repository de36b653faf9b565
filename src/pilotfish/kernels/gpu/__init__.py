"""The operations of GPUs: one set of kernels, written in Metal's words, which a header translates for CUDA.

Not yet run on a Mac, nor on an NVIDIA GPU: CONTRIBUTING, "GPU kernels", says what the tests show without either.

Passes of fewer than PREFILL_ROWS rows run in pilotfish's own kernels, in which a row is summed in one order whatever
the number of rows, so plain decoding pays nothing for exactness. A prefill takes MLX's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from pilotfish.kernels.operations import Runs
from pilotfish.kernels.stock import StockOperations
from pilotfish.kernels.weights import GLOBAL_UNIT, Weights

FOLDER = Path(__file__).parent
MAX_ROWS = 9  # rows that share one unpacking; a larger verify pass runs in blocks
PREFILL_ROWS = 33  # from here on MLX's matrix kernels are faster, and nothing compares their rows with single ones
KEY_BLOCK, QUERIES = 256, 4  # keys and query rows of one simdgroup
FORMATS = {"affine": 0, "mxfp4": 1, "nvfp4": 1, "mxfp8": 2}
SCALES = {"affine": 0, "mxfp4": 1, "mxfp8": 1, "nvfp4": 2}
NO_TAIL = 2**31 - 1

KernelFactory = Callable[..., Any]
"""Makes a kernel from its text, as `mx.fast.metal_kernel` does."""


class GpuOperations(StockOperations):
    """`Operations` by own kernels where rows must be independent, by MLX's elsewhere."""

    reads_tails = True

    def __init__(self, name: str, kernel: KernelFactory) -> None:
        """`name`: "metal" or "cuda"; `kernel`: `mx.fast.metal_kernel`, `mx.fast.cuda_kernel`, or a test's emulator."""
        self.name, self._make = name, kernel
        self._kernels: dict[str, Any] = {}

    def multiply(self, x: mx.array, m: Weights) -> mx.array:
        rows = x.size // max(1, x.shape[-1])
        if not 0 < rows < PREFILL_ROWS or (m.bits and m.w.size < 8):  # a tiny array has another address space
            return super().multiply(x, m)
        blocks = -(-rows // MAX_ROWS)
        size = -(-rows // blocks)
        n, k = m.outputs, m.inputs
        template: list[tuple[str, Any]] = [("T", x.dtype), ("M", size)]
        flat, shape = x.reshape(rows, k), mx.array([rows, n, k], dtype=mx.int32)
        if m.bits:
            inputs = [flat, *_packed(m), shape]
            template += _format(m)
            kernel = self._kernel("qmm", ["x", "w", "scales", "biases", "factor", "shape"], ["out"])
        else:
            inputs, kernel = [flat, m.w, shape], self._kernel("dense", ["x", "w", "shape"], ["out"])
        (out,) = kernel(
            inputs=inputs, template=template, grid=(32 * 8 * -(-n // 8), blocks, 1), threadgroup=(256, 1, 1),
            output_shapes=[(rows, n)], output_dtypes=[x.dtype],
        )  # fmt: skip
        product: mx.array = out.reshape(*x.shape[:-1], n)
        return product

    def gather(self, x: mx.array, indices: mx.array, stack: Weights) -> mx.array:
        picks, per_row = indices.size, indices.shape[-1]
        rows = picks // max(1, per_row)
        if not stack.bits or not 0 < rows < PREFILL_ROWS or stack.w.size < 8:
            return super().gather(x, indices, stack)
        n, k = stack.outputs, stack.inputs
        per_pick = x.size // k == picks and picks != rows
        order = mx.argsort(indices.flatten())
        inputs = [
            x.reshape(-1, k), *_packed(stack), indices.flatten()[order].astype(mx.int32),
            (order if per_pick else order // per_row).astype(mx.int32), order.astype(mx.int32),
            mx.array([picks, n, k], dtype=mx.int32),
        ]  # fmt: skip
        kernel = self._kernel(
            "gather", ["x", "w", "scales", "biases", "factor", "experts", "rows", "places", "shape"], ["out"]
        )
        factors = 1 if stack.global_scale is None else stack.global_scale.size
        (out,) = kernel(
            inputs=inputs,
            template=[("T", x.dtype), ("MAX", MAX_ROWS), ("FACTORS", factors),
                      *_format(stack)],
            grid=(32 * 8 * -(-n // 8), picks, 1), threadgroup=(256, 1, 1),
            output_shapes=[(picks, n)], output_dtypes=[x.dtype],
        )  # fmt: skip
        product: mx.array = out.reshape(*indices.shape, n)
        return product

    def attention(self, q: mx.array, runs: Runs, length: mx.array, window: int | None, scale: float) -> mx.array:
        batch, rows, heads, dim = q.shape
        if rows >= PREFILL_ROWS or runs.first:
            return super().attention(q, runs, length, window, scale)
        kv_heads, slots = runs.keys[0].shape[1:3]
        tail = runs.keys[-1].shape[2] if runs.start is not None else 0
        # Blocks begin at multiples of KEY_BLOCK; a window is counted from the block that the first row's begins in.
        seen = window + rows - 1 + KEY_BLOCK if window else slots + tail
        blocks, queries = -(-seen // KEY_BLOCK), batch * rows * heads
        start = mx.full((batch,), NO_TAIL, dtype=mx.int32) if runs.start is None else runs.start
        partial = self._kernel("attention", ["q", "k0", "v0", "k1", "v1", "length", "start", "scale", "shape"],
                               ["limits", "sums"])  # fmt: skip
        shape = mx.array([rows, slots, max(1, tail), window or 0, blocks], dtype=mx.int32)
        tiles = -(-rows * (heads // kv_heads) // QUERIES)
        limits, sums = partial(
            inputs=[q, runs.keys[0], runs.values[0], runs.keys[-1], runs.values[-1], length, start,
                    mx.array([scale]), shape],
            template=[("H", heads), ("KV", kv_heads), ("D", dim), ("R", QUERIES), ("BLOCK", KEY_BLOCK),
                      ("RING", runs.ring)],
            grid=(32, blocks, batch * kv_heads * tiles), threadgroup=(32, 1, 1),
            output_shapes=[(queries, blocks, 2), (queries, blocks, dim)], output_dtypes=[mx.float32, mx.float32],
        )  # fmt: skip
        (out,) = self._kernel("attention_join", ["limits", "sums", "shape"], ["out"])(
            inputs=[limits, sums, mx.array([blocks], dtype=mx.int32)],
            template=[("T", q.dtype), ("D", dim)],
            grid=(dim, queries, 1), threadgroup=(min(dim, 256), 1, 1),
            output_shapes=[(batch, rows, heads * dim)], output_dtypes=[q.dtype],
        )  # fmt: skip
        joined: mx.array = out
        return joined

    def _kernel(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
        made = self._kernels.get(name)
        if made is None:
            made = self._make(
                name=f"pilotfish_{name}", input_names=list(inputs), output_names=list(outputs),
                source=_text(f"{name}.metal"), header=_text(f"{self.name}.h") + _text("common.metal"),
            )  # fmt: skip
            self._kernels[name] = made
        return made


@cache
def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _packed(m: Weights) -> list[mx.array]:
    """w, scales, biases (or scales again) and the factor of every result."""
    assert m.scales is not None
    one = mx.ones((1,)) if m.global_scale is None else m.global_scale.astype(mx.float32) / GLOBAL_UNIT
    return [m.w, m.scales, m.scales if m.biases is None else m.biases, one]


def _format(m: Weights) -> list[tuple[str, Any]]:
    return [("FORMAT", FORMATS[m.mode]), ("BITS", m.bits), ("GROUP", m.group_size), ("SCALES", SCALES[m.mode]),
            ("BIASED", m.biases is not None)]  # fmt: skip
