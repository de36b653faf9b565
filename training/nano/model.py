"""nano in PyTorch: the Gemma 4 text decoder and its assistant, written for training on a CPU.

Layers are plain functions over dicts of tensors, so that one compiled graph serves every layer of a kind.
Single key/value head (as in E2B): the query heads are folded into rows of one matrix product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 64  # query rows of one block of sliding attention; the window is a multiple of it
EPS = 1e-6
Params = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    vocab: int = 4096
    hidden: int = 192
    mlp: int = 384
    heads: int = 4
    head_dim: int = 64
    global_head_dim: int = 128
    window: int = 128
    layers: int = 20
    shared: int = 5
    pattern: int = 5
    ple: int = 32
    draft_hidden: int = 128
    draft_mlp: int = 384

    def is_full(self, layer: int) -> bool:
        return layer % self.pattern == self.pattern - 1

    def donor(self, full: bool) -> int:
        """The last layer of a kind that owns keys and values."""
        return max(i for i in range(self.layers - self.shared) if self.is_full(i) == full)

    def dim(self, full: bool) -> int:
        return self.global_head_dim if full else self.head_dim


def norm(x: Tensor, weight: Tensor | None = None) -> Tensor:
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
    return y if weight is None else y * weight


def rope_tables(length: int, dim: int, full: bool) -> tuple[Tensor, Tensor]:
    """cos and signed sin, both (length, dim), for half-split rotation."""
    half = dim // 2
    inverse = (1e6 if full else 1e4) ** (-2.0 * torch.arange(half, dtype=torch.float64) / dim)
    if full:
        inverse[dim // 8 :] = 0.0  # proportional: a quarter of the pairs turn
    angles = torch.arange(length, dtype=torch.float64)[:, None] * inverse
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], -1).float(), torch.cat([-sin, sin], -1).float()


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate (B, T, heads, dim)."""
    swapped = x.unflatten(-1, (2, x.shape[-1] // 2)).flip(-2).flatten(-2)
    return x * cos[:, None] + swapped * sin[:, None]


def full_bias(length: int) -> Tensor:
    """(length, length): 0 where key <= query, else a large negative number."""
    return torch.triu(torch.full((length, length), -1e9), diagonal=1)


def sliding_bias(length: int, window: int) -> Tensor:
    """(length / BLOCK, BLOCK, window + BLOCK): each block of queries against the keys it can reach."""
    query = torch.arange(length).view(-1, BLOCK, 1)
    key = query[:, :1] - window + torch.arange(window + BLOCK)
    return torch.where((key >= 0) & (key <= query) & (key > query - window), 0.0, -1e9)


def attend_full(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """q (B, T, H, D), k and v (B, T, D) -> (B, T, H * D)."""
    b, t, h, d = q.shape
    scores = torch.bmm(q.transpose(1, 2).reshape(b, h * t, d), k.transpose(1, 2)).view(b, h, t, t) + bias
    out = torch.bmm(scores.softmax(-1).view(b, h * t, t), v)
    return out.view(b, h, t, d).transpose(1, 2).reshape(b, t, h * d)


def attend_sliding(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """As `attend_full`, each block of BLOCK queries against the window + BLOCK keys before its end."""
    b, t, h, d = q.shape
    blocks, _, span = bias.shape
    near = F.pad(torch.cat([k, v], -1), (0, 0, span - BLOCK, 0)).unfold(1, span, BLOCK)  # (B, blocks, 2D, span)
    near = near.reshape(b * blocks, 2 * d, span)
    rows = q.view(b, blocks, BLOCK, h, d).transpose(2, 3).reshape(b * blocks, h * BLOCK, d)
    scores = torch.bmm(rows, near[:, :d]).view(b, blocks, h, BLOCK, span) + bias[:, None]
    out = torch.bmm(scores.softmax(-1).view(b * blocks, h * BLOCK, span), near[:, d:].transpose(1, 2))
    return out.view(b, blocks, h, BLOCK, d).transpose(2, 3).reshape(b, t, h * d)


def layer(x: Tensor, ple: Tensor | None, p: Params, kv: tuple[Tensor, Tensor] | None, heads: int, full: bool,
          cos: Tensor, sin: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """One decoder layer. `kv` is given to layers that share keys and values, else they are computed."""
    dim = cos.shape[-1]
    y = norm(x, p["input_layernorm"])
    q = rope(norm((y @ p["q_proj"].T).unflatten(-1, (heads, dim)), p["q_norm"]), cos, sin)
    if kv is None:
        k, v = (y @ p["kv_proj"].T).split(dim, -1)
        kv = rope(norm(k, p["k_norm"])[:, :, None], cos, sin)[:, :, 0], norm(v)
    attend = attend_full if full else attend_sliding
    x = x + norm(attend(q, *kv, bias) @ p["o_proj"].T, p["post_attention_layernorm"])
    gate, up = (norm(x, p["pre_feedforward_layernorm"]) @ p["gate_up_proj"].T).chunk(2, -1)
    x = x + norm((F.gelu(gate, approximate="tanh") * up) @ p["down_proj"].T, p["post_feedforward_layernorm"])
    if ple is not None:
        gated = F.gelu(x @ p["per_layer_input_gate"].T, approximate="tanh") * ple
        x = x + norm(gated @ p["per_layer_projection"].T, p["post_per_layer_input_norm"])
    return x * p["layer_scalar"], *kv


def matrix(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)


def layer_params(s: Shape, hidden: int, mlp: int, full: bool, owns_kv: bool, ple: int, post: float,
                 g: torch.Generator) -> Params:  # fmt: skip
    dim = s.dim(full)
    p = {
        "q_proj": matrix(s.heads * dim, hidden, g),
        "o_proj": matrix(hidden, s.heads * dim, g),
        "gate_up_proj": matrix(2 * mlp, hidden, g),
        "down_proj": matrix(hidden, mlp, g),
        "input_layernorm": torch.ones(hidden),
        "pre_feedforward_layernorm": torch.ones(hidden),
        "post_attention_layernorm": torch.full((hidden,), post),
        "post_feedforward_layernorm": torch.full((hidden,), post),
        # The attention scale is 1, so unit norms would start far too sharp.
        "q_norm": torch.full((dim,), dim**-0.25),
        "layer_scalar": torch.ones(1),
    }
    if owns_kv:
        p["kv_proj"] = matrix(2 * dim, hidden, g)
        p["k_norm"] = torch.full((dim,), dim**-0.25)
    if ple:
        p["per_layer_input_gate"] = matrix(ple, hidden, g)
        p["per_layer_projection"] = matrix(hidden, ple, g)
        p["post_per_layer_input_norm"] = torch.full((hidden,), post)
    return p


class Tables:
    """RoPE tables and attention biases for one sequence length, by kind of layer (full or sliding)."""

    def __init__(self, s: Shape, length: int) -> None:
        self.rope = {full: rope_tables(length, s.dim(full), full) for full in (False, True)}
        self.bias = {True: full_bias(length), False: sliding_bias(length, s.window)}

    def of(self, full: bool) -> tuple[Tensor, Tensor, Tensor]:
        return *self.rope[full], self.bias[full]


class Target:
    def __init__(self, s: Shape, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        post = 1.0 / math.sqrt(2 * s.layers)
        self.shape = s
        self.layer = layer
        self.top: Params = {
            "embed_tokens": torch.randn(s.vocab, s.hidden, generator=g) * 0.02,
            "embed_tokens_per_layer": torch.randn(s.vocab, s.layers * s.ple, generator=g) * 0.05,
            "per_layer_model_projection": matrix(s.layers * s.ple, s.hidden, g),
            "per_layer_projection_norm": torch.ones(s.ple),
            "norm": torch.ones(s.hidden),
        }
        owned = s.layers - s.shared
        self.layers = [
            layer_params(s, s.hidden, s.mlp, s.is_full(i), i < owned, s.ple, post, g) for i in range(s.layers)
        ]

    def named(self) -> dict[str, Tensor]:
        return self.top | {f"layers.{i}.{k}": t for i, p in enumerate(self.layers) for k, t in p.items()}

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.top["embed_tokens"]) * self.shape.hidden**0.5

    def hidden(self, ids: Tensor, tables: Tables) -> tuple[Tensor, dict[bool, tuple[Tensor, Tensor]]]:
        """(B, T) -> normed hidden states (B, T, hidden) and the donors' keys and values by kind."""
        s, top = self.shape, self.top
        x = self.embed(ids)
        split = (s.layers, s.ple)
        token = (F.embedding(ids, top["embed_tokens_per_layer"]) * s.ple**0.5).unflatten(-1, split)
        context = (x @ top["per_layer_model_projection"].T * s.hidden**-0.5).unflatten(-1, split)
        ple = (norm(context, top["per_layer_projection_norm"]) + token) * 2**-0.5
        donors: dict[bool, tuple[Tensor, Tensor]] = {}
        for i, p in enumerate(self.layers):
            full = s.is_full(i)
            shared = donors[full] if i >= s.layers - s.shared else None
            x, k, v = self.layer(x, ple[:, :, i], p, shared, s.heads, full, *tables.of(full))
            donors[full] = (k, v)
        return norm(x, top["norm"]), donors

    def logits(self, hidden: Tensor) -> Tensor:
        return 30.0 * torch.tanh(hidden @ self.top["embed_tokens"].T / 30.0)


class Assistant:
    """The drafter: two layers, sliding and full, that read the target's keys and values and own none."""

    def __init__(self, s: Shape, target: Target, seed: int = 1) -> None:
        g = torch.Generator().manual_seed(seed)
        h, back = s.draft_hidden, s.hidden
        # Warm start: the target's head, reduced to the drafter's width by SVD.
        table = target.top["embed_tokens"] * target.top["norm"]
        _, _, vt = torch.linalg.svd(table, full_matrices=False)
        basis = vt[:h]  # (draft_hidden, hidden), orthonormal rows
        self.shape = s
        self.layer = layer
        self.top: Params = {
            "pre_projection": torch.cat([matrix(h, back, g) * 0.5, basis], 1).contiguous(),
            "post_projection": basis.T.contiguous(),
            "embed_tokens": (target.top["embed_tokens"] @ basis.T).contiguous(),
            "norm": torch.ones(h),
        }
        self.layers = [layer_params(s, h, s.draft_mlp, full, False, 0, 0.5, g) for full in (False, True)]

    def named(self) -> dict[str, Tensor]:
        return self.top | {f"layers.{i}.{k}": t for i, p in enumerate(self.layers) for k, t in p.items()}

    def step(self, embedded: Tensor, state: Tensor, donors: dict[bool, tuple[Tensor, Tensor]],
             tables: Tables) -> tuple[Tensor, Tensor]:  # fmt: skip
        """One draft step for every row at once -> (logits, next state)."""
        x = torch.cat([embedded, state], -1) @ self.top["pre_projection"].T
        for full, p in zip((False, True), self.layers, strict=True):
            x, _, _ = self.layer(x, None, p, donors[full], self.shape.heads, full, *tables.of(full))
        x = norm(x, self.top["norm"])
        return x @ self.top["embed_tokens"].T, x @ self.top["post_projection"].T
