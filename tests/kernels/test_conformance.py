"""The contract of every kernel: right, and row i depends on row i only, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from pilotfish import kernels
from pilotfish.kernels.cpu import native

needs_native = pytest.mark.skipif(native() is None, reason="the CPU kernels are not built here")
FORMATS = [
    *(("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)),
    ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16),
]  # fmt: skip
DTYPES = [mx.float32, mx.bfloat16, mx.float16]


def weights(n: int, k: int, mode: str, bits: int, group: int, dtype=mx.float32):
    w = mx.random.normal((n, k), key=mx.random.key(n + k)).astype(dtype)
    packed, scales, *biases = mx.quantize(w, group_size=group, bits=bits, mode=mode)
    # In float32: MLX would round the unpacked weights to the scales' type, which no kernel has to do.
    wide = [a.astype(mx.float32) if mode == "affine" else a for a in (scales, *biases)]
    dense = mx.dequantize(packed, *wide, group_size=group, bits=bits, mode=mode, dtype=mx.float32)
    return packed, scales, (biases[0] if biases else None), np.array(dense).astype(np.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("mode", "bits", "group"), FORMATS)
@pytest.mark.parametrize(("n", "k"), [(1, 128), (9, 256), (37, 640)])
def test_quantized_matmul_is_right_and_row_independent(n, k, mode, bits, group, dtype):
    packed, scales, biases, dense = weights(n, k, mode, bits, group, dtype)
    x = mx.random.normal((17, k), key=mx.random.key(3)).astype(dtype)

    def run(rows: mx.array) -> mx.array:
        return kernels.small_batch_qmm(rows, packed, scales, biases, group_size=group, bits=bits, mode=mode)

    together = run(x)
    want = np.array(x.astype(mx.float32)).astype(np.float64) @ dense.T
    rounding = {mx.float32: 2e-6, mx.bfloat16: 2**-8, mx.float16: 2**-10}[dtype]
    assert np.abs(np.array(together.astype(mx.float32)) - want).max() <= rounding * max(1, np.abs(want).max())
    for rows in range(1, 10):
        for start in (0, 17 - rows):
            assert mx.array_equal(run(x[start : start + rows]), together[start : start + rows])


def test_shapes_that_do_not_fit_are_refused_by_name():
    packed, scales, biases, _ = weights(8, 128, "affine", 4, 64)

    with pytest.raises(ValueError, match=r"\(2, 64\).*stands for \(8, 128\)"):
        kernels.small_batch_qmm(mx.zeros((2, 64)), packed, scales, biases, group_size=64, bits=4)
    with pytest.raises(ValueError, match="groups of 32"):
        kernels.small_batch_qmm(mx.zeros((2, 128)), packed, scales, biases, group_size=32, bits=4)


def test_odd_inputs_are_taken():
    packed, scales, biases, dense = weights(8, 128, "affine", 4, 64)
    options = {"group_size": 64, "bits": 4}
    x = mx.random.normal((2, 3, 256), key=mx.random.key(1))

    assert kernels.small_batch_qmm(mx.zeros((0, 128)), packed, scales, biases, **options).shape == (0, 8)
    strided = x[..., ::2]
    got = kernels.small_batch_qmm(strided, packed, scales, biases, **options)
    assert got.shape == (2, 3, 8)
    np.testing.assert_allclose(np.array(got), np.array(strided) @ dense.T, rtol=1e-4, atol=1e-4)


def test_the_operation_is_lazy_and_can_be_compiled():
    packed, scales, biases, _ = weights(8, 128, "affine", 4, 64)

    def twice(x):
        y = kernels.small_batch_qmm(x, packed, scales, biases, group_size=64, bits=4)
        return y + y

    x = mx.ones((2, 128))
    assert mx.array_equal(mx.compile(twice)(x), twice(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 1, 64), (8, 2, 128), (4, 4, 256), (4, 2, 512), (2, 1, 16)])
def test_attention_is_right_row_independent_and_blind_to_the_buffers_size(heads, kv_heads, dim, dtype):
    rows, slots, lengths = 9, 61, [0, 17]
    q = mx.random.normal((2, heads, rows, dim), key=mx.random.key(0)).astype(dtype)
    k = mx.random.normal((2, kv_heads, slots, dim), key=mx.random.key(1)).astype(dtype)
    v = mx.random.normal((2, kv_heads, slots, dim), key=mx.random.key(2)).astype(dtype)
    query = mx.array(lengths)[:, None, None, None] + mx.arange(rows)[:, None]
    mask = (mx.arange(slots) <= query) & (mx.arange(slots) > query - 20)

    def run(i: int, j: int, wider: int = 0) -> mx.array:
        pad = [(0, 0), (0, 0), (0, wider), (0, 0)]
        seen = mx.pad(mask[:, :, i:j], [(0, 0), (0, 0), (0, 0), (0, wider)])
        return kernels.small_batch_attention(q[:, :, i:j], mx.pad(k, pad), mx.pad(v, pad), seen, scale=dim**-0.5)

    together = run(0, rows)
    wide = [a.astype(mx.float32) for a in (q, k, v)]
    want = mx.fast.scaled_dot_product_attention(*wide, scale=dim**-0.5, mask=mask)
    want = want.transpose(0, 2, 1, 3).reshape(2, rows, -1)
    rounding = {mx.float32: 3e-6, mx.bfloat16: 2**-8, mx.float16: 2**-10}[dtype]
    assert mx.abs(together.astype(mx.float32) - want).max().item() <= rounding * mx.abs(want).max().item()
    assert mx.array_equal(run(0, rows, wider=200), together)
    for i in range(rows):
        assert mx.array_equal(run(i, i + 1), together[:, i : i + 1])
    assert mx.array_equal(run(2, 7), together[:, 2:7])


@needs_native
@pytest.mark.parametrize("dim", [7, 64, 192, 1536])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("adds", [True, False])
def test_norm_is_right_and_row_independent(dim, weighted, adds):
    x = mx.random.normal((9, dim), key=mx.random.key(0)) * 3
    weight = mx.random.normal((dim,), key=mx.random.key(1)) if weighted else None
    added = mx.random.normal((9, dim), key=mx.random.key(2)) if adds else None

    together = native().rms_norm(x, weight, 1e-6, added)

    want = mx.fast.rms_norm(x, weight, 1e-6) + (added if adds else 0)
    assert mx.allclose(together, want, rtol=1e-5, atol=1e-5)
    for i in range(9):
        one = native().rms_norm(x[i : i + 1], weight, 1e-6, None if added is None else added[i : i + 1])
        assert mx.array_equal(one, together[i : i + 1])


@needs_native
@pytest.mark.parametrize("size", [5, 64, 389])
def test_geglu_is_right_and_row_independent_over_its_whole_range(size):
    gate = mx.concatenate([mx.random.normal((8, size), key=mx.random.key(0)) * 4, mx.linspace(-120, 120, size)[None]])
    up = mx.random.normal((9, size), key=mx.random.key(1))

    together = native().geglu(gate, up)

    assert mx.allclose(together, nn.gelu_approx(gate) * up, rtol=1e-5, atol=1e-5)
    for i in range(9):
        assert mx.array_equal(native().geglu(gate[i : i + 1], up[i : i + 1]), together[i : i + 1])


@needs_native
@pytest.mark.parametrize("dim", [16, 64, 512])
def test_rotation_is_right_for_every_row_of_a_batch(dim):
    x = mx.random.normal((2, 5, 3, dim), key=mx.random.key(0))
    offset = mx.array([3, 5000], dtype=mx.int32)
    periods = 10000.0 ** (mx.arange(0, dim, 2) / dim)
    periods[dim // 4 :] = mx.inf

    got = native().rope(x, offset, 1.0 / periods)

    want = mx.fast.rope(x.transpose(0, 2, 1, 3), dim, traditional=False, base=None, scale=1.0, offset=offset,
                        freqs=periods)  # fmt: skip
    assert mx.allclose(got, want, rtol=1e-4, atol=1e-3)  # float32 angles at position 5000
    for i in range(5):
        one = native().rope(x[:, i : i + 1], offset + i, 1.0 / periods)
        assert mx.array_equal(one, got[:, :, i : i + 1])


RUN = """
import mlx.core as mx, os, sys, threading
from pilotfish import kernels
from pilotfish.kernels.cpu import native
w, s, b = mx.quantize(mx.random.normal((4096, 1024), key=mx.random.key(0)), 64, 4)
x = mx.random.normal((4, 1024), key=mx.random.key(1))
def run(): return kernels.small_batch_qmm(x, w, s, b, group_size=64, bits=4)
def digest(): return hash(bytes(memoryview(run())))
"""


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", RUN + code], capture_output=True, text=True, check=True, timeout=120,
        env=os.environ | {"PYTHONHASHSEED": "0"} | environment,
    )  # fmt: skip
    return done.stdout


@needs_native
def test_the_number_of_threads_changes_nothing():
    results = {python("print(digest())", PILOTFISH_THREADS=str(n)) for n in (1, 2, 3, 8)}

    assert len(results) == 1
    assert python("print(native().threads())", PILOTFISH_THREADS="3").strip() == "3"


@needs_native
def test_two_streams_at_once_are_right():
    code = """
