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
