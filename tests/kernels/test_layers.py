"""`install` on whole models: what is swapped, what is left, and the same numbers within rounding."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.utils import load_model, quantize_model

from pilotfish import kernels
from pilotfish.kernels.cpu import native
from pilotfish.kernels.stock import StockOperations
from pilotfish.store import checkpoint
from pilotfish.testing.checkpoints import write_tiny
from tests.conftest import ORACLE

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


@needs_native
def test_unquantized_models_are_swapped_too(tmp_path):
    model, _ = load_model(write_tiny(tmp_path / "m", "llama"))
    model.set_dtype(mx.float32)
    stock = model(mx.array([[5, 6, 7, 8]]))

    done = kernels.install(model)

    assert "model.layers.0.mlp.up_proj" in done.swapped
    assert mx.abs(model(mx.array([[5, 6, 7, 8]])) - stock).max().item() < 1e-4 * mx.abs(stock).max().item()


@needs_native
@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 40])  # mlx-lm sorts rows by expert from a certain number on
def test_experts_of_an_mlx_lm_model(quantize, rows):
    model, config = checkpoint.load_target(ORACLE / "26b-a4b" / "target", mx.float32)
    if quantize:
        model, _ = quantize_model(model, config, 32, 4)
        model.set_dtype(mx.float32)
    ids = mx.arange(5, 5 + rows)[None]
    stock = model(ids)

    done = kernels.install(model)

    assert any(path.endswith("switch_glu.down_proj") for path in done.swapped)
    assert mx.abs(model(ids) - stock).max().item() < 1e-4 * mx.abs(stock).max().item()


def test_what_is_left_is_named_with_the_reason(tmp_path, monkeypatch):
    class Adapted(nn.Linear):
        """A layer that adds something of its own."""

    model, _ = load_model(write_tiny(tmp_path / "m", "llama"))
    model.layers[0].mlp.up_proj.__class__ = Adapted
    left = kernels.install(model).left
    assert "Adapted" in left["model.layers.0.mlp.up_proj"]

    kernels.uninstall(model)
    monkeypatch.setattr("pilotfish.kernels.layers.best_operations", StockOperations)
    assert kernels.install(model).left["model.layers.1.mlp.up_proj"] == "no kernels for this device"


@needs_native
def test_new_weights_are_used_after_they_were_loaded(tmp_path):
    model = quantized(tmp_path, "llama")
    ids = mx.array([[5, 6, 7, 8]])
    kernels.install(model)
    before = model(ids)
    mx.eval(before)

    layer = model.layers[0].mlp.up_proj
    layer.scales = layer.scales * 2

    assert not mx.allclose(model(ids), before)
