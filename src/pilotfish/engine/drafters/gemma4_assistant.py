"""Gemma 4's own drafter: four small layers that read the target's keys and values and write none.

One step embeds a token with the target's table, joins it with a hidden state, runs the layers at a fixed position and
gives logits and the next hidden state (`transformers`: gemma4_assistant).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import gemma4_text
from mlx_lm.models.base import BaseModelArgs

from pilotfish.engine.caches import View
from pilotfish.engine.drafters import Propose
from pilotfish.engine.gemma4 import DecoderLayer
from pilotfish.engine.state import DecodeState, Draft, Offer
from pilotfish.engine.target import Gemma4Target
from pilotfish.errors import DrafterMismatchError
from pilotfish.kernels.operations import Operations
from pilotfish.kernels.weights import weights_of

# The query stands at the last position that has keys (serving engines do this); 0 would be the fed token's own
# position (`transformers`). Only acceptance depends on it; no difference was measured on a trained pair.
POSITION_OFFSET = -1


@dataclass
class AssistantArgs(BaseModelArgs):
    """The assistant's config.json; sizes of its own decoder are in `text_config`."""

    model_type: str
    backbone_hidden_size: int
    use_ordered_embeddings: bool = False
    num_centroids: int = 2048
    centroid_intermediate_top_k: int = 32
    text_config: dict[str, Any] = field(default_factory=dict)


class OrderedHead(nn.Module):
    """Scores clusters of tokens first, then only the tokens of the best clusters (E2B, E4B)."""

    def __init__(self, args: AssistantArgs, hidden: int, vocab: int) -> None:
        super().__init__()
        self.centroids = nn.Linear(hidden, args.num_centroids, bias=False)
        self.token_ordering = mx.zeros((vocab,), dtype=mx.int32)
        self._clusters, self._top_k = args.num_centroids, args.centroid_intermediate_top_k

    def candidates(self, scores: mx.array) -> mx.array:
        """(B, 1, clusters) scores -> (B, 1, M) int32 token ids of the best clusters."""
        best = mx.argpartition(-scores, kth=self._top_k - 1, axis=-1)[..., : self._top_k]
        members = self.token_ordering.reshape(self._clusters, -1)[best]
        return members.reshape(*scores.shape[:2], -1).astype(mx.int32)


class AssistantModel(nn.Module):
    """The assistant's weights under their published names."""

    def __init__(self, args: AssistantArgs) -> None:
        super().__init__()
        text = gemma4_text.ModelArgs.from_dict(args.text_config)
        self.args, self.text_args = args, text
        self.pre_projection = nn.Linear(2 * args.backbone_hidden_size, text.hidden_size, bias=False)
        self.post_projection = nn.Linear(text.hidden_size, args.backbone_hidden_size, bias=False)
        self.model = _Decoder(text)
        if args.use_ordered_embeddings:
            self.masked_embedding = OrderedHead(args, text.hidden_size, text.vocab_size)

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Drop the tied head's copy, keep the token ordering an integer table."""
        weights = {k: v for k, v in weights.items() if k != "lm_head.weight" and "rotary_emb" not in k}
        key = "masked_embedding.token_ordering"
        if key in weights:
            weights[key] = weights[key].astype(mx.int32)
        return weights


class _Decoder(nn.Module):
    def __init__(self, args: gemma4_text.ModelArgs) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = [gemma4_text.DecoderLayer(args, i) for i in range(args.num_hidden_layers)]
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)


