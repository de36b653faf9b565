"""The model whose text the user wants: any model that mlx-lm can load, seen through one small interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
from mlx_lm.models import gemma4, gemma4_text
from mlx_lm.models.cache import make_prompt_cache

from pilotfish.engine.caches import CacheSpec, specs_for
from pilotfish.engine.gemma4 import Gemma4Network
from pilotfish.kernels.operations import Operations


class TargetOutput(NamedTuple):
    """logits (B, N, vocab); hidden (B, N, hidden), after the final norm, or (B, N, 1) zeros where it is not given out.

    Both are lazy: what is not used is not computed.
    """

    logits: mx.array
    hidden: mx.array


class Target(Protocol):
    """A model being decoded. `specs` describe its caches; views over them are made for each pass."""

    specs: tuple[CacheSpec, ...]
    operations: Operations
    max_depth: int
    vocab_size: int

    def forward(self, tokens: mx.array, views: Sequence[Any]) -> TargetOutput:
        """One pass over (B, N) int32 token ids; keys and values are written to `views`."""

    @property
    def can_roll_back(self) -> bool:
        """Whether drafts can be rejected, that is, whether every cache can be rolled back."""


def ring_slack(max_depth: int) -> int:
    """Slots beyond the window: the rows of the round that is read and of the one in flight behind it."""
    return 2 * (max_depth + 1)


class PlainTarget:
    """Any mlx-lm model: logits only, so it decodes plainly or with drafters that need no hidden state."""

    def __init__(self, model: Any, max_depth: int, operations: Operations) -> None:
        self.model, self.max_depth, self.operations = model, max_depth, operations
        own = isinstance(self, Gemma4Target)
        self.specs = specs_for(make_prompt_cache(model), ring_slack(max_depth), operations, own)
        self.vocab_size = int(model.args.vocab_size)

    @property
    def can_roll_back(self) -> bool:
        return all(spec.can_roll_back for spec in self.specs)

    def forward(self, tokens: mx.array, views: Sequence[Any]) -> TargetOutput:
        logits = self.model(tokens, cache=list(views))
        return TargetOutput(logits, mx.zeros((*tokens.shape, 1), dtype=logits.dtype))


class Gemma4Target(PlainTarget):
    """Gemma 4 gives out what its assistant needs: hidden states, scaled embeddings and two layers' keys and values."""

    def __init__(self, model: gemma4.Model | gemma4_text.Model, max_depth: int, operations: Operations) -> None:
        super().__init__(model, max_depth, operations)
        text: gemma4_text.Model = getattr(model, "language_model", model)
        self.network = Gemma4Network(text, operations)
        self.config: gemma4_text.ModelArgs = text.args
        self.vocab_size = int(self.config.vocab_size)

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    def forward(self, tokens: mx.array, views: Sequence[Any]) -> TargetOutput:
        if isinstance(views[0].offset, mx.array):
            hidden, logits = self.network.decode(tokens, views)
        else:
            hidden = self.network(tokens, views)
            logits = self.network.head(hidden)
        return TargetOutput(logits, hidden)

    def embed(self, tokens: mx.array) -> mx.array:
        """(B, N) int32 -> (B, N, hidden) input embeddings, scaled as the target scales them."""
        return self.network.embed(tokens)

    def donor(self, kind: str) -> int:
        """Index of the cache that `kind` ("full_attention", "sliding_attention") layers of a drafter read."""
        owners = self.config.layer_types[: len(self.specs)]
        return max(i for i, layer_type in enumerate(owners) if layer_type == kind)


def wrap(model: Any, max_depth: int, operations: Operations) -> PlainTarget:
    """The target for a model that mlx-lm has loaded. `operations` are what Gemma 4 is computed with."""
    if isinstance(model, gemma4.Model | gemma4_text.Model):
        return Gemma4Target(model, max_depth, operations)
    return PlainTarget(model, max_depth, operations)
