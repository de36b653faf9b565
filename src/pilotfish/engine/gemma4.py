"""Gemma 4's text decoder, over the weights that mlx-lm has loaded, made of few large operations.

mlx-lm reads checkpoints of every layout and keeps the parameters; this module computes with them. One decoder layer is
six operations on a CPU (norm and q, k, v; heads; write; attention; output, norm and residual; and the same twice for
the feed-forward half) where mlx-lm's takes about forty. Architecture: `transformers`, gemma4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gemma4_text

from pilotfish.engine.caches import View
from pilotfish.kernels.operations import Operations, Prepared, Residual
from pilotfish.kernels.rotation import Rotation
from pilotfish.kernels.weights import weights_of


class DecoderLayer:
    """One layer: attention and feed-forward, each normed before and after, and the per-layer input of E models."""

    def __init__(self, layer: gemma4_text.DecoderLayer, operations: Operations, owns_keys: bool) -> None:
        def prepare(*modules: nn.Module) -> list[Prepared]:
            return [operations.prepare(weights_of(m)) for m in modules]

        attention = layer.self_attn
        self.operations, self.layer, self.owns_keys = operations, layer, owns_keys
        self.kind: str = layer.layer_type
        self.eps: float = layer.config.rms_norm_eps
        self.head_dim: int = attention.head_dim
        self.scale: float = attention.scale
        self.keys_are_values = bool(attention.use_k_eq_v)
        self.kv_heads: int = attention.n_kv_heads if owns_keys else 0
        self.rotation = Rotation(attention.rope)
        inputs = [attention.q_proj]
        if owns_keys:
            inputs += [attention.k_proj] if self.keys_are_values else [attention.k_proj, attention.v_proj]
        self.qkv, self.o = prepare(*inputs), prepare(attention.o_proj)
        self.gate_up, self.down = prepare(layer.mlp.gate_proj, layer.mlp.up_proj), prepare(layer.mlp.down_proj)
        self.experts = Experts(layer, operations) if layer.enable_moe else None
        self.has_input = bool(layer.hidden_size_per_layer_input)
        if self.has_input:
            self.input_gate = prepare(layer.per_layer_input_gate)
            self.input_out = prepare(layer.per_layer_projection)

    def __call__(self, x: mx.array, view: View, per_layer: tuple[mx.array, int] | None) -> mx.array:
        """x (B, L, hidden), the layer's view (a donor's, where keys are shared), its part of the per-layer inputs."""
        x = self._attend(x, view)
        if self.experts is not None:
            x = self.experts(x, self.gate_up, self.down)
        else:
            project, layer = self.operations.project, self.layer
            wide = project(x, self.gate_up, norm=(layer.pre_feedforward_layernorm.weight, self.eps), gated=True)
            x = project(
                wide, self.down, residual=self._residual(x, layer.post_feedforward_layernorm, per_layer is None)
            )
        return x if per_layer is None else self._add_input(x, per_layer)

    def _attend(self, x: mx.array, view: View) -> mx.array:
        project, layer = self.operations.project, self.layer
        attention = layer.self_attn
        mixed = project(x, self.qkv, norm=(layer.input_layernorm.weight, self.eps))
        queries, *rest = self.operations.heads(
            mixed, attention.q_norm.weight, attention.k_norm.weight if self.owns_keys else None, view.positions,
            self.rotation, head_dim=self.head_dim, kv_heads=self.kv_heads, shared=self.keys_are_values, eps=self.eps,
        )  # fmt: skip
        if self.owns_keys:
            view.update(*rest)
        seen = view.attend(queries, self.scale)
        return project(seen, self.o, residual=self._residual(x, layer.post_attention_layernorm, False))

    def _add_input(self, x: mx.array, per_layer: tuple[mx.array, int]) -> mx.array:
        gated = self.operations.project(x, self.input_gate, times=per_layer)
        residual = self._residual(x, self.layer.post_per_layer_input_norm, True)
        return self.operations.project(gated, self.input_out, residual=residual)

    def _residual(self, stream: mx.array, norm: Any, last: bool) -> Residual:
        return Residual(stream, norm.weight, self.eps, self.layer.layer_scalar if last else None)


class Experts:
    """The feed-forward half of the mixture model: a dense branch and the best experts of each token, side by side."""

    def __init__(self, layer: gemma4_text.DecoderLayer, operations: Operations) -> None:
        self.operations, self.layer = operations, layer
        self.eps: float = layer.config.rms_norm_eps
        self.top_k: int = layer.router.config.top_k_experts
        experts = layer.experts.switch_glu
        self.router = [operations.prepare(weights_of(layer.router.proj))]
        self.gate, self.up, self.down = (
            operations.prepare(weights_of(m)) for m in (experts.gate_proj, experts.up_proj, experts.down_proj)
        )
        self.router_norm = layer.router.scale * layer.router._root_size
        mx.eval(self.router_norm)

    def __call__(self, x: mx.array, gate_up: list[Prepared], down: list[Prepared]) -> mx.array:
        project, norm, layer, eps = self.operations.project, self.operations.rms_norm, self.layer, self.eps
        dense = project(x, gate_up, norm=(layer.pre_feedforward_layernorm.weight, eps), gated=True)
        dense = norm(project(dense, down), layer.post_feedforward_layernorm_1.weight, eps)
        picked = norm(self._picked(x), layer.post_feedforward_layernorm_2.weight, eps)
        out = x + norm(dense + picked, layer.post_feedforward_layernorm.weight, eps)
        return out if layer.hidden_size_per_layer_input else out * layer.layer_scalar

    def _picked(self, x: mx.array) -> mx.array:
        """The best experts' outputs, weighed. The router reads the un-normed stream."""
        gather = self.operations.gather
        scores = self.operations.project(x, self.router, norm=(self.router_norm, self.eps))
        best = mx.argpartition(scores, kth=-self.top_k, axis=-1)[..., -self.top_k :]
        weights = mx.softmax(mx.take_along_axis(scores, best, axis=-1), axis=-1)
        weights = weights * self.layer.router.per_expert_scale[best]
        x = self.operations.rms_norm(x, self.layer.pre_feedforward_layernorm_2.weight, self.eps)
        wide = nn.gelu_approx(gather(x, best, self.gate)) * gather(x, best, self.up)
        out: mx.array = (weights[..., None] * gather(wide, best, self.down)).sum(-2)
        return out


