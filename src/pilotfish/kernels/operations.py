"""The kernels as functions: arguments checked here, work done by the best form this machine has."""

from __future__ import annotations

import mlx.core as mx

from pilotfish.kernels.cpu import native


def small_batch_qmm(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    *,
    group_size: int,
    bits: int,
    mode: str = "affine",
) -> mx.array:
    """x (..., K) times the transpose of a quantized (N, K) matrix -> (..., N) in x's dtype, sums in float32.

    w, scales, biases: as `mx.quantize` gives them; affine 2/3/4/5/6/8 bits, mxfp4, mxfp8, nvfp4.
    Raises ValueError naming the shapes where they do not fit together.
    """
    k, n = w.shape[-1] * 32 // bits, w.shape[0]
    if w.ndim != 2 or x.shape[-1] != k or scales.shape != (n, k // group_size):
        raise ValueError(
            f"x {x.shape}, w {w.shape} and scales {scales.shape} do not fit together at {bits} bits in groups of "
            f"{group_size}: w stands for ({n}, {k}), so x must end in {k} and scales be ({n}, {k // group_size})"
        )
    extension = native() if on_cpu() else None
    if extension is None or x.size == 0:
        wide = x.astype(mx.float32)  # stock CPU kernels sum in the dtype of x
        out: mx.array = mx.quantized_matmul(wide, w, scales, biases, group_size=group_size, bits=bits, mode=mode)
        return out.astype(x.dtype)
    rows = x.reshape(-1, k).astype(mx.float32)
    out = extension.qmm(rows, w, scales, biases, group_size, bits, mode)
    return out.reshape(*x.shape[:-1], n).astype(x.dtype)


def small_batch_attention(q: mx.array, k: mx.array, v: mx.array, mask: mx.array, *, scale: float) -> mx.array:
    """Few query rows against a long cache, read in place.

    q (B, heads, L, D), k and v (B, kv_heads, S, D), mask (B, 1, L, S) bool -> (B, L, heads * D) in q's dtype.
    Slots that no row sees are not read past the last one seen; masked slots weigh exactly nothing, so the size of the
    buffer and the other rows do not change a row. D must be a multiple of 16.
    """
    extension = native() if on_cpu() else None
    if extension is None or q.shape[-1] % 16:
        rows = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)
        return rows.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1)
    mask = mx.broadcast_to(mask, (q.shape[0], 1, q.shape[2], k.shape[2]))
    q32, k32, v32 = (a.astype(mx.float32) for a in (q, k, v))
    out: mx.array = extension.attention(q32, k32, v32, mask, scale)
    return out.astype(q.dtype)


def on_cpu() -> bool:
    """Whether MLX computes on the CPU, the only device that has compiled kernels so far."""
    return mx.default_device().type == mx.DeviceType.cpu