class AssistantNetwork:
    """The assistant's computation over its weights, layers as the target's."""

    def __init__(self, model: AssistantModel, operations: Operations) -> None:
        self.model, self.operations = model, operations
        self.before, self.after, self.table = (
            operations.prepare(weights_of(m))
            for m in (model.pre_projection, model.post_projection, model.model.embed_tokens)
        )
        self.layers = [DecoderLayer(layer, operations, owns_keys=False) for layer in model.model.layers]
        if model.args.use_ordered_embeddings:
            self.centroids = [operations.prepare(weights_of(model.masked_embedding.centroids))]

    def step(self, embedded: mx.array, hidden: mx.array, views: dict[str, View]) -> tuple[mx.array, mx.array]:
        """One draft step.

        embedded, hidden: (B, 1, backbone), the token's embedding and the state before it.
        views: by layer type, the donor's keys and values, opened where the query stands.
        Returns the normed output (B, 1, hidden) for `head`, and the next state (B, 1, backbone).
        """
        project, norm = self.operations.project, self.model.model.norm
        x = project(self.operations.concatenate([embedded, hidden.astype(embedded.dtype)]), [self.before])
        for layer in self.layers:
            x = layer(x, views[layer.kind], None)
        x = self.operations.rms_norm(x, norm.weight, norm.eps)
        return x, project(x, [self.after])

    def head(self, x: mx.array) -> tuple[mx.array, mx.array | None]:
        """(B, 1, hidden) -> logits (B, 1, M) and the ids they stand for, or None for the whole vocabulary."""
        if not self.model.args.use_ordered_embeddings:
            return self.operations.project(x, [self.table]), None
        ids = self.model.masked_embedding.candidates(self.operations.project(x, self.centroids))
        rows = self.operations.lookup(ids, self.table, 1.0, x.dtype)  # gathers and unpacks only these rows
        return (rows @ x[..., None])[..., 0], ids


class Gemma4Assistant:
    """The drafter: an assistant model bound to the target whose keys and values it reads."""

    reads_hidden = True

    def __init__(self, model: AssistantModel, target: Gemma4Target) -> None:
        check_fit(model, target)
        self.model, self.target = model, target
        self.network = AssistantNetwork(model, target.operations)
        self.max_depth = target.max_depth

    def draft(self, state: DecodeState, depth: int, propose: Propose) -> Draft:
        views = self._views(state)
        token, hidden = state.token, state.hidden
        tokens: list[mx.array] = []
        offers: list[Offer] = []
        operations = self.target.operations
        # The choice of clusters is made of MLX's own operations, which cannot be fused with ours.
        in_pieces = self.model.args.use_ordered_embeddings
        for j in range(depth):
            x, hidden = self.network.step(self.target.embed(token), hidden, views)
            if in_pieces:
                x, hidden = operations.fuse([x, hidden])
            logits, ids = self.network.head(x)
            logits = propose.adjusted(logits, 1 + j, ids)
            token = propose(logits, 1 + j, ids)
            tokens.append(token)
            if propose.wants_offers:
                offers.append(Offer(logits, ids))
        made = [operations.concatenate(tokens), *(offer.logits for offer in offers)]
        together, *logits_of = made if in_pieces else operations.fuse(made)
        return Draft(together, tuple(Offer(new, old.ids) for new, old in zip(logits_of, offers, strict=True)))

    def _views(self, state: DecodeState) -> dict[str, View]:
        """The donors' keys and values, opened at the newest position that has any; nothing is written to them."""
        position = state.length + POSITION_OFFSET
        kinds = sorted(set(self.model.text_args.layer_types))
        donors = {kind: self.target.donor(kind) for kind in kinds}
        return {kind: self.target.specs[i].decode_view(state.caches[i], position) for kind, i in donors.items()}


def check_fit(model: AssistantModel, target: Gemma4Target) -> None:
    """Raise DrafterMismatchError unless the assistant was made for a target of this shape."""
    mine, theirs = model.text_args, target.config
    pairs = [
        ("hidden size", model.args.backbone_hidden_size, target.hidden_size),
        ("vocabulary", mine.vocab_size, theirs.vocab_size),
        ("head size", mine.head_dim, theirs.head_dim),
        ("global head size", mine.global_head_dim, theirs.global_head_dim),
        ("key/value heads", mine.num_key_value_heads, theirs.num_key_value_heads),
        ("sliding window", mine.sliding_window, theirs.sliding_window),
    ]
    if mine.attention_k_eq_v or theirs.attention_k_eq_v:
        pairs.append(("global key/value heads", mine.num_global_key_value_heads, theirs.num_global_key_value_heads))
    for what, got, wanted in pairs:
        if got != wanted:
            raise DrafterMismatchError(
                f"the assistant was made for a target with {what} {got}, but this target has {wanted}; "
                "use the assistant that was published with this model"
            )
