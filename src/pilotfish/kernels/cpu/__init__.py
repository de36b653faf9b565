"""The operations of the compiled CPU kernels, if they were built for this MLX and pass a test at load."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import mlx.core as mx

from pilotfish.kernels.operations import Adjustment, Choice, Residual, Runs
from pilotfish.kernels.rotation import Rotation
from pilotfish.kernels.weights import Weights

log = logging.getLogger("pilotfish")

EVERYTHING = 1 << 40  # a window that hides nothing


class CpuOperations:
    """`Operations` by the compiled extension; each is one node of MLX's graph."""

    name = "cpu"
    reads_tails = True

    def __init__(self, extension: Any) -> None:
        self._native = extension

    def prepare(self, weights: Weights) -> Any:
        return PreparedWeights(self._native.Weights(*weights), weights.inputs)

    def project(
        self, x: mx.array, matrices: Sequence[Any], *, norm: tuple[mx.array, float] | None = None,
        gated: bool = False, times: tuple[mx.array, int] | None = None, residual: Residual | None = None,
        cap: float = 0.0,
    ) -> mx.array:  # fmt: skip
        weight, eps = norm or (None, 0.0)
        values, part = times or (None, 0)
        stream, after, eps, scale = residual or (None, None, eps, None)
        out: mx.array = self._native.project(x, [m.native for m in matrices], weight, eps, gated, values, part,
                                             stream, after, scale, cap)  # fmt: skip
        return out

    def gather(self, x: mx.array, indices: mx.array, stack: Any) -> mx.array:
        out: mx.array = self._native.gather(x, indices, stack.native)
        return out

    def lookup(self, ids: mx.array, table: Any, scale: float, dtype: mx.Dtype) -> mx.array:
        out: mx.array = self._native.lookup(ids, table.native, table.inputs, scale, dtype)
        return out

    def concatenate(self, parts: Sequence[mx.array]) -> mx.array:
        out: mx.array = self._native.concatenate(parts)
        return out

    def blend(
        self, projected: mx.array, own: mx.array, weight: mx.array, *, eps: float, scale: float, factor: float,
    ) -> mx.array:  # fmt: skip
        out: mx.array = self._native.blend(projected, own, weight, eps, scale, factor)
        return out

    def choices(self, rows: Sequence[Choice], suppress: Sequence[int]) -> CpuChooser:
        return CpuChooser(self._native, rows, suppress)

    def adjuster(self, rows: Sequence[Adjustment], vocab: int) -> CpuAdjuster:
        return CpuAdjuster(self._native, rows, vocab)

    def mask(self, logits: mx.array, bits: mx.array, ids: mx.array | None = None) -> mx.array:
        out: mx.array = self._native.mask(logits, bits, ids)
        return out

    def logprobs(self, logits: mx.array, tokens: mx.array, k: int) -> tuple[mx.array, mx.array, mx.array]:
        chosen, ids, values = self._native.logprobs(logits, tokens, k)
        return chosen, ids, values

    def fuse(self, outputs: Sequence[mx.array]) -> list[mx.array]:
        fused: list[mx.array] = self._native.fuse(outputs)
        return fused

    def rms_norm(self, x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
        out: mx.array = self._native.rms_norm(x, weight, eps)
        return out

    def heads(
        self, x: mx.array, q_weight: mx.array, k_weight: mx.array | None, offset: mx.array, rotation: Rotation, *,
        head_dim: int, kv_heads: int, shared: bool, eps: float,
    ) -> tuple[mx.array, ...]:  # fmt: skip
        return tuple(self._native.heads(x, q_weight, k_weight, offset, rotation.frequencies, head_dim, kv_heads,
                                        shared, eps))  # fmt: skip

    def write(
        self, keys: mx.array, values: mx.array, new_keys: mx.array, new_values: mx.array, length: mx.array,
        start: mx.array | None = None, ring: int = 0,
    ) -> tuple[mx.array, mx.array]:  # fmt: skip
        new_keys, new_values = new_keys.astype(keys.dtype), new_values.astype(values.dtype)
        written: tuple[mx.array, mx.array] = tuple(
            self._native.write(keys, values, new_keys, new_values, length, start, ring)
        )
        return written

    def attention(self, q: mx.array, runs: Runs, length: mx.array, window: int | None, scale: float) -> mx.array:
        out: mx.array = self._native.attention(q, runs.keys, runs.values, length, runs.start, runs.first,
                                               window or EVERYTHING, runs.ring, scale)  # fmt: skip
        return out


class PreparedWeights:
    """The extension's record of a matrix, and the matrix's input width."""

    __slots__ = ("inputs", "native")

    def __init__(self, native: Any, inputs: int) -> None:
        self.native, self.inputs = native, inputs


class CpuAdjuster:
    """What changes logits, as one operation."""

    def __init__(self, extension: Any, rows: Sequence[Adjustment], vocab: int) -> None:
        self._native, self._rows, self._vocab = extension, extension.Adjustments(list(rows)), vocab

    def __call__(
        self, logits: mx.array, tokens: mx.array, is_open: mx.array, drafts: mx.array, first: int, length: mx.array,
        ids: mx.array | None,
    ) -> mx.array:  # fmt: skip
        out: mx.array = self._native.adjust(
            logits, tokens, is_open, drafts, first, length, ids, self._rows, self._vocab
        )
        return out

    def advance(
        self, tokens: mx.array, is_open: mx.array, drafts: mx.array, accepted: mx.array
    ) -> tuple[mx.array, mx.array]:
        newest, opened = self._native.advance(tokens, is_open, drafts, accepted, self._rows)
        return newest, opened


class CpuChooser:
    """The choice of tokens as one operation."""

    def __init__(self, extension: Any, rows: Sequence[Choice], suppress: Sequence[int]) -> None:
        self._native = extension
        self._by_stream = [
            extension.Choices(
                [(r.temperature, r.top_p, r.log_min_p, r.top_k, *r.words[stream]) for r in rows], suppress
            )
            for stream in range(len(rows[0].words))
        ]

    def __call__(self, logits: mx.array, length: mx.array, shift: int, ids: mx.array | None, stream: int) -> mx.array:
        out: mx.array = self._native.choose(logits, length, shift, ids, self._by_stream[stream])
        return out

    def reject(
        self, logits: mx.array, length: mx.array, drafts: mx.array, offered: Sequence[mx.array], ids: Sequence[mx.array]
    ) -> tuple[mx.array, mx.array]:
        text, _, accept = self._by_stream
        tokens, accepted = self._native.reject(logits, length, drafts, list(offered), list(ids), text, accept)
        return tokens, accepted


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
        got = module.project(x, [module.Weights(w, scales, biases, 64, 4, "affine", None)])
        want = mx.quantized_matmul(x, w, scales, biases, group_size=64, bits=4)
        return bool(mx.allclose(got, want, rtol=1e-4, atol=1e-4).item())
    except (TypeError, RuntimeError, ValueError, AttributeError):  # another nanobind, another MLX
        return False
