"""`install`: the layers of a loaded model, made to use the kernels; `uninstall` puts them back.

A layer keeps its parameters and its place; only its class changes, so nothing is copied and names stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gemma4_text

from pilotfish.kernels.cpu import native
from pilotfish.kernels.operations import on_cpu, small_batch_attention, small_batch_qmm

SMALL_ROWS = 32  # a pass of more rows a sequence is a prefill and takes MLX's attention


@dataclass(frozen=True)
class Installed:
    """What `install` did: modules swapped, and modules left with the reason, by path."""

    swapped: tuple[str, ...]
    left: dict[str, str]


class SmallBatchLinear(nn.QuantizedLinear):
    """A quantized linear layer through `small_batch_qmm`."""

    def __call__(self, x: mx.array) -> mx.array:
        out = small_batch_qmm(x, self["weight"], self["scales"], self.get("biases"),
                              group_size=self.group_size, bits=self.bits, mode=self.mode)  # fmt: skip
        return out + self["bias"] if "bias" in self else out


class SmallBatchEmbedding(nn.QuantizedEmbedding):
    """A quantized embedding whose use as an output head goes through `small_batch_qmm`."""

    def as_linear(self, x: mx.array) -> mx.array:
        """(..., hidden) -> (..., vocab)."""
        return small_batch_qmm(x, self["weight"], self["scales"], self.get("biases"),
                               group_size=self.group_size, bits=self.bits, mode=self.mode)  # fmt: skip


class FusedNorm(nn.RMSNorm):
    """RMS norm as one operation."""

    def __call__(self, x: mx.array) -> mx.array:
        return _norm(x, self["weight"], self.eps)


class FusedPlainNorm(gemma4_text.RMSNormNoScale):
    """RMS norm without weight as one operation."""

    def __call__(self, x: mx.array) -> mx.array:
        return _norm(x, None, self.eps)


class FusedMLP(gemma4_text.MLP):
    """Gemma's gated feed-forward with gate and product as one operation."""

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = self.gate_proj(x), self.up_proj(x)
        wide = _compiled().geglu(gate.astype(mx.float32), up.astype(mx.float32))
        out: mx.array = self.down_proj(wide.astype(x.dtype))
        return out


class FusedAttention(gemma4_text.Attention):
    """Gemma 4's attention for a few rows: rotation and attention as one operation each."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None, shared_kv: Any = None,
                 offset: Any = None) -> Any:  # fmt: skip
        at = offset if cache is None else cache.offset
        if x.shape[1] > SMALL_ROWS or not _is_per_row(at):
            return super().__call__(x, mask, cache, shared_kv, offset)
        queries = self.q_norm(self._heads(self.q_proj(x)))
        if shared_kv is not None:
            keys, values = shared_kv
        else:
            offset = at
            raw = self._heads(self.k_proj(x))
            values = raw if self.use_k_eq_v else self._heads(self.v_proj(x))
            keys = self._rotate(self.k_norm(raw), offset)
            keys, values = cache.update_and_fetch(keys, self.v_norm(values).transpose(0, 2, 1, 3))
        out = small_batch_attention(self._rotate(queries, offset), keys, values, mask, scale=self.scale)
        return self.o_proj(out), (keys, values), offset

    def _heads(self, x: mx.array) -> mx.array:
        return x.reshape(*x.shape[:2], -1, self.head_dim)

    def _rotate(self, x: mx.array, offset: mx.array) -> mx.array:
        """(B, L, heads, D) -> (B, heads, L, D), turned by position."""
        turned: mx.array = _compiled().rope(x.astype(mx.float32), offset.astype(mx.int32), self._frequencies())
        return turned.astype(x.dtype)

    def _frequencies(self) -> mx.array:
        """(D / 2) float32 radians per position; MLX's `freqs` are the reciprocals, infinite where nothing turns."""
        if "_pilotfish_frequencies" not in self:
            rope = self.rope
            if isinstance(rope, nn.RoPE):
                exponents = mx.arange(0, rope.dims, 2, dtype=mx.float32) / rope.dims
                periods = rope.base**exponents / rope.scale
            else:
                periods = rope._freqs
            self._pilotfish_frequencies = 1.0 / periods
        frequencies: mx.array = self._pilotfish_frequencies
        return frequencies


REPLACEMENTS: dict[type, type] = {
    nn.QuantizedLinear: SmallBatchLinear,
    nn.QuantizedEmbedding: SmallBatchEmbedding,
    nn.RMSNorm: FusedNorm,
    gemma4_text.RMSNormNoScale: FusedPlainNorm,
    gemma4_text.MLP: FusedMLP,
    gemma4_text.Attention: FusedAttention,
}
ORIGINALS = {ours: theirs for theirs, ours in REPLACEMENTS.items()}


def install(model: nn.Module) -> Installed:
    """Make the layers of `model` use the kernels, where this machine has them. Idempotent."""
    swapped, left = [], {}
    available = on_cpu() and native() is not None
    for path, module in model.named_modules():
        ours = REPLACEMENTS.get(type(module))
        if ours is None:
            if isinstance(module, nn.Linear):
                left[path] = "not quantized"
            continue
        if not available:
            left[path] = "no compiled kernels for this device"
            continue
        module.__class__ = ours
        swapped.append(path)
    return Installed(tuple(swapped), left)


def uninstall(model: nn.Module) -> None:
    """Give every layer its own class back."""
    for _, module in model.named_modules():
        theirs = ORIGINALS.get(type(module))
        if theirs is not None:
            module.__class__ = theirs


def _is_per_row(offset: Any) -> bool:
    """Whether positions lie on the device, a length for each row of the batch: a decode pass, not a prefill."""
    return isinstance(offset, mx.array) and offset.ndim == 1


def _compiled() -> Any:
    """The extension; `install` swaps nothing where it is missing."""
    extension = native()
    assert extension is not None, "a layer was swapped without compiled kernels"
    return extension


def _norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    w = None if weight is None else weight.astype(mx.float32)
    out: mx.array = _compiled().rms_norm(x.astype(mx.float32), w, eps)
    return out.astype(x.dtype)
