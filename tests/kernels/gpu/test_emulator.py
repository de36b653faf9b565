"""The emulator itself: it runs what is right, and it can fail."""

from __future__ import annotations

import shutil

import mlx.core as mx
import pytest

from tests.kernels.gpu.emulator import EmulatedKernel

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed here")
X = mx.arange(64, dtype=mx.float32)


def run(source: str, template=(("T", mx.float32),), dtype: mx.Dtype = mx.float32) -> mx.array:
    kernel = EmulatedKernel("test", ["x"], ["out"], source)
    return kernel(inputs=[X], template=template, grid=(64, 1, 1), threadgroup=(64, 1, 1), output_shapes=[(64,)],
                  output_dtypes=[dtype])[0]  # fmt: skip


def test_each_simdgroup_sums_its_own_lanes():
    out = run("out[thread_position_in_grid.x] = T(simd_sum(x[thread_position_in_grid.x]));")

    assert out.tolist() == [496.0] * 32 + [1520.0] * 32


def test_a_collective_that_only_some_lanes_reach_is_reported():
    with pytest.raises(RuntimeError, match="by 16 of 32 lanes"):
        run("if (thread_index_in_simdgroup < 16) out[0] = simd_sum(x[0]);")


def test_a_mistake_is_reported_with_its_line():
    with pytest.raises(RuntimeError, match=r"test\.metal:2"):
        run("float y = 1.0f;\nout[0] = z;")


def test_what_a_kernel_does_not_write_is_not_zero():
    out = run("if (thread_position_in_grid.x == 0) out[0] = 1.0f;")

    assert out[0].item() == 1.0
    assert out[1].item() != 0.0


def test_a_kernel_whose_sum_depends_on_the_number_of_rows_shows():
    """The fault that the conformance suite looks for: another order of adding for another M."""
    source = """
        float total = 0.0f;
        for (int i = 0; i < 64; i += M) {
          float part = 0.0f;
          for (int j = 0; j < M; ++j) part += 1.0f / (1.0f + x[i + j]);
          total += part;
        }
        out[thread_position_in_grid.x] = total;
    """
    assert run(source, [("M", 1)])[0].item() != run(source, [("M", 8)])[0].item()


def test_bfloat16_rounds_to_the_nearest_even():
    out = run("out[thread_position_in_grid.x] = T(1.0f + x[thread_position_in_grid.x] / 512.0f);",
              [("T", mx.bfloat16)], mx.bfloat16)  # fmt: skip

    assert mx.array_equal(out, (1 + X / 512).astype(mx.bfloat16))