class Gemma4Network:
    """The whole decoder: tokens in, hidden states after the final norm out."""

    def __init__(self, model: gemma4_text.Model, operations: Operations) -> None:
        self.operations, self.config, self.text = operations, model.args, model.model
        self.cap: float = model.final_logit_softcapping or 0.0
        self.dtype: mx.Dtype = self.text.norm.weight.dtype
        owners = model.args.num_hidden_layers - model.args.num_kv_shared_layers
        self.layers = [DecoderLayer(layer, operations, i < owners) for i, layer in enumerate(self.text.layers)]
        self.view_of: list[int] = list(self.text.previous_kvs)
        self.table = operations.prepare(weights_of(self.text.embed_tokens))
        tied = model.tie_word_embeddings
        self.head_weights = [self.table if tied else operations.prepare(weights_of(model.lm_head))]
        self.has_inputs = bool(model.args.hidden_size_per_layer_input)
        if self.has_inputs:
            self.input_table = operations.prepare(weights_of(self.text.embed_tokens_per_layer))
            self.input_projection = [operations.prepare(weights_of(self.text.per_layer_model_projection))]

    def __call__(self, tokens: mx.array, views: Sequence[View]) -> mx.array:
        """(B, L) int32 ids -> (B, L, hidden); keys and values go to `views`, one for each layer that owns some."""
        x = self.embed(tokens)
        inputs = self._per_layer_inputs(tokens, x) if self.has_inputs else None
        for i, layer in enumerate(self.layers):
            x = layer(x, views[self.view_of[i]], None if inputs is None else (inputs, i))
        return self.operations.rms_norm(x, self.text.norm.weight, self.config.rms_norm_eps)

    def decode(self, tokens: mx.array, views: Sequence[View]) -> tuple[mx.array, mx.array]:
        """The same for a pass of which everything is wanted, in few nodes -> hidden, logits (B, L, vocab)."""
        hidden = self(tokens, views)
        outputs = [hidden, self.head(hidden), *(b for view in views for b in view.buffers)]
        hidden, logits, *buffers = self.operations.fuse(outputs)
        rest = iter(buffers)
        for view in views:
            view.buffers = tuple(next(rest) for _ in view.buffers)
        return hidden, logits

    def embed(self, tokens: mx.array) -> mx.array:
        """(B, L) int32 ids -> (B, L, hidden) scaled embeddings."""
        return self.operations.lookup(tokens, self.table, self.text.embed_scale, self.dtype)

    def head(self, hidden: mx.array) -> mx.array:
        """(B, L, hidden) after the final norm -> (B, L, vocab) soft-capped logits."""
        return self.operations.project(hidden, self.head_weights, cap=self.cap)

    def _per_layer_inputs(self, tokens: mx.array, embedded: mx.array) -> mx.array:
        """(B, L, layers, width): a vector a layer from its own table and from the embedding, together."""
        text = self.text
        own = self.operations.lookup(tokens, self.input_table, text.embed_tokens_per_layer_scale, self.dtype)
        projected = self.operations.project(embedded, self.input_projection)
        return self.operations.blend(
            projected, own, text.per_layer_projection_norm.weight, eps=self.config.rms_norm_eps,
            scale=text.per_layer_projection_scale, factor=text.per_layer_input_scale,
        )  # fmt: skip
