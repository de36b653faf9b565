"""The kernels as functions for any MLX program: arguments checked here, work done by the best form of the device."""

from __future__ import annotations

import mlx.core as mx

from pilotfish.kernels.choice import best_operations
from pilotfish.kernels.operations import Runs
from pilotfish.kernels.weights import Weights

FLOATS = (mx.float32, mx.bfloat16, mx.float16)
BITS = {"affine": (2, 3, 4, 5, 6, 8), "mxfp4": (4,), "mxfp8": (8,), "nvfp4": (4,)}
GROUPS = {"affine": (32, 64, 128), "mxfp4": (32,), "mxfp8": (32,), "nvfp4": (16,)}


def small_batch_qmm(
    x: mx.array, w: mx.array, scales: mx.array, biases: mx.array | None = None, *, group_size: int, bits: int,
    mode: str = "affine", global_scale: mx.array | None = None,
) -> mx.array:  # fmt: skip
    """x (..., K) times the transpose of a quantized (N, K) matrix -> (..., N) in x's dtype, sums in float32.

    w, scales, biases: as `mx.quantize` gives them; affine 2/3/4/5/6/8 bits in groups of 32/64/128, mxfp4, mxfp8,
    nvfp4 with or without a global scale. Any number of rows; made for 1 to 8. Lazy.
    Raises ValueError naming the shapes where they do not fit together, or a dtype or mode that there is not.
    """
    weights = Weights(w, scales, biases, group_size, bits, mode, global_scale)
    _check(x, weights, dims=2)
    operations = best_operations()
    return operations.project(x, [operations.prepare(weights)])


def small_batch_gather_qmm(
    x: mx.array, w: mx.array, scales: mx.array, biases: mx.array | None = None, *, indices: mx.array, group_size: int,
    bits: int, mode: str = "affine", global_scale: mx.array | None = None,
) -> mx.array:  # fmt: skip
    """x (..., K), or one row for each pick (..., picks, K), times the experts that indices (..., picks) name.

    w (experts, N, K) packed, scales and biases as `mx.quantize` gives them -> (..., picks, N) in x's dtype. Rows that
    name the same expert share its unpacked weights. Raises ValueError as `small_batch_qmm`.
    """
    weights = Weights(w, scales, biases, group_size, bits, mode, global_scale)
    _check(x, weights, dims=3)
    lead = indices.shape[:-1]
    if x.shape[:-1] not in (lead, indices.shape):
        raise ValueError(
            f"x {x.shape} and indices {indices.shape} do not fit together: x must be (..., K) or (..., picks, K) "
            "for indices (..., picks)"
        )
    operations = best_operations()
    return operations.gather(x, indices, operations.prepare(weights))


def small_batch_matmul(x: mx.array, w: mx.array) -> mx.array:
    """x (..., K) times the transpose of dense w (N, K), each float32, bfloat16 or float16 -> (..., N) in x's dtype.

    Sums are in float32. Raises ValueError naming the shapes where they do not fit together.
    """
    _check(x, Weights(w), dims=2)
    operations = best_operations()
    return operations.project(x, [operations.prepare(Weights(w))])


def small_batch_attention(
    q: mx.array, k: mx.array, v: mx.array, *, length: mx.array, scale: float, window: int | None = None,
    tail: tuple[mx.array, mx.array, mx.array] | None = None, ring: bool = False,
) -> mx.array:  # fmt: skip
    """Few query rows against a long cache, read in place, in one fixed order of keys.

    q: (B, L, heads, D); row i of sequence b stands at position length[b] + i, length (B,) int32.
    k, v: (B, kv_heads, slots, D), position p in slot p, or in slot p % slots with `ring`.
    tail: (keys, values, start): positions from start[b] on lie in keys and values (B, kv_heads, tail slots, D) instead.
    window: how many positions a row sees, its own included; None: all.
    Returns (B, L, heads * D) in q's dtype. D is a multiple of 16.
    Neither the sizes of the buffers nor the other rows change a row. Raises ValueError naming what does not fit.
    """
    batch, _, heads, dim = q.shape if q.ndim == 4 else (0, 0, 0, 0)
    fits = k.ndim == 4 and k.shape == v.shape and k.shape[0] == batch and k.shape[3] == dim
    if not fits or heads % k.shape[1] or dim % 16 or length.shape != (batch,):
        raise ValueError(
            f"q {q.shape}, k {k.shape}, v {v.shape} and length {length.shape} do not fit together: q must be "
            "(B, L, heads, D), k and v (B, kv_heads, slots, D), length (B,), kv_heads divide heads, 16 divide D"
        )
    if q.dtype not in FLOATS or k.dtype not in FLOATS or k.dtype != v.dtype:
        raise ValueError(f"q is {q.dtype}, k {k.dtype}, v {v.dtype}; they must be float32, bfloat16 or float16")
    if window is not None and window < 1:
        raise ValueError(f"window is {window}; it must be at least 1, or None")
    length = length.astype(mx.int32)
    runs = Runs((k,), (v,), ring=ring)
    if tail is not None:
        runs = Runs((k, tail[0]), (v, tail[1]), tail[2].astype(mx.int32))
    return best_operations().attention(q, runs, length, window, scale)


def _check(x: mx.array, m: Weights, dims: int) -> None:
    if x.dtype not in FLOATS:
        raise ValueError(f"x is {x.dtype}; it must be float32, bfloat16 or float16")
    if m.bits or m.scales is not None:
        if m.mode not in BITS:
            raise ValueError(f"mode is {m.mode!r}; it must be one of {', '.join(BITS)}")
        if m.bits not in BITS[m.mode] or m.group_size not in GROUPS[m.mode]:
            raise ValueError(
                f"{m.mode} with {m.bits} bits in groups of {m.group_size} is not supported; "
                f"bits may be {BITS[m.mode]}, groups {GROUPS[m.mode]}"
            )
    elif m.w.dtype not in FLOATS:
        raise ValueError(f"w is {m.w.dtype}; it must be float32, bfloat16 or float16")
    k = m.inputs
    scales = (*m.w.shape[:-1], k // m.group_size) if m.bits else None
    if m.w.ndim != dims or x.ndim < 1 or x.shape[-1] != k or (m.scales is not None and m.scales.shape != scales):
        packed = f" and scales {m.scales.shape}" if m.scales is not None else ""
        wanted = f" and scales be {scales}" if scales else ""
        raise ValueError(
            f"x {x.shape}, w {m.w.shape}{packed} do not fit together: w must have {dims} dimensions, it stands for a "
            f"width of {k}, so x must end in {k}{wanted}"
        )
