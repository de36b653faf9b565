"""The records that every part of the engine exchanges. Arrays only; nothing here evaluates."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from pilotfish.engine.logprobs import Logprobs

Buffers = tuple[mx.array, ...]
"""Arrays of one layer's cache, batch first; for attention keys, values and maybe more (see the spec)."""


# Streams of sampling noise: the text's own, and those that the `rejection` rule draws drafts and decisions from.
TEXT_NOISE, DRAFT_NOISE, ACCEPT_NOISE = 0, 1, 2


class Past(NamedTuple):
    """What processors know of a sequence up to its newest token.

    tokens: (B, window) int32, the newest tokens, -1 where there is none. open: (B,) int32, 1 while thinking is open.
    """

    tokens: mx.array
    open: mx.array


class DecodeState(NamedTuple):
    """Everything that a sequence of B rows is, on the device.

    length: (B,) int32, tokens whose keys and values are in the caches.
    token: (B, 1) int32, the newest committed token; its keys do not exist yet.
    hidden: (B, 1, hidden), the target's hidden state (after the final norm) of the token before it.
    caches: one `Buffers` for each cache of the target.
    past: for processors that look at it; None without any.
    """

    length: mx.array
    token: mx.array
    hidden: mx.array
    caches: tuple[Buffers, ...]
    past: Past | None = None


class Offer(NamedTuple):
    """What one draft was drawn from: logits (B, 1, M), and the tokens (B, 1, M) int32 they stand for.

    ids None: logit j is token j. Tokens that are not named have probability zero.
    """

    logits: mx.array
    ids: mx.array | None


class Draft(NamedTuple):
    """What a drafter proposes in one round.

    tokens: (B, depth) int32.
    offers: of each position; empty unless asked for.
    """

    tokens: mx.array
    offers: tuple[Offer, ...] = ()


class RoundResult(NamedTuple):
    """What a round gives.

    state: the state after it.
    tokens: (B, depth + 1) int32; the first `accepted + 1` of a row are committed, the rest mean nothing.
    accepted: (B,) int32, leading drafts that were kept.
    logprobs: of `tokens`, where they were asked for.
    """

    state: DecodeState
    tokens: mx.array
    accepted: mx.array
    logprobs: Logprobs | None = None


def row_positions(length: mx.array, rows: int) -> mx.array:
    """(B, rows) int32: positions of the rows of a pass that starts at `length`."""
    return length[:, None] + mx.arange(rows, dtype=mx.int32)


def leading(kept: mx.array) -> mx.array:
    """(B, depth) bool -> (B,) int32: how many are true before the first false."""
    return mx.sum(mx.cumprod(kept.astype(mx.int32), axis=1), axis=1)
