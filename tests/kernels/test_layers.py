"""`install` on whole models: what is swapped, what is left, and the same numbers within rounding."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.utils import load_model, quantize_model

from pilotfish import kernels
from pilotfish.kernels.cpu import native
from pilotfish.testing.checkpoints import write_tiny

needs_native = pytest.mark.skipif(native() is None, reason="the CPU kernels are not built here")


def quantized(tmp_path, family: str) -> nn.Module:
    model, config = load_model(write_tiny(tmp_path / family, family))
    model, _ = quantize_model(model, config, 32, 4)
    model.set_dtype(mx.float32)
    return model


@needs_native
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_models_of_other_families_give_the_same_logits_within_rounding(tmp_path, family: str):
    model = quantized(tmp_path, family)
    ids = mx.array([[5, 6, 7, 8]])
    stock = model(ids)
    mx.eval(stock)

    done = kernels.install(model)
    ours = model(ids)

    assert sum(path.endswith("_proj") for path in done.swapped) == 7 * len(model.layers)
    assert mx.abs(ours - stock).max().item() < 1e-4 * mx.abs(stock).max().item()
    kernels.uninstall(model)
    assert mx.array_equal(model(ids), stock)


@needs_native
def test_installing_twice_changes_nothing_more(tmp_path):
    model = quantized(tmp_path, "llama")
    first = kernels.install(model)

    assert first.swapped
    assert kernels.install(model).swapped == ()


def test_what_is_left_is_named_with_the_reason(tmp_path):
    model, _ = load_model(write_tiny(tmp_path / "m", "llama"))

    left = kernels.install(model).left

    assert left["model.layers.0.mlp.up_proj"] == "not quantized"
