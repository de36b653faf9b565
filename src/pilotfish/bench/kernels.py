"""The kernels against MLX's own operations: time by number of rows, bandwidth and error.

Cold weights: each call takes the next of several copies, together larger than the last cache. Things compared
alternate within one run, and medians of their ratios are what counts: the machine may be shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import mlx.core as mx
import numpy as np

from pilotfish.kernels import best_operations
from pilotfish.kernels.operations import Operations, Runs
from pilotfish.kernels.stock import StockOperations
from pilotfish.kernels.weights import Weights, quantized

SHAPES = ((2560, 10240), (10240, 2560), (1536, 32768))  # (k, n), as in Gemma 4's larger layers
FORMATS = {"affine4": ("affine", 64, 4), "nvfp4": ("nvfp4", 16, 4)}
ROWS = (1, 2, 3, 4, 5, 6, 8)
COLD_BYTES = 256 << 20
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Product:
    """One matrix in one format. Milliseconds and ratios are medians; rows are the keys, as strings for JSON.

    faster: stock time over ours, both with float32 activations, in the same run. growth: time(rows) / time(1).
    bandwidth: bytes of weights a second at one row, over what a plain read of the same bytes reaches.
    error: largest and mean difference from float64 over the outputs' RMS, bfloat16 in and out.
    """

    shape: tuple[int, int]
    format: str
    milliseconds: dict[str, float]
    stock_milliseconds: dict[str, float]
    faster: dict[str, float]
    growth: dict[str, float]
    stock_growth: dict[str, float]
    bandwidth: float
    error: dict[str, float]


@dataclass(frozen=True)
class Attention:
    """8 query heads on 2 key/value heads of 256, 4096 keys, bfloat16."""

    milliseconds: dict[str, float]
    stock_milliseconds: dict[str, float]
    faster: dict[str, float]


@dataclass(frozen=True)
class Report:
    """What `bench kernels` measured."""

    operations: str
    form: str
    threads: int
    read_gigabytes: float  # a second, by a plain read
    products: list[Product] = field(default_factory=list)
    attention: Attention | None = None


def measure(shapes: Sequence[tuple[int, int]] = SHAPES, repeats: int = 15, progress: Progress | None = None) -> Report:
    """Time everything. Takes minutes: stock operations are what takes long."""
    from pilotfish.kernels.cpu import native

    ours, stock, extension = best_operations(), StockOperations(), native()
    total, done, products, speeds = len(shapes) * len(FORMATS) + 1, 0, [], []
    for shape in shapes:
        for name, kind in FORMATS.items():
            copies = _copies(shape, *kind)
            reading = _bandwidth(copies, extension, repeats)
            speeds.append(reading)
            products.append(_product(shape, name, copies, ours, stock, repeats, reading))
            done += 1
            if progress:
                progress(done, total)
    attention = _attention(ours, stock, repeats)
    if progress:
        progress(total, total)
    form, threads = (extension.form(), extension.threads()) if extension else ("none", 1)
    return Report(ours.name, form, threads, median(speeds) / 1e9, products, attention)


def _copies(shape: tuple[int, int], mode: str, group: int, bits: int) -> list[Weights]:
    k, n = shape
    w = mx.random.normal((n, k), key=mx.random.key(k)).astype(mx.bfloat16)
    original = quantized(w, mode, group, bits)
    arrays, biased = [a for a in original[:3] if a is not None], original.biases is not None
    made = []
    for _ in range(max(2, COLD_BYTES // _bytes(original))):
        copies = [mx.array(np.array(a.view(mx.uint8))).view(a.dtype) for a in arrays]
        mx.eval(copies)
        made.append(original._replace(w=copies[0], scales=copies[1], biases=copies[2] if biased else None))
    return made


def _bytes(m: Weights) -> int:
    return sum(a.nbytes for a in (m.w, m.scales, m.biases) if a is not None)


def _bandwidth(copies: list[Weights], extension: Any, repeats: int) -> float:
    """Bytes a second of a plain read of cold weights."""
    if extension is None:
        return float("nan")
    times = []
    for i in range(repeats):
        w = copies[i % len(copies)].w
        start = time.perf_counter()
        extension.read_bytes(w)
        times.append(w.nbytes / (time.perf_counter() - start))
    return median(times)


def _timed(run: Callable[[], mx.array]) -> float:
    start = time.perf_counter()
    mx.eval(run())
    return time.perf_counter() - start


def _product(
    shape: tuple[int, int], name: str, copies: list[Weights], ours: Operations, stock: Operations, repeats: int,
    reading: float,
) -> Product:  # fmt: skip
    prepared = [ours.prepare(m) for m in copies]
    mine: dict[int, list[float]] = {rows: [] for rows in ROWS}
    theirs: dict[int, list[float]] = {rows: [] for rows in ROWS}
    xs = {rows: mx.random.normal((rows, shape[0]), key=mx.random.key(rows)) for rows in ROWS}
    mx.eval(list(xs.values()))
    turn = 0
    for repeat in range(repeats):
        for rows in ROWS:
            x, at = xs[rows], turn % len(copies)
            turn += 1
            mine[rows].append(_timed(partial(ours.project, x, [prepared[at]])))
            if repeat < max(3, repeats // 5):  # stock is slow, and steady enough
                theirs[rows].append(_timed(partial(stock.project, x, [copies[at]])))
    ratio = {r: median([b / a for a, b in zip(mine[r], theirs[r], strict=False)]) for r in ROWS}
    return Product(
        shape=shape,
        format=name,
        milliseconds=_by_rows({r: 1e3 * median(mine[r]) for r in ROWS}),
        stock_milliseconds=_by_rows({r: 1e3 * median(theirs[r]) for r in ROWS}),
        faster=_by_rows(ratio),
        growth=_by_rows({r: median([b / a for a, b in zip(mine[1], mine[r], strict=True)]) for r in ROWS}),
        stock_growth=_by_rows({r: median([b / a for a, b in zip(theirs[1], theirs[r], strict=True)]) for r in ROWS}),
        bandwidth=_bytes(copies[0]) / median(mine[1]) / reading,
        error=_error(copies[0], prepared[0], ours),
    )


def _by_rows(values: dict[int, float]) -> dict[str, float]:
    return {str(rows): round(value, 3) for rows, value in values.items()}


def _error(m: Weights, prepared: Any, operations: Operations) -> dict[str, float]:
    x = mx.random.normal((8, m.inputs), key=mx.random.key(0)).astype(mx.bfloat16)
    got = np.array(operations.project(x, [prepared]).astype(mx.float32)).astype(np.float64)
    assert m.scales is not None
    scales = m.scales.astype(mx.float32) if m.mode == "affine" else m.scales
    biases = None if m.biases is None else m.biases.astype(mx.float32)
    dense = mx.dequantize(m.w, scales, biases, group_size=m.group_size, bits=m.bits, mode=m.mode, dtype=mx.float32)
    want = np.array(x.astype(mx.float32)).astype(np.float64) @ np.array(dense).astype(np.float64).T
    difference = np.abs(got - want) / np.sqrt((want**2).mean())
    return {"mean": float(difference.mean()), "largest": float(difference.max())}


def _attention(ours: Operations, stock: Operations, repeats: int) -> Attention:
    keys, dim, times = 4096, 256, {}
    k, v = (mx.random.normal((1, 2, keys, dim), key=mx.random.key(s)).astype(mx.bfloat16) for s in (1, 2))
    runs = Runs((k,), (v,))
    for rows in (1, 8):
        q = mx.random.normal((1, rows, 8, dim), key=mx.random.key(3)).astype(mx.bfloat16)
        length = mx.array([keys - rows], dtype=mx.int32)
        mx.eval(k, v, q, length)
        mine, theirs = [], []
        for repeat in range(repeats):
            mine.append(_timed(partial(ours.attention, q, runs, length, None, 0.06)))
            if repeat < max(3, repeats // 5):
                theirs.append(_timed(partial(stock.attention, q, runs, length, None, 0.06)))
        times[str(rows)] = (mine, theirs)
    return Attention(
        milliseconds={r: round(1e3 * median(a), 3) for r, (a, _) in times.items()},
        stock_milliseconds={r: round(1e3 * median(b), 3) for r, (_, b) in times.items()},
        faster={r: round(median([y / x for x, y in zip(a, b, strict=False)]), 2) for r, (a, b) in times.items()},
    )


def plot(report: Report, path: str) -> None:
    """time(rows) / time(1), ours beside stock, as a PNG. Raises ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(report.products), figsize=(3 * len(report.products), 3.2), sharey=True)
    for axis, product in zip(np.atleast_1d(axes), report.products, strict=True):
        for label, growth in (("MLX", product.stock_growth), (f"pilotfish ({report.form})", product.growth)):
            axis.plot([int(r) for r in growth], list(growth.values()), marker="o", markersize=3, label=label)
        axis.set_title(f"{product.format}, {product.shape[0]} x {product.shape[1]}", fontsize=9)
        axis.set_xlabel("rows")
        axis.grid(alpha=0.3)
    np.atleast_1d(axes)[0].set_ylabel("time(rows) / time(1)")
    np.atleast_1d(axes)[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
