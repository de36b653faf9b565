"""The operations made of MLX's own, for every device: slower, and as row independent as those are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from pilotfish.kernels.operations import Adjustment, Choice, Residual, Runs
from pilotfish.kernels.rotation import Rotation
from pilotfish.kernels.weights import Weights


class StockOperations:
    """`Operations` by MLX's own operations."""

    name = "stock"
    reads_tails = False

    def prepare(self, weights: Weights) -> Weights:
        return weights

    def project(
        self, x: mx.array, matrices: Sequence[Weights], *, norm: tuple[mx.array, float] | None = None,
        gated: bool = False, times: tuple[mx.array, int] | None = None, residual: Residual | None = None,
        cap: float = 0.0,
    ) -> mx.array:  # fmt: skip
        if norm is not None:
            x = mx.fast.rms_norm(x, *norm)
        products = [self.multiply(x, m) for m in matrices]
        if gated:
            wide: mx.array = nn.gelu_approx(products[0]) * products[1]
            return wide
        out: mx.array = products[0] if len(products) == 1 else mx.concatenate(products, axis=-1)
        if times is not None:
            values, part = times
            out = nn.gelu_approx(out) * values[..., part, :]
        if residual is not None:
            out = residual.stream + mx.fast.rms_norm(out, residual.weight, residual.eps)
            out = out if residual.scale is None else out * residual.scale
        return mx.tanh(out / cap) * cap if cap else out

    def multiply(self, x: mx.array, m: Weights) -> mx.array:
        """x (..., k) times the transpose of (n, k)."""
        if not m.bits:
            return x @ m.w.T
        assert m.scales is not None
        out: mx.array = mx.quantized_matmul(_wide(x), m.w, m.scales, m.biases, group_size=m.group_size, bits=m.bits,
                                            mode=m.mode)  # fmt: skip
        return out.astype(x.dtype)

    def gather(self, x: mx.array, indices: mx.array, stack: Weights) -> mx.array:
        picks = indices.shape[-1]
        per_pick = x.ndim == indices.ndim + 1 and x.shape[-2] == picks and x.shape[:-2] == indices.shape[:-1]
        rows = x[..., None, :] if per_pick else x[..., None, None, :]
        if not stack.bits:
            out = mx.gather_mm(rows, stack.w.swapaxes(-1, -2), rhs_indices=indices)
            return out[..., 0, :]
        assert stack.scales is not None
        wide = _wide(rows)
        out = mx.gather_qmm(wide, stack.w, stack.scales, stack.biases, rhs_indices=indices, transpose=True,
                            group_size=stack.group_size, bits=stack.bits, mode=stack.mode,
                            global_scale=stack.global_scale)  # fmt: skip
        return out[..., 0, :].astype(x.dtype)

    def lookup(self, ids: mx.array, table: Weights, scale: float, dtype: mx.Dtype) -> mx.array:
        rows = table.w[ids]
        if table.bits:
            biases = None if table.biases is None else table.biases[ids]
            assert table.scales is not None
            rows = mx.dequantize(rows, table.scales[ids], biases, group_size=table.group_size, bits=table.bits,
                                 mode=table.mode)  # fmt: skip
        return rows.astype(dtype) * scale

    def concatenate(self, parts: Sequence[mx.array]) -> mx.array:
        return mx.concatenate(list(parts), axis=-1)

    def blend(
        self, projected: mx.array, own: mx.array, weight: mx.array, *, eps: float, scale: float, factor: float,
    ) -> mx.array:  # fmt: skip
        shape = (*own.shape[:2], -1, weight.size)
        normed = mx.fast.rms_norm((projected * scale).reshape(shape), weight, eps)
        return (normed + own.reshape(shape)) * factor

    def choices(self, rows: Sequence[Choice], suppress: Sequence[int]) -> None:
        return None

    def adjuster(self, rows: Sequence[Adjustment], vocab: int) -> None:
        return None

    def mask(self, logits: mx.array, bits: mx.array, ids: mx.array | None = None) -> mx.array:
        words = bits.astype(mx.uint32)
        if ids is None:
            flags = (words[..., None] >> mx.arange(32, dtype=mx.uint32)) & 1
            flags = flags.reshape(*bits.shape[:2], -1)[..., : logits.shape[-1]]
        else:
            flags = mx.take_along_axis(words, ids // 32, axis=-1) >> (ids % 32).astype(mx.uint32) & 1
        return mx.where(flags == 1, logits.astype(mx.float32), -math.inf)

    def logprobs(self, logits: mx.array, tokens: mx.array, k: int) -> tuple[mx.array, mx.array, mx.array]:
        values = logits.astype(mx.float32)
        values = values - mx.logsumexp(values, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(values, tokens[..., None], axis=-1)[..., 0]
        if not k:
            none = mx.zeros((*tokens.shape, 0))
            return chosen, none.astype(mx.int32), none
        ids = mx.argsort(-values, axis=-1)[..., :k]
        return chosen, ids.astype(mx.int32), mx.take_along_axis(values, ids, axis=-1)

    def fuse(self, outputs: Sequence[mx.array]) -> list[mx.array]:
        return list(outputs)

    def rms_norm(self, x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
        return mx.fast.rms_norm(x, weight, eps)

    def heads(
        self, x: mx.array, q_weight: mx.array, k_weight: mx.array | None, offset: mx.array, rotation: Rotation, *,
        head_dim: int, kv_heads: int, shared: bool, eps: float,
    ) -> tuple[mx.array, ...]:  # fmt: skip
        x = x.reshape(*x.shape[:2], -1, head_dim)
        q_heads = x.shape[2] - kv_heads * (1 if shared else 2)

        def turned(part: mx.array, weight: mx.array | None) -> mx.array:
            normed = mx.fast.rms_norm(part, weight, eps).transpose(0, 2, 1, 3)
            out: mx.array = rotation.rope(normed, offset=offset)
            return out

        q = turned(x[:, :, :q_heads], q_weight).transpose(0, 2, 1, 3)
        if not kv_heads:
            return (q,)
        raw = x[:, :, q_heads : q_heads + kv_heads]
        values = raw if shared else x[:, :, q_heads + kv_heads :]
        return q, turned(raw, k_weight), mx.fast.rms_norm(values, None, eps).transpose(0, 2, 1, 3)

    def write(
        self, keys: mx.array, values: mx.array, new_keys: mx.array, new_values: mx.array, length: mx.array,
        start: mx.array | None = None, ring: int = 0,
    ) -> tuple[mx.array, mx.array]:  # fmt: skip
        slots = (length if start is None else length - start)[:, None] + mx.arange(new_keys.shape[2], dtype=mx.int32)
        index = (slots % ring if ring else slots)[:, None, :, None]
        index = mx.broadcast_to(index, (*new_keys.shape[:3], 1))
        put = mx.put_along_axis
        return (put(keys, index, new_keys.astype(keys.dtype), axis=2),
                put(values, index, new_values.astype(values.dtype), axis=2))  # fmt: skip

    def attention(self, q: mx.array, runs: Runs, length: mx.array, window: int | None, scale: float) -> mx.array:
        keys, values, mask = laid_out(runs, length, q.shape[1], window)
        out = mx.fast.scaled_dot_product_attention(q.transpose(0, 2, 1, 3), keys, values, scale=scale, mask=mask)
        return out.transpose(0, 2, 1, 3).reshape(*q.shape[:2], -1)


def visible(positions: mx.array, length: mx.array, rows: int, window: int | None) -> mx.array:
    """(B, 1, rows, S) bool: which of positions (B, S) or (S,) each row at length[b] ... sees; negative ones never."""
    row = (length[:, None] + mx.arange(rows, dtype=mx.int32))[:, :, None]
    key = positions[..., None, :]
    seen: mx.array = (key >= 0) & (key <= row)
    if window is not None:
        seen = seen & (key > row - window)
    return mx.broadcast_to(seen, (length.shape[0], rows, positions.shape[-1]))[:, None]


def ring_positions(length: mx.array, rows: int, capacity: int) -> mx.array:
    """(B, capacity) int32: the position in each slot once `rows` rows are written at `length`; may be negative.

    A slot holds the newest position, up to the last row's, that is congruent to it.
    """
    last = (length + rows - 1)[:, None]
    return last - (last - mx.arange(capacity, dtype=mx.int32)) % capacity  # mx's % is never negative


def laid_out(runs: Runs, length: mx.array, rows: int, window: int | None) -> tuple[mx.array, mx.array, mx.array]:
    """Keys and values as one buffer each, and the mask of what each row sees. Copies where there is a tail."""
    slots = mx.arange(runs.keys[0].shape[2], dtype=mx.int32)
    if runs.ring:
        positions = ring_positions(length, rows, slots.size)
        return runs.keys[0], runs.values[0], visible(positions, length, rows, window)
    if runs.start is None:
        return runs.keys[0], runs.values[0], visible(runs.first + slots, length, rows, window)
    total = slots.size + runs.keys[1].shape[2]
    at, start = mx.arange(total, dtype=mx.int32), runs.start[:, None]
    index = mx.where(at < start, at, mx.minimum(at - start + slots.size, total - 1))[:, None, :, None]
    keys, values = (
        mx.take_along_axis(mx.concatenate(run, axis=2), index, axis=2) for run in (list(runs.keys), list(runs.values))
    )
    return keys, values, visible(at, length, rows, window)


def _wide(x: mx.array) -> mx.array:
    """On a CPU MLX's quantized kernels sum in the dtype of x: slow and inaccurate, so x goes in as float32."""
    return x.astype(mx.float32) if mx.default_device().type == mx.DeviceType.cpu else x
