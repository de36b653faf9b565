"""The public functions: what they check, and that they reach the kernels."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from pilotfish import kernels


def quantized(*shape: int, bits: int = 4, group: int = 64):
    return mx.quantize(mx.random.normal(shape, key=mx.random.key(0)), group_size=group, bits=bits)


def test_the_product_of_a_quantized_matrix():
    w, scales, biases = quantized(8, 128)
    x = mx.random.normal((2, 3, 128), key=mx.random.key(1))

    got = kernels.small_batch_qmm(x, w, scales, biases, group_size=64, bits=4)

    want = mx.quantized_matmul(x, w, scales, biases, group_size=64, bits=4)
    assert got.shape == (2, 3, 8)
    assert mx.allclose(got, want, rtol=1e-4, atol=1e-4)


def test_the_product_of_a_dense_matrix_and_of_experts():
    x, w = mx.random.normal((3, 100), key=mx.random.key(1)), mx.random.normal((9, 100), key=mx.random.key(2))
    assert mx.allclose(kernels.small_batch_matmul(x, w), x @ w.T, rtol=1e-4, atol=1e-4)

    stack, scales, biases = quantized(4, 16, 64)
    x, indices = x[:, :64], mx.array([[0, 3], [3, 1], [2, 2]])
    got = kernels.small_batch_gather_qmm(x, stack, scales, biases, indices=indices, group_size=64, bits=4)
    dense = mx.dequantize(stack, scales, biases, group_size=64, bits=4)
    want = np.einsum("rpnk,rk->rpn", np.array(dense)[np.array(indices)], np.array(x))
    np.testing.assert_allclose(np.array(got), want, rtol=1e-4, atol=1e-4)


def test_attention_with_a_tail_and_with_a_ring():
    q = mx.random.normal((1, 2, 4, 32), key=mx.random.key(0))
    k, v = (mx.random.normal((1, 2, 40, 32), key=mx.random.key(s)) for s in (1, 2))
    length = mx.array([30])

    whole = kernels.small_batch_attention(q, k, v, length=length, scale=0.2)
    tail = (k[:, :, 25:], v[:, :, 25:], mx.array([25]))
    assert mx.array_equal(kernels.small_batch_attention(q, k, v, length=length, scale=0.2, tail=tail), whole)
    windowed = kernels.small_batch_attention(q, k, v, length=length, scale=0.2, window=20)
    ring = [mx.roll(a[:, :, 2:32], 2, axis=2) for a in (k, v)]  # position p in slot p % 30
    ringed = kernels.small_batch_attention(q, *ring, length=length, scale=0.2, window=20, ring=True)
    assert mx.allclose(ringed, windowed, rtol=1e-5, atol=1e-6)


W, SCALES, BIASES = quantized(8, 128)
X = mx.zeros((2, 128))
Q, K = mx.zeros((1, 2, 4, 32)), mx.zeros((1, 2, 40, 32))


def qmm(x: mx.array = X, group_size: int = 64, bits: int = 4, mode: str = "affine") -> mx.array:
    return kernels.small_batch_qmm(x, W, SCALES, BIASES, group_size=group_size, bits=bits, mode=mode)


def gather(indices: mx.array) -> mx.array:
    parts = (a[None] for a in (W, SCALES, BIASES))
    return kernels.small_batch_gather_qmm(X, *parts, indices=indices, group_size=64, bits=4)


def attend(q: mx.array = Q, k: mx.array = K, length: int = 1, window: int | None = None) -> mx.array:
    return kernels.small_batch_attention(q, k, k, length=mx.zeros((length,)), scale=1, window=window)


REFUSED = [
    (lambda: qmm(X[:, :64]), r"x \(2, 64\), w \(8, 16\).*width of 128"),
    (lambda: qmm(group_size=32), r"scales \(8, 2\).*scales be \(8, 4\)"),
    (lambda: qmm(group_size=48), "groups of 48 is not supported"),
    (lambda: qmm(bits=7), "7 bits"),
    (lambda: qmm(mode="int4"), "'int4'"),
    (lambda: qmm(X.astype(mx.int32)), "int32"),
    (lambda: kernels.small_batch_matmul(X, mx.zeros((8, 128), dtype=mx.int8)), "int8"),
    (lambda: kernels.small_batch_matmul(X, mx.zeros((2, 8, 128))), "2 dimensions"),
    (lambda: gather(mx.zeros((3, 2), dtype=mx.int32)), r"indices \(3, 2\)"),
    (lambda: attend(Q[:, :, :3]), r"q \(1, 2, 3, 32\)"),
    (lambda: attend(length=2), r"length \(2,\)"),
    (lambda: attend(Q[..., :30], K[..., :30]), "16 divide D"),
    (lambda: attend(window=0), "window is 0"),
    (lambda: attend(Q.astype(mx.int32)), "q is .*int32"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_does_not_fit_is_refused_by_name(call, message: str):
    with pytest.raises(ValueError, match=message):
        call()