want = digest()
def work(out):
    with mx.stream(mx.new_stream(mx.cpu)):
        for _ in range(50): out.append(digest())
found = [[], []]
threads = [threading.Thread(target=work, args=(f,)) for f in found]
[t.start() for t in threads]; [t.join() for t in threads]
print(all(d == want for f in found for d in f), len(found[0]) + len(found[1]))
"""
    assert python(code, PILOTFISH_THREADS="4").split() == ["True", "100"]


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_makes_its_own_threads():
    code = """
from pilotfish.kernels.cpu import _native
want = digest()
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    with mx.stream(mx.new_stream(mx.cpu)):
        ok = digest() == want
    os._exit(0 if ok else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert python(code, PILOTFISH_THREADS="4").strip() == "0"


@needs_native
def test_the_portable_form_agrees_with_the_fast_one():
    code = "print(native().form(), np.abs(np.array(run()) - np.array(mx.quantized_matmul(x, w, s, b))).max() < 1e-3)"
    shown = python("import numpy as np; " + code, PILOTFISH_FORM="portable").split()

    assert shown == ["portable", "True"]


def test_without_the_extension_there_is_one_notice_and_stock_operations_do_the_work(tmp_path):
    blocked = """
import logging
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
import builtins
real = builtins.__import__
def refuse(name, globals=None, locals=None, fromlist=(), level=0):
    if fromlist and "_native" in fromlist: raise ImportError("blocked")
    return real(name, globals, locals, fromlist, level)
builtins.__import__ = refuse
from pilotfish.kernels import cpu
cpu.native.cache_clear()
import numpy as np
for _ in range(2): ok = np.abs(np.array(run()) - np.array(mx.quantized_matmul(x, w, s, b))).max() < 1e-3
print(ok)
"""
    shown = python(blocked).splitlines()

    assert shown[-1] == "True"
    assert len(shown) == 2
    assert "not available (blocked)" in shown[0]
