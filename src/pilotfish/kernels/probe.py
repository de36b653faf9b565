"""`probe()`: which kernels this machine uses, whether their rows are independent, and what more rows cost."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import mlx.core as mx

from pilotfish.kernels.choice import best_operations
from pilotfish.kernels.cpu import native
from pilotfish.kernels.operations import Operations
from pilotfish.kernels.weights import Weights, quantized

MODES = {"affine4": ("affine", 64, 4), "affine8": ("affine", 64, 8), "mxfp4": ("mxfp4", 32, 4),
         "mxfp8": ("mxfp8", 32, 8), "nvfp4": ("nvfp4", 16, 4), "bfloat16": ("", 0, 0)}  # fmt: skip
ROWS = range(1, 10)


@dataclass(frozen=True)
class FormatProbe:
    """One weight format: rows bitwise the same alone and together, and time(rows) / time(1) by rows."""

    format: str
    rows_are_independent: bool
    growth: dict[int, float]


@dataclass(frozen=True)
class Probe:
    """What `probe` found. `form` names the instruction set of compiled kernels, "" where there are none."""

    device: str
    operations: str
    form: str
    formats: list[FormatProbe]

    @property
    def rows_are_independent(self) -> bool:
        return all(f.rows_are_independent for f in self.formats)


def probe(width: int = 1024, outputs: int = 2048, repeats: int = 5) -> Probe:
    """Measure the kernels in use on a matrix (outputs, width) of each format; takes a second or two."""
    operations = best_operations()
    form = native().form() if operations.name == "cpu" else ""  # type: ignore[union-attr]
    formats = [_format(name, operations, width, outputs, repeats) for name in MODES]
    return Probe(str(mx.default_device()), operations.name, form, formats)


def _format(name: str, operations: Operations, k: int, n: int, repeats: int) -> FormatProbe:
    mode, group, bits = MODES[name]
    w = mx.random.normal((n, k), key=mx.random.key(0)).astype(mx.bfloat16)
    prepared = operations.prepare(quantized(w, mode, group, bits) if mode else Weights(w))
    x = mx.random.normal((max(ROWS), k), key=mx.random.key(1))
    together = operations.project(x, [prepared])
    same = all(
        mx.array_equal(operations.project(x[i : i + rows], [prepared]), together[i : i + rows]).item()
        for rows in ROWS
        for i in {0, len(ROWS) - rows}
    )
    times: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(repeats):
        for rows in ROWS:
            start = time.perf_counter()
            mx.eval(operations.project(x[:rows], [prepared]))
            times[rows].append(time.perf_counter() - start)
    growth = {r: round(median([b / a for a, b in zip(times[1], times[r], strict=True)]), 2) for r in ROWS}
    return FormatProbe(name, same, growth)
