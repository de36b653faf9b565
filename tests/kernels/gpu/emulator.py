"""`mx.fast.metal_kernel` on a CPU: the body compiled by the host's C++ compiler, a fiber for every thread.

It proves that the text compiles as C++ (not every rule of Metal: address spaces mean nothing here), that the values are
right and that a row's bits do not depend on its neighbours under one fixed order of `simd_sum`. It does not prove
the hardware's order of sums, races between threads, nor what Apple's compiler makes of the same text.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

HERE = Path(__file__).parent
TYPES = {mx.float32: "float", mx.float16: "float16_t", mx.bfloat16: "bfloat16_t", mx.int32: "int32_t",
         mx.uint32: "uint32_t", mx.uint8: "uint8_t"}  # fmt: skip
Template = Sequence[tuple[str, Any]]
BUILT = Path(tempfile.gettempdir()) / "pilotfish-metal-emulator"


class EmulatedKernel:
    """Stands for what `mx.fast.metal_kernel` returns; evaluates at once."""

    def __init__(
        self, name: str, input_names: Sequence[str], output_names: Sequence[str], source: str, header: str = "",
    ) -> None:  # fmt: skip
        self.name, self.inputs, self.outputs, self.source, self.header = name, input_names, output_names, source, header
        self._libraries: dict[str, Any] = {}

    def __call__(
        self, *, inputs: Sequence[mx.array], template: Template, grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int], output_shapes: Sequence[tuple[int, ...]], output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:  # fmt: skip
        arrays = [np.ascontiguousarray(_as_numpy(a)) for a in inputs]
        # Poisoned, as memory on a device may be: what a kernel forgets to write shows.
        sizes = [int(np.prod(s)) * d.size for s, d in zip(output_shapes, output_dtypes, strict=True)]
        results = [np.full(size, 0xCD, dtype=np.uint8) for size in sizes]
        run = self._compiled([a.dtype for a in inputs], output_dtypes, template)
        pointers = (ctypes.c_void_p * (len(arrays) + len(results)))(*(a.ctypes.data for a in [*arrays, *results]))
        error = run(pointers, (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*threadgroup))
        if error:
            raise RuntimeError(f"{self.name}: {error.decode()}")
        return [mx.array(r).view(d).reshape(s) for r, s, d in zip(results, output_shapes, output_dtypes, strict=True)]

    def _compiled(self, inputs: Sequence[mx.Dtype], outputs: Sequence[mx.Dtype], template: Template) -> Any:
        text = self._text(inputs, outputs, template)
        if text not in self._libraries:
            self._libraries[text] = build(self.name, text)
        return self._libraries[text]

    def _text(self, inputs: Sequence[mx.Dtype], outputs: Sequence[mx.Dtype], template: Template) -> str:
        constants = "\n".join(
            f"using {name} = {TYPES[value]};"
            if isinstance(value, mx.Dtype)
            else f"constexpr {type(value).__name__} {name} = {str(value).lower()};"
            for name, value in template
        )
        kinds = [*(f"const {TYPES[d]}*" for d in inputs), *(f"{TYPES[d]}*" for d in outputs)]
        names = enumerate(zip([*self.inputs, *self.outputs], kinds, strict=True))
        unpacked = "\n".join(f"  auto* {name} = static_cast<{kind}>(buffers[{i}]);" for i, (name, kind) in names)
        return (
            f'#include "metal_stdlib.h"\n{self.header}\n{constants}\n'
            f'void kernel_body(void** buffers) {{\n{unpacked}\n#line 1 "{self.name}.metal"\n{self.source}\n}}\n'
        )


def build(name: str, text: str) -> Any:
    """The `run` function of a kernel's text, compiled once and kept. Raises RuntimeError with the compiler's words."""
    emulator, header = (HERE / "emulator.cpp").read_text(), (HERE / "metal_stdlib.h").read_text()
    library = _made(name, text + header + emulator, ".so", text, [str(_emulator_object(emulator + header)), "-shared"])
    run = ctypes.CDLL(str(library)).run
    run.restype = ctypes.c_char_p
    return run


def _emulator_object(text: str) -> Path:
    return _made("emulator", text, ".o", (HERE / "emulator.cpp").read_text(), ["-c"])


def _made(name: str, key: str, suffix: str, text: str, options: list[str]) -> Path:
    BUILT.mkdir(exist_ok=True)
    path = BUILT / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:20]}{suffix}"
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            source, made = Path(folder) / "kernel.cpp", Path(folder) / "made"
            source.write_text(text)
            command = ["g++", "-std=c++20", "-O1", "-ffp-contract=off", "-mfma", "-fPIC", f"-I{HERE}", str(source)]
            done = subprocess.run([*command, *options, "-o", str(made)], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{name} does not compile:\n{done.stderr}")
            shutil.move(made, path)
    return path


def _as_numpy(a: mx.array) -> np.ndarray:
    mx.eval(a)
    return np.array(a.view(mx.uint16) if a.dtype == mx.bfloat16 else a)
