"""Log probabilities of committed tokens, from the target's own distribution: before temperature and penalties."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

MOST = 20  # alternatives that can be asked for


class Logprobs(NamedTuple):
    """chosen (B, N) float32; of the most likely tokens ids (B, N, k) int32 and values (B, N, k) float32, best first."""

    chosen: mx.array
    top_ids: mx.array
    top: mx.array


class TokenLogprob(NamedTuple):
    """Of one token; `top` holds (id, log probability), best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs(logits: mx.array, tokens: mx.array, k: int) -> Logprobs:
    """Of (B, N, V) logits and the tokens (B, N) that were chosen. Lazy; row i depends on row i only."""
    values = logits.astype(mx.float32)
    values = values - mx.logsumexp(values, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(values, tokens[..., None], axis=-1)[..., 0]
    if not k:
        none = mx.zeros((*tokens.shape, 0))
        return Logprobs(chosen, none.astype(mx.int32), none)
    ids = mx.argsort(-values, axis=-1)[..., :k]
    return Logprobs(chosen, ids.astype(mx.int32), mx.take_along_axis(values, ids, axis=-1))
