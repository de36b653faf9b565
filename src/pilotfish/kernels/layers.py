"""`install`: the layers of a loaded model, made to use the kernels; `uninstall` puts them back.

A layer keeps its parameters and its place; only its class changes, so nothing is copied and names stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gemma4_text, switch_layers

from pilotfish.kernels.choice import best_operations
from pilotfish.kernels.operations import Operations, Prepared
from pilotfish.kernels.small_batch import FLOATS
from pilotfish.kernels.weights import weights_of

PREPARED = "_pilotfish_weights"  # where a layer keeps its prepared weights; the underscore hides it from MLX


@dataclass(frozen=True)
class Installed:
    """What `install` did: modules swapped, and modules left with the reason, by path."""

    swapped: tuple[str, ...]
    left: dict[str, str]


def _prepared(layer: Any, operations: Operations) -> Prepared:
    """The layer's weights as the kernels want them, made anew when other arrays were loaded into it."""
    weights = weights_of(layer)
    known = layer.__dict__.get(PREPARED)
    if known is None or any(old is not new for old, new in zip(known[0], weights, strict=True)):
        known = (weights, operations.prepare(weights))
        layer.__dict__[PREPARED] = known
    return known[1]


def _project(layer: Any, x: mx.array) -> mx.array:
    operations = best_operations()
    return operations.project(x, [_prepared(layer, operations)])


class SmallBatchLinear(nn.Linear):
    """A linear layer through `small_batch_matmul`."""

    def __call__(self, x: mx.array) -> mx.array:
        out = _project(self, x)
        return out + self["bias"] if "bias" in self else out


class SmallBatchQuantizedLinear(nn.QuantizedLinear):
    """A quantized linear layer through `small_batch_qmm`."""

    __call__ = SmallBatchLinear.__call__


class SmallBatchEmbedding(nn.Embedding):
    """An embedding whose use as an output head goes through `small_batch_matmul`."""

    def as_linear(self, x: mx.array) -> mx.array:
        """(..., hidden) -> (..., vocab)."""
        return _project(self, x)


class SmallBatchQuantizedEmbedding(nn.QuantizedEmbedding):
    """A quantized embedding whose use as an output head goes through `small_batch_qmm`."""

    as_linear = SmallBatchEmbedding.as_linear


class SmallBatchExperts(switch_layers.QuantizedSwitchLinear):
    """Expert layers through `small_batch_gather_qmm`."""

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        return _gather(self, x, indices)


class SmallBatchDenseExperts(switch_layers.SwitchLinear):
    """Unquantized expert layers."""

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        return _gather(self, x, indices)


def _gather(layer: Any, x: mx.array, indices: mx.array) -> mx.array:
    """mlx-lm's convention: x (..., 1, 1, K), (..., picks, 1, K) or, sorted, (tokens, 1, K) with indices (tokens)."""
    operations = best_operations()
    stack = _prepared(layer, operations)
    if indices.ndim == x.ndim - 2:
        rows = x[..., 0, :] if x.shape[-3] == indices.shape[-1] else x[..., 0, 0, :]
        out = operations.gather(rows, indices, stack)[..., None, :]
    else:
        out = operations.gather(x[..., 0, :], indices[..., None], stack)
    return out + mx.expand_dims(layer["bias"][indices], -2) if "bias" in layer else out


class FusedNorm(nn.RMSNorm):
    """RMS norm as one operation."""

    def __call__(self, x: mx.array) -> mx.array:
        return best_operations().rms_norm(x, self["weight"], self.eps)


class FusedPlainNorm(gemma4_text.RMSNormNoScale):
    """RMS norm without weight as one operation."""

    def __call__(self, x: mx.array) -> mx.array:
        return best_operations().rms_norm(x, None, self.eps)


REPLACEMENTS: dict[type, type] = {
    nn.Linear: SmallBatchLinear,
    nn.QuantizedLinear: SmallBatchQuantizedLinear,
    nn.Embedding: SmallBatchEmbedding,
    nn.QuantizedEmbedding: SmallBatchQuantizedEmbedding,
    switch_layers.SwitchLinear: SmallBatchDenseExperts,
    switch_layers.QuantizedSwitchLinear: SmallBatchExperts,
    nn.RMSNorm: FusedNorm,
    gemma4_text.RMSNormNoScale: FusedPlainNorm,
}
ORIGINALS = {ours: theirs for theirs, ours in REPLACEMENTS.items()}


def install(model: nn.Module) -> Installed:
    """Make the layers of `model` use the kernels, where this machine has them. Idempotent.

    Swaps linear layers, embeddings used as heads, expert layers and RMS norms, quantized or not; leaves what holds
    weights in other types, subclasses with behaviour of their own, and everything where there are no kernels.
    """
    swapped, left = [], {}
    available = best_operations().name != "stock"
    for path, module in model.named_modules():
        ours = REPLACEMENTS.get(type(module))
        if ours is None:
            if type(module) not in ORIGINALS and isinstance(module, nn.Linear | nn.QuantizedLinear):
                left[path] = f"a {type(module).__name__} may compute something of its own"
        elif not available:
            left[path] = "no kernels for this device"
        elif "scales" not in module and "weight" in module and module["weight"].dtype not in FLOATS:
            left[path] = f"its weights are {module['weight'].dtype}"
        else:
            module.__class__ = ours
            swapped.append(path)
    return Installed(tuple(swapped), left)


def uninstall(model: nn.Module) -> None:
    """Give every layer its own class back."""
    for _, module in model.named_modules():
        theirs = ORIGINALS.get(type(module))
        if theirs is not None:
            module.__class__ = theirs
            module.__dict__.pop(PREPARED, None)
