"""Where the time of a decode step goes: by operation, on the device's side and on Python's."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gemma4_text

from pilotfish.engine.decode import Device, prefill
from pilotfish.engine.target import Gemma4Target
from pilotfish.errors import OptionError, UnsupportedModelError
from pilotfish.kernels import best_operations
from pilotfish.kernels.cpu import native
from pilotfish.runtime.loaded import load

LABELS = {
    "matmul": "matrix products",
    "PilotfishProject": "products: norms, gates, residuals around them",
    "PilotfishAttention": "attention",
    "PilotfishHeads": "heads: norms and rotation",
    "PilotfishWrite": "cache writes",
    "PilotfishLookup": "embeddings",
    "PilotfishBlend": "per-layer inputs",
    "PilotfishNorm": "final norm",
    "PilotfishConcatenate": "other",
}


@dataclass(frozen=True)
class StepProfile:
    """One pass of `rows` rows after `context` tokens; milliseconds, means over `passes`.

    total: from Python's first call to the result, nothing in flight. python: building the graph. parts: on the device.
    """

    model: str
    rows: int
    context: int
    passes: int
    total: float
    python: float
    parts: dict[str, float]


def profile(model: str, rows: int, context: int, passes: int = 20) -> StepProfile:
    """Profile verify passes of a Gemma 4 model. `model` "e2b-shape" is random weights in E2B's shapes, 4 bits.

    Raises UnsupportedModelError for other families, OptionError without compiled kernels.
    """
    extension = native()
    if extension is None:
        raise OptionError("profiling needs the compiled CPU kernels, which this installation lacks")
    target = e2b_shape() if model == "e2b-shape" else load(model, draft=None).model.target
    if not isinstance(target, Gemma4Target):
        raise UnsupportedModelError(f"{model} is not a Gemma 4 model; only those are profiled by operation")
    state = prefill(target, [7 + i % 900 for i in range(context + 1)], Device())
    tokens = mx.zeros((1, rows), dtype=mx.int32)

    def once() -> tuple[float, float]:
        start = time.perf_counter()
        views = [spec.decode_view(b, state.length) for spec, b in zip(target.specs, state.caches, strict=True)]
        out = target.forward(tokens, views)
        wanted = [out.logits, *(b for view in views for b in view.buffers)]
        built = time.perf_counter()
        mx.eval(wanted)
        return time.perf_counter() - start, built - start

    for _ in range(2):
        once()
    extension.take_profile()
    extension.set_profiling(True)
    try:
        times = [once() for _ in range(passes)]
    finally:
        extension.set_profiling(False)
    spans = {name: seconds for name, (_, seconds) in extension.take_profile().items()}
    spans["PilotfishProject"] = spans.get("PilotfishProject", 0.0) - spans.get("matmul", 0.0)
    spans.pop("PilotfishProgram", None)
    parts = {LABELS.get(name, name): 1e3 * s / passes for name, s in sorted(spans.items(), key=lambda i: -i[1])}
    total, python = (1e3 * sum(t[i] for t in times) / passes for i in (0, 1))
    return StepProfile(model, rows, context, passes, total, python, parts)


def e2b_shape() -> Gemma4Target:
    """Gemma 4 E2B's true shapes with random 4-bit weights, about 3 GB, made layer by layer in memory."""
    config = gemma4_text.ModelArgs(num_key_value_heads=1, vocab_size=262144)
    model: Any = gemma4_text.Model(config)  # lazy: dense weights exist only while they are quantized
    nn.quantize(model, group_size=64, bits=4)
    model.set_dtype(mx.bfloat16)
    for _, module in model.named_modules():
        mx.eval(module.parameters() if not module.children() else [])
    mx.eval(model.parameters())
    model.set_dtype(mx.float32)
    return Gemma4Target(model, 8, best_operations())
