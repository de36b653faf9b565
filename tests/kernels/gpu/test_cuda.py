"""The same kernels as CUDA: every text compiles for the architectures that are in use, without spilled registers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from pilotfish.kernels.gpu import GpuOperations
from pilotfish.kernels.operations import Runs
from pilotfish.kernels.weights import Weights

ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
TYPES = {mx.float32: "float", mx.float16: "__half", mx.bfloat16: "__nv_bfloat16", mx.int32: "int32_t",
         mx.uint32: "uint32_t", mx.uint8: "uint8_t"}  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed here"),
]


class CompiledKernel:
    """Stands for what `mx.fast.cuda_kernel` returns: wraps the text as MLX does, compiles it and gives zeros back."""

    compiled: list[str]
    folder: Path

    def __init__(self, name: str, input_names, output_names, source: str, header: str = "") -> None:
        self.name, self.names, self.source, self.header = name, [*input_names, *output_names], source, header

    def __call__(self, *, inputs, template, grid, threadgroup, output_shapes, output_dtypes) -> list[mx.array]:
        constants = ", ".join(f"{'typename' if isinstance(v, mx.Dtype) else type(v).__name__} {n}" for n, v in template)
        kinds = [*(f"const {TYPES[a.dtype]}*" for a in inputs), *(f"{TYPES[d]}*" for d in output_dtypes)]
        arguments = ", ".join(f"{kind} {name}" for kind, name in zip(kinds, self.names, strict=True))
        values = ", ".join(TYPES[v] if isinstance(v, mx.Dtype) else str(v).lower() for _, v in template)
        text = (
            "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <cstdint>\n"
            f"{self.header}\ntemplate <{constants}>\n__global__ void {self.name}({arguments}) {{\n{self.source}\n}}\n"
            f"template __global__ void {self.name}<{values}>({', '.join(kinds)});\n"
        )
        self.compile(text)
        return [mx.zeros(s, dtype=d) for s, d in zip(output_shapes, output_dtypes, strict=True)]

    def compile(self, text: str) -> None:
        source = self.folder / f"{self.name}.cu"
        source.write_text(text)
        for architecture in ARCHITECTURES:
            command = ["nvcc", "-std=c++17", f"-arch={architecture}", "-Xptxas", "-v", "-c", str(source), "-o",
                       str(self.folder / "made.o")]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert "0 bytes spill stores" in done.stderr
            self.compiled.append(f"{self.name} {architecture}")


@pytest.fixture
def operations(tmp_path: Path) -> GpuOperations:
    CompiledKernel.compiled, CompiledKernel.folder = [], tmp_path
    return GpuOperations("cuda", CompiledKernel)


PRODUCTS = [("nvfp4", 16, 4, 1), ("nvfp4", 16, 4, 9), ("mxfp4", 32, 4, 9), ("mxfp8", 32, 8, 9), ("affine", 64, 4, 9),
            ("affine", 64, 6, 9)]  # fmt: skip


@pytest.mark.parametrize(("mode", "group", "bits", "rows"), PRODUCTS)
def test_products_compile(operations: GpuOperations, mode: str, group: int, bits: int, rows: int):
    packed, scales, *biases = mx.quantize(mx.zeros((8, 128), dtype=mx.bfloat16), group_size=group, bits=bits, mode=mode)
    weights = Weights(packed, scales, biases[0] if biases else None, group, bits, mode)

    operations.project(mx.zeros((rows, 128), dtype=mx.bfloat16), [operations.prepare(weights)])

    assert CompiledKernel.compiled == [f"pilotfish_qmm {a}" for a in ARCHITECTURES]


def test_dense_products_experts_and_attention_compile(operations: GpuOperations):
    x: dict[str, Any] = {"dtype": mx.bfloat16}
    operations.project(mx.zeros((5, 64), **x), [Weights(mx.zeros((8, 64), **x))])
    packed, scales, biases = mx.quantize(mx.zeros((4, 8, 128), **x), group_size=64, bits=4)
    stack = Weights(packed, scales, biases, 64, 4, "affine")
    operations.gather(mx.zeros((5, 128), **x), mx.zeros((5, 2), dtype=mx.int32), stack)
    keys = mx.zeros((1, 2, 600, 512), **x)
    tail = mx.zeros((1, 2, 128, 512), **x)
    runs = Runs((keys, tail), (keys, tail), mx.array([500], dtype=mx.int32))
    operations.attention(mx.zeros((1, 5, 8, 512), **x), runs, mx.array([520], dtype=mx.int32), None, 1.0)

    assert {line.split()[0] for line in CompiledKernel.compiled} == {
        "pilotfish_dense", "pilotfish_gather", "pilotfish_attention", "pilotfish_attention_join",
    }  # fmt: skip
