"""The contract of every implementation: right, and row i depends on row i only, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from pilotfish.kernels.operations import Operations, Residual, Runs
from pilotfish.kernels.rotation import Rotation
from pilotfish.kernels.weights import GLOBAL_UNIT, Weights
from tests.kernels.implementations import EMULATED, IMPLEMENTATIONS, METAL

FORMATS = [
    *(("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)),
    ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16),
]  # fmt: skip
DTYPES = [mx.float32, mx.bfloat16, mx.float16]
ROUNDING = {mx.float32: 2e-6, mx.bfloat16: 2**-8, mx.float16: 2**-10}  # one rounding of the result


row_counts: Sequence[int] = range(1, 10)
SLOW = {EMULATED: pytest.mark.slow}  # every number of rows and format is compiled anew


def few_when_emulated(operations: Operations, common: bool) -> None:
    """A case that is not common is left to the other implementations: the emulator compiles for a second each."""
    if operations is METAL and not common:
        pytest.skip("emulated in fewer combinations")


@pytest.fixture(params=[pytest.param(name, marks=SLOW.get(name, ())) for name in sorted(IMPLEMENTATIONS)])
def operations(request: pytest.FixtureRequest) -> Iterator[Operations]:
    global row_counts
    row_counts = (1, 2, 9) if request.param == EMULATED else range(1, 10)
    with IMPLEMENTATIONS[request.param]() as made:
        yield made


def normal(*shape: int, seed: int = 0, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def quantized(shape: tuple[int, ...], mode: str, bits: int, group: int, dtype: mx.Dtype = mx.float32):
    """Weights, and what they stand for in float64."""
    packed, scales, *biases = mx.quantize(
        normal(*shape, seed=sum(shape), dtype=dtype), group_size=group, bits=bits, mode=mode
    )
    # In float32: MLX would round the unpacked weights to the scales' type, which no kernel has to do.
    wide = [a.astype(mx.float32) if mode == "affine" else a for a in (scales, *biases)]
    dense = mx.dequantize(packed, *wide, group_size=group, bits=bits, mode=mode, dtype=mx.float32)
    return Weights(packed, scales, biases[0] if biases else None, group, bits, mode), float64(dense)


def float64(a: mx.array) -> np.ndarray:
    return np.array(a.astype(mx.float32)).astype(np.float64)


def assert_close(got: mx.array, want: np.ndarray, more: float = 1.0) -> None:
    allowed = ROUNDING[got.dtype] * more * max(1, np.abs(want).max())
    assert np.abs(float64(got) - want).max() <= allowed


def assert_rows_are_independent(run: Callable[[int, int], mx.array], rows: int, axis: int = 0) -> mx.array:
    """`run(i, j)` computes rows i to j: whatever the number, each row must come out the same. Returns all of them."""
    together = run(0, rows)
    for count in (*(n for n in row_counts if n <= rows), rows):
        for start in {0, rows - count, (rows - count) // 2}:
            part = run(start, start + count)
            index = [slice(None)] * together.ndim
            index[axis] = slice(start, start + count)
            assert mx.array_equal(part, together[tuple(index)]), f"{count} rows from {start}"
    return together


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("mode", "bits", "group"), FORMATS)
@pytest.mark.parametrize(("n", "k"), [(1, 128), (9, 384), (37, 640)])
def test_quantized_matmul(operations, n, k, mode, bits, group, dtype):
    few_when_emulated(operations, dtype == mx.float32 or (mode, group) in (("nvfp4", 16), ("affine", 64)))
    weights, dense = quantized((n, k), mode, bits, group, dtype)
    x, prepared = normal(17, k, seed=3, dtype=dtype), operations.prepare(weights)

    together = assert_rows_are_independent(lambda i, j: operations.project(x[i:j], [prepared]), 17)

    assert together.dtype == dtype
    assert_close(together, float64(x) @ dense.T)


@pytest.mark.parametrize("k", [16, 48, 80, 1040])
def test_nvfp4_with_an_odd_number_of_groups(operations, k):
    """MLX 3912: prefill-sized products of such matrices were wrong, decoding was right."""
    weights, dense = quantized((24, k), "nvfp4", 4, 16)
    x, prepared = normal(50, k, seed=3), operations.prepare(weights)

    assert_rows_are_independent(lambda i, j: operations.project(x[i:j], [prepared]), 17)
    assert_close(operations.project(x, [prepared]), float64(x) @ dense.T)


@pytest.mark.parametrize("n", range(1, 10))
def test_narrow_outputs(operations, n):
    """MLX 3762: fewer than eight columns read beyond their scales."""
    weights, dense = quantized((n, 64), "mxfp4", 4, 32)
    x = normal(3, 64, seed=3)

    assert_close(operations.project(x, [operations.prepare(weights)]), float64(x) @ dense.T)


@pytest.mark.parametrize("rows", [0, 1, 8, 9, 33, 40])
def test_any_number_of_rows(operations, rows):
    weights, dense = quantized((16, 128), "affine", 4, 64)
    x = normal(rows, 128, seed=3)

    got = operations.project(x, [operations.prepare(weights)])

    assert got.shape == (rows, 16)
    assert rows == 0 or np.abs(float64(got) - float64(x) @ dense.T).max() < 1e-4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("of_weights", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), [(1, 8), (9, 65), (37, 640), (5, 3)])
def test_dense_matmul(operations, n, k, of_weights, dtype):
    if operations.name == "stock" and of_weights != dtype:
        pytest.skip("MLX's own product promotes the types")
    w, x = normal(n, k, dtype=of_weights), normal(11, k, seed=3, dtype=dtype)
    prepared = operations.prepare(Weights(w))

    together = assert_rows_are_independent(lambda i, j: operations.project(x[i:j], [prepared]), 11)

    assert_close(together, float64(x) @ float64(w).T, 1 if operations.name != "stock" or dtype == mx.float32 else 8)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_several_matrices_stand_side_by_side(operations, dtype):
    first, one = quantized((24, 128), "affine", 4, 64, dtype)
    second, two = quantized((8, 128), "affine", 8, 32, dtype)
    x = normal(5, 128, seed=3, dtype=dtype)

    got = operations.project(x, [operations.prepare(first), operations.prepare(second)])

    assert_close(got, float64(x) @ np.concatenate([one, two]).T)


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("width", [37, 64])
def test_what_stands_around_a_product(operations, rows, width):
    """Norm before; gate, times, residual or cap after."""
    gate, up = (operations.prepare(Weights(normal(width, 64, seed=s) / 8)) for s in (1, 2))
    dense = [float64(normal(width, 64, seed=s) / 8) for s in (1, 2)]
    x, weight = normal(rows, 64, seed=3) * 2, normal(64, seed=4)
    normed = mx.fast.rms_norm(x, weight, 1e-6)
    plain = [mx.array((float64(normed) @ d.T).astype(np.float32)) for d in dense]

    def check(expected: mx.array, matrices, **options):
        def run(i: int, j: int) -> mx.array:
            parts = {k: (v if k in ("gated", "cap") else sliced(v, i, j)) for k, v in options.items()}
            return operations.project(x[i:j], matrices, norm=(weight, 1e-6), **parts)

        assert_close(assert_rows_are_independent(run, rows), float64(expected), 8)

    def sliced(value, i: int, j: int):
        return value._replace(stream=value.stream[i:j]) if isinstance(value, Residual) else (value[0][i:j], value[1])

    check(nn.gelu_approx(plain[0]) * plain[1], [gate, up], gated=True)
    values = normal(rows, 3, width, seed=5)
    check(nn.gelu_approx(plain[0]) * values[:, 1], [gate], times=(values, 1))
    residual = Residual(normal(rows, width, seed=6), normal(width, seed=7), 1e-6, mx.array([0.5]))
    after = (residual.stream + mx.fast.rms_norm(plain[0], residual.weight, 1e-6)) * 0.5
    check(after, [gate], residual=residual)
    check(mx.tanh(plain[0] / 3) * 3, [gate], cap=3.0)


@pytest.mark.parametrize(("mode", "bits", "group"), [("affine", 4, 64), ("mxfp8", 8, 32), ("nvfp4", 4, 16)])
@pytest.mark.parametrize("per_pick", [False, True])
def test_experts_share_weights_and_not_results(operations, mode, bits, group, per_pick):
    weights, dense = quantized((6, 24, 128), mode, bits, group)
    prepared, picks = operations.prepare(weights), 3
    x = normal(9, picks, 128, seed=3) if per_pick else normal(9, 128, seed=3)
    indices = mx.random.randint(0, 6, (9, picks), key=mx.random.key(4))

    together = assert_rows_are_independent(lambda i, j: operations.gather(x[i:j], indices[i:j], prepared), 9)

    rows, chosen = float64(x).reshape(9, -1, 128), np.array(indices)
    want = [[dense[chosen[r, p]] @ rows[r, p if per_pick else 0] for p in range(picks)] for r in range(9)]
    assert_close(together, np.array(want), 4)


def test_many_experts(operations):
    """MLX 3393: 128 experts, the best 8 of each token."""
    weights, dense = quantized((128, 8, 64), "affine", 4, 32)
    prepared = operations.prepare(weights)
    for rows in (1, 5, 64):
        x = normal(rows, 64, seed=rows)
        indices = mx.argsort(normal(rows, 128, seed=rows + 1), axis=-1)[:, :8]
        got = operations.gather(x, indices, prepared)
        want = np.einsum("rpnk,rk->rpn", dense[np.array(indices)], float64(x))
        assert_close(got, want, 4)


@pytest.mark.parametrize("stack", [False, True])
def test_global_scales_multiply_what_the_weights_stand_for(operations, stack):
    if operations.name == "stock":
        pytest.skip("MLX computes with global scales on a GPU only")
    scale = mx.array([3.0, 0.5]) if stack else mx.array([3.0])
    weights, dense = quantized((2, 8, 64) if stack else (8, 64), "nvfp4", 4, 16)
    prepared = operations.prepare(weights._replace(global_scale=scale))
    x = normal(4, 64, seed=3)

    if stack:
        got = operations.gather(x, mx.broadcast_to(mx.array([[0, 1]]), (4, 2)), prepared)
        want = np.einsum("enk,rk->ren", dense * np.array(scale)[:, None, None], float64(x)) / GLOBAL_UNIT
    else:
        got, want = operations.project(x, [prepared]), float64(x) @ dense.T * 3 / GLOBAL_UNIT

    assert np.abs(float64(got) - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize(("mode", "bits", "group"), FORMATS)
def test_rows_are_looked_up(operations, mode, bits, group):
    weights, dense = quantized((11, 384), mode, bits, group)
    ids = mx.array([[3, 0, 10], [3, 3, 7]], dtype=mx.int32)

    got = operations.lookup(ids, operations.prepare(weights), 2.0, mx.float32)

    assert_close(got, dense[np.array(ids)] * 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 1, 64), (8, 2, 128), (4, 4, 256), (6, 2, 512), (3, 1, 16)])
@pytest.mark.parametrize("window", [None, 20])
def test_attention_over_one_run(operations, heads, kv_heads, dim, window, dtype):
    """Rows are independent, and blind to the size of the buffer."""
    rows, slots, length = 9, 600, mx.array([0, 530], dtype=mx.int32)
    q = normal(2, rows, heads, dim, dtype=dtype)
    k, v = (normal(2, kv_heads, slots, dim, seed=s, dtype=dtype) for s in (1, 2))

    def run(i: int, j: int, wider: int = 0) -> mx.array:
        wide = [mx.pad(a, [(0, 0), (0, 0), (0, wider), (0, 0)]) for a in (k, v)]
        return operations.attention(q[:, i:j], Runs((wide[0],), (wide[1],)), length + i, window, dim**-0.5)

    together = assert_rows_are_independent(run, rows, axis=1)

    assert_close(together, attention_of(q, k, v, length, window, dim**-0.5), 4)
    assert mx.array_equal(run(0, rows, wider=300), together)


def attention_of(q, k, v, length, window, scale) -> np.ndarray:
    """In float64, keys by position."""
    q, k, v = float64(q), float64(k), float64(v)
    batch, rows, heads, dim = q.shape
    out = np.zeros((batch, rows, heads, dim))
    for b in range(batch):
        for i in range(rows):
            last = length[b].item() + i
            first = 0 if window is None else max(0, last - window + 1)
            for h in range(heads):
                shared = h // (heads // k.shape[1])
                scores = k[b, shared, first : last + 1] @ q[b, i, h] * scale
                p = np.exp(scores - scores.max())
                out[b, i, h] = p / p.sum() @ v[b, shared, first : last + 1]
    return out.reshape(batch, rows, heads * dim)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_attention_does_not_see_where_the_tail_begins(operations, dtype):
    rows, slots, dim = 5, 700, 64
    length = mx.array([300, 640], dtype=mx.int32)
    q = normal(2, rows, 4, dim, dtype=dtype)
    k, v = (normal(2, 2, slots, dim, seed=s, dtype=dtype) for s in (1, 2))
    whole = operations.attention(q, Runs((k,), (v,)), length, None, 0.1)

    for start in ([300, 640], [201, 520], [256, 600]):
        tails = [mx.stack([mx.roll(a[b], -s, axis=1)[:, :128] for b, s in enumerate(start)]) for a in (k, v)]
        history = [mx.concatenate([a[:, :, : max(start)], mx.zeros_like(a[:, :, :40])], axis=2) for a in (k, v)]
        runs = Runs((history[0], tails[0]), (history[1], tails[1]), mx.array(start, dtype=mx.int32))

        assert mx.array_equal(operations.attention(q, runs, length, None, 0.1), whole)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("length", [0, 3, 40, 500])
def test_attention_over_a_ring(operations, length, dtype):
    window, ring, rows, dim = 32, 47, 6, 32
    q = normal(1, rows, 4, dim, dtype=dtype)
    k, v = (normal(1, 1, 600, dim, seed=s, dtype=dtype) for s in (1, 2))
    at = mx.array([length], dtype=mx.int32)
    stored = mx.arange(max(0, length + rows - ring), length + rows, dtype=mx.int32)
    rings = [mx.zeros((1, 1, ring, dim), dtype=dtype) for _ in range(2)]
    for r, a in zip(rings, (k, v), strict=True):
        r[:, :, stored % ring] = a[:, :, stored]

    def run(i: int, j: int) -> mx.array:
        return operations.attention(q[:, i:j], Runs((rings[0],), (rings[1],), ring=True), at + i, window, 0.2)

    assert_close(assert_rows_are_independent(run, rows, axis=1), attention_of(q, k, v, at, window, 0.2), 4)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("ring", [0, 11])
def test_writes_land_where_they_should_and_nowhere_else(operations, ring, dtype):
    slots = ring or 40
    old = [normal(2, 3, slots, 16, seed=s, dtype=dtype) for s in (0, 1)]
    new = [normal(2, 3, 4, 16, seed=s, dtype=dtype) for s in (2, 3)]
    length, start = mx.array([9, 30], dtype=mx.int32), None if ring else mx.array([2, 25], dtype=mx.int32)

    written = operations.write(*old, *new, length, start, ring)

    for before, rows, after in zip(old, new, written, strict=True):
        want = np.array(before.astype(mx.float32))
        for b in range(2):
            for i in range(4):
                slot = (length[b].item() + i) % ring if ring else length[b].item() - start[b].item() + i
                want[b, :, slot] = np.array(rows.astype(mx.float32))[b, :, i]
        assert np.array_equal(np.array(after.astype(mx.float32)), want)
        assert not mx.array_equal(before, after)  # the old buffer is as it was


@pytest.mark.parametrize("dim", [16, 64, 512])
@pytest.mark.parametrize("shared", [False, True])
def test_heads_are_normed_and_turned_by_position(operations, dim, shared):
    q_heads, kv_heads, rows, offset = 4, 2, 5, mx.array([3, 5000], dtype=mx.int32)
    x = normal(2, rows, (q_heads + kv_heads * (1 if shared else 2)) * dim, seed=1)
    weights = [normal(dim, seed=s) for s in (2, 3)]
    rotation = Rotation(PartialRope(dim))

    def run(i: int, j: int) -> tuple[mx.array, ...]:
        return operations.heads(x[:, i:j], *weights, offset + i, rotation, head_dim=dim, kv_heads=kv_heads,
                                shared=shared, eps=1e-6)  # fmt: skip

    q, k, v = run(0, rows)
    split = x.reshape(2, rows, -1, dim)
    values = split[:, :, q_heads : q_heads + kv_heads] if shared else split[:, :, q_heads + kv_heads :]
    turned = [
        rotation.rope(mx.fast.rms_norm(part, w, 1e-6).transpose(0, 2, 1, 3), offset=offset)
        for part, w in zip((split[:, :, :q_heads], split[:, :, q_heads : q_heads + kv_heads]), weights, strict=True)
    ]
    assert mx.allclose(q, turned[0].transpose(0, 2, 1, 3), rtol=1e-4, atol=2e-3)  # float32 angles at position 5000
    assert mx.allclose(k, turned[1], rtol=1e-4, atol=2e-3)
    assert mx.allclose(v, mx.fast.rms_norm(values, None, 1e-6).transpose(0, 2, 1, 3), rtol=1e-5, atol=1e-5)
    for i in range(rows):
        one = run(i, i + 1)
        assert mx.array_equal(one[0], q[:, i : i + 1])
        assert mx.array_equal(one[1], k[:, :, i : i + 1])
        assert mx.array_equal(one[2], v[:, :, i : i + 1])
    only = operations.heads(x[..., : q_heads * dim], weights[0], None, offset, rotation, head_dim=dim, kv_heads=0,
                            shared=False, eps=1e-6)  # fmt: skip
    assert len(only) == 1
    assert mx.array_equal(only[0], q)


class PartialRope:
    """As mlx-lm's proportional rope: the second half of the pairs does not turn."""

    def __init__(self, dim: int) -> None:
        self.dim, self._freqs = dim, 10000.0 ** (mx.arange(0, dim, 2) / dim)
        self._freqs[dim // 4 :] = mx.inf

    def __call__(self, x: mx.array, offset: mx.array) -> mx.array:
        return mx.fast.rope(x, self.dim, traditional=False, base=None, scale=1.0, offset=offset, freqs=self._freqs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [7, 64, 192, 1536])
@pytest.mark.parametrize("weighted", [True, False])
def test_norms(operations, dim, weighted, dtype):
    x = normal(9, dim, dtype=dtype) * 3
    weight = normal(dim, seed=1, dtype=dtype) if weighted else None

    together = assert_rows_are_independent(lambda i, j: operations.rms_norm(x[i:j], weight, 1e-6), 9)

    wide = float64(x)
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * (1 if weight is None else float64(weight))
    assert_close(together, want, 2 if operations.name == "stock" else 1)


def test_the_gate_holds_over_its_whole_range(operations):
    gate = mx.concatenate([normal(8, 64) * 4, mx.linspace(-120, 120, 64)[None]])
    up = normal(9, 64, seed=1)
    identity = [operations.prepare(Weights(mx.concatenate(pair, axis=1)))
                for pair in ((mx.eye(64), mx.zeros((64, 64))), (mx.zeros((64, 64)), mx.eye(64)))]  # fmt: skip

    got = operations.project(mx.concatenate([gate, up], axis=1), identity, gated=True)

    assert mx.allclose(got, nn.gelu_approx(gate) * up, rtol=1e-5, atol=1e-5)


def test_inputs_that_are_not_contiguous(operations):
    weights, dense = quantized((8, 128), "affine", 4, 64)
    strided = normal(2, 3, 256, seed=1)[..., ::2]
    broadcast = mx.broadcast_to(normal(128, seed=2), (3, 128))
    prepared = operations.prepare(weights)

    assert_close(operations.project(strided, [prepared]), float64(strided) @ dense.T)
    assert_close(operations.project(broadcast, [prepared]), float64(broadcast) @ dense.T)


def test_weights_that_are_views_or_broadcast(operations):
    """MLX 3480: a stride of 0 in the weights gave wild values."""
    weights, dense = quantized((16, 128), "affine", 4, 64)
    x = normal(3, 128, seed=1)
    part = Weights(*(a[4:12] for a in weights[:3]), *weights[3:])
    same = Weights(mx.broadcast_to(normal(1, 128, seed=2), (5, 128)))

    assert_close(operations.project(x, [operations.prepare(part)]), float64(x) @ dense[4:12].T)
    assert_close(operations.project(x, [operations.prepare(same)]), float64(x) @ float64(same.w).T)


def test_operations_are_lazy_and_can_be_compiled(operations):
    few_when_emulated(operations, common=False)  # the emulator computes at once
    weights, _ = quantized((8, 128), "affine", 4, 64)
    prepared = operations.prepare(weights)

    def twice(x: mx.array) -> mx.array:
        y = operations.project(x, [prepared])
        return y + y

    x = mx.ones((2, 128))
    assert mx.array_equal(mx.compile(twice)(x), twice(x))


def test_fused_operations_give_what_they_give_one_by_one(operations):
    weights, _ = quantized((128, 128), "affine", 4, 64)
    prepared, x = operations.prepare(weights), normal(3, 128, seed=1)

    def chain() -> list[mx.array]:
        a = operations.project(x, [prepared])
        b = operations.rms_norm(a, None, 1e-6)
        return [operations.project(b, [prepared], cap=5.0), a, operations.concatenate([a, b])]

    for alone, together in zip(chain(), operations.fuse(chain()), strict=True):
        assert mx.array_equal(alone, together)
