"""Sampling that depends on (seed, position, token) and on nothing else.

The token at position p is `argmax(filtered_logits / temperature + noise(seed, p, token))` with Gumbel noise from a
counter-based hash, so the choice is the same in a verify pass as in a pass of one row, in a batch as alone. Target
and drafter use the same noise: a draft is right when it equals the target's own choice (drafter-invariant
speculative decoding: Daliri, Musco, Suresh, arXiv 2408.07978).

Filters act in Hugging Face's order on logits / temperature: top-k, then top-p over what is left, then min-p. Tokens
that tie with the last one kept are kept too, so the kept set does not depend on how a sort orders equals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from pilotfish.engine.state import (
    ACCEPT_NOISE,
    DRAFT_NOISE,
    TEXT_NOISE,
    Draft,
    Offer,
    leading,
    row_positions,
)
from pilotfish.errors import OptionError
from pilotfish.kernels.operations import Choice, Operations

MAX_SEED = 2**63 - 1
GREEDY_BELOW = 1e-4  # dividing logits by less than this can overflow float32; the limit is the greedy choice
TIE_SLACK = 64  # candidates beyond top-k, so that ties with the k-th are among them


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one sequence are chosen. Raises OptionError for values outside their range.

    temperature: 0 is greedy. top_k: 0 keeps all. top_p: 1 keeps all. min_p: 0 keeps all.
    seed: 0 to 2**63 - 1.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise OptionError(f"temperature is {self.temperature}; it must be 0 (greedy) or a positive number")
        if self.top_k < 0:
            raise OptionError(f"top_k is {self.top_k}; it must be 0 (keep all tokens) or a positive whole number")
        if not 0 < self.top_p <= 1:
            raise OptionError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise OptionError(f"min_p is {self.min_p}; it must be between 0 and 1")
        if not 0 <= self.seed <= MAX_SEED:
            raise OptionError(f"seed is {self.seed}; it must be between 0 and {MAX_SEED}")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


def mix(x: mx.array) -> mx.array:
    """A bijective 32-bit mixer on uint32 (Chris Wellons' lowbias32); arithmetic wraps."""
    x = (x ^ (x >> 16)) * mx.array(0x7FEB352D, mx.uint32)
    x = (x ^ (x >> 15)) * mx.array(0x846CA68B, mx.uint32)
    return x ^ (x >> 16)


def seed_words(seed: int, stream: int) -> tuple[int, int]:
    """Two 32-bit words from a seed and a stream (splitmix64), on the host."""
    z = (seed + (stream + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    z ^= z >> 31
    return z & 0xFFFFFFFF, z >> 32


class Sampler:
    """Chooses tokens for B rows, each with its own parameters. Lazy: nothing is evaluated or read back.

    `suppress` lists token ids that are never chosen (a checkpoint's `suppress_tokens`), by target and drafter alike.
    `operations` may make the choice in one piece; the text of a request never mixes the two ways.
    """

    def __init__(
        self, rows: Sequence[SamplingParams], suppress: Sequence[int] = (), operations: Operations | None = None
    ) -> None:
        self.rows, self.suppress, self._operations = tuple(rows), tuple(suppress), operations
        self.greedy = all(r.greedy for r in rows)
        self._is_greedy = mx.array([r.greedy for r in rows])[:, None]
        self._temperature = _column([1.0 if r.greedy else r.temperature for r in rows])
        self._top_p = _column([r.top_p for r in rows])
        self._log_min_p = _column([math.log(r.min_p) if r.min_p else -math.inf for r in rows])
        words = [tuple(seed_words(r.seed, stream) for stream in (TEXT_NOISE, DRAFT_NOISE, ACCEPT_NOISE)) for r in rows]
        self._words = mx.array(words, dtype=mx.uint32)  # (B, streams, 2)
        choices = [
            Choice(0.0 if r.greedy else r.temperature, r.top_k, r.top_p, math.log(r.min_p) if r.min_p else -math.inf, w)
            for r, w in zip(rows, words, strict=True)
        ]
        self._fused = None if operations is None else operations.choices(choices, self.suppress)

    def select(self, rows: Sequence[int]) -> Sampler:
        """A sampler for some of the rows."""
        return Sampler([self.rows[i] for i in rows], self.suppress, self._operations)

    def choose(self, logits: mx.array, length: mx.array, shift: int, ids: mx.array | None = None,
               stream: int = TEXT_NOISE) -> mx.array:  # fmt: skip
        """(B, N, M) logits for the tokens that will stand at length[b] + shift ... -> (B, N) int32 token ids.

        length: (B,) int32. `ids` (B, N, M) int32 names the token of each logit; without it, logit j is token j.
        """
        if self._fused is not None:
            return self._fused(logits, length, shift, ids, stream)
        positions = row_positions(length + shift, logits.shape[1])
        logits = self._suppressed(logits, ids)
        best = _pick(mx.argmax(logits, axis=-1, keepdims=True), ids)
        if self.greedy:
            return best
        scaled = logits.astype(mx.float32) / self._temperature
        values, tokens = self._candidates(scaled, ids)
        kept = values >= self._threshold(values)
        scores = mx.where(kept, values + self._gumbel(positions, tokens, stream), -math.inf)
        return mx.where(self._is_greedy, best, _pick(mx.argmax(scores, axis=-1, keepdims=True), tokens))

    def reject(self, draft: Draft, logits: mx.array, length: mx.array) -> tuple[mx.array, mx.array]:
        """Keep each draft with probability min(1, p/q), else draw from max(p - q, 0) (arXiv 2211.17192).

        Target logits (B, depth + 1, V) for positions length[b] + 1 ...; the draft with its offers -> tokens
        (B, depth + 1), of which accepted + 1 are committed and the rest mean nothing, and accepted (B,).
        """
        if self._fused is not None:
            ids = [o.ids for o in draft.offers if o.ids is not None]
            return self._fused.reject(logits, length, draft.tokens, [o.logits for o in draft.offers], ids)
        positions = row_positions(length + 1, logits.shape[1])
        p = self.probabilities(logits)
        q = mx.concatenate([self._offered(offer, logits.shape[-1]) for offer in draft.offers], axis=1)
        at = draft.tokens[..., None]
        p_draft = mx.take_along_axis(p[:, :-1], at, axis=-1)[..., 0]
        q_draft = mx.take_along_axis(q, at, axis=-1)[..., 0]
        # u * q < p instead of u < p / q: no division by zero, and p = 0 is never accepted.
        accepted = leading(self._uniform(positions[:, :-1]) * q_draft < p_draft)
        residual = mx.maximum(p[:, :-1] - q, 0)
        # Where p <= q everywhere by rounding, a rejection can only be a rounding accident: fall back to p.
        empty = mx.sum(residual, axis=-1, keepdims=True) <= 0
        remaining = mx.concatenate([mx.where(empty, p[:, :-1], residual), p[:, -1:]], axis=1)
        every = mx.arange(logits.shape[-1], dtype=mx.int32)
        drawn = mx.argmax(mx.log(remaining) + self._gumbel(positions, every, TEXT_NOISE), axis=-1).astype(mx.int32)
        kept = mx.arange(draft.tokens.shape[1]) < accepted[:, None]
        return mx.concatenate([mx.where(kept, draft.tokens, drawn[:, :-1]), drawn[:, -1:]], axis=1), accepted

    def probabilities(self, logits: mx.array) -> mx.array:
        """(B, N, V) logits -> (B, N, V) float32: the distribution that `choose` draws from (one-hot where greedy)."""
        logits = self._suppressed(logits, None)
        best = mx.argmax(logits, axis=-1, keepdims=True)
        one_hot = (mx.arange(logits.shape[-1]) == best).astype(mx.float32)
        if self.greedy:
            return one_hot
        scaled = logits.astype(mx.float32) / self._temperature
        values, _ = self._candidates(scaled, None)
        p = mx.softmax(mx.where(scaled >= self._threshold(values), scaled, -math.inf), axis=-1)
        return mx.where(self._is_greedy[:, :, None], one_hot, p)

    def _offered(self, offer: Offer, vocab: int) -> mx.array:
        logits = offer.logits
        if offer.ids is not None:
            full = mx.full((*logits.shape[:2], vocab), -math.inf, dtype=mx.float32)
            logits = mx.put_along_axis(full, offer.ids, logits.astype(mx.float32), axis=-1)
        return self.probabilities(logits)

    def _uniform(self, positions: mx.array) -> mx.array:
        """(B, N) float32 in (0, 1), keyed by seed and position."""
        return _unit(self._hash(positions, mx.array([0], dtype=mx.int32), ACCEPT_NOISE))[..., 0]

    def _suppressed(self, logits: mx.array, ids: mx.array | None) -> mx.array:
        """Logits with those of the tokens in `suppress` at minus infinity."""
        if not self.suppress:
            return logits
        tokens = mx.arange(logits.shape[-1], dtype=mx.int32) if ids is None else ids
        banned = mx.any(tokens[..., None] == mx.array(self.suppress, dtype=mx.int32), axis=-1)
        return mx.where(banned, -math.inf, logits)

    def _candidates(self, scaled: mx.array, ids: mx.array | None) -> tuple[mx.array, mx.array]:
        """Values and token ids of everything that can survive top-k, in no particular order."""
        size = scaled.shape[-1]
        top_k = [r.top_k for r in self.rows if not r.greedy]
        wanted = max(top_k) + TIE_SLACK if all(top_k) else size
        if wanted >= size:
            tokens = mx.arange(size, dtype=mx.int32) if ids is None else ids
            return scaled, tokens
        index = mx.argpartition(-scaled, kth=wanted - 1, axis=-1)[..., :wanted]
        values = mx.take_along_axis(scaled, index, axis=-1)
        tokens = index.astype(mx.int32) if ids is None else mx.take_along_axis(ids, index, axis=-1)
        return values, tokens

    def _threshold(self, values: mx.array) -> mx.array:
        """(B, N, 1): the smallest value that survives the filters, given unsorted candidates."""
        threshold = mx.max(values, axis=-1, keepdims=True) + self._log_min_p
        size = values.shape[-1]
        filters = [r for r in self.rows if not r.greedy and (r.top_k or r.top_p < 1)]
        if not filters:
            return threshold
        ordered = -mx.sort(-values, axis=-1)
        rank = mx.array([min(r.top_k or size, size) - 1 for r in self.rows])[:, None, None]
        at_k = mx.take_along_axis(ordered, mx.broadcast_to(rank, (*ordered.shape[:2], 1)), axis=-1)
        threshold = mx.maximum(threshold, at_k)
        if all(r.top_p == 1 for r in filters):
            return threshold
        p = mx.softmax(mx.where(ordered >= at_k, ordered, -math.inf), axis=-1)
        needed = (mx.cumsum(p, axis=-1) - p < self._top_p) | (self._top_p == 1)
        smallest = mx.min(mx.where(needed, ordered, math.inf), axis=-1, keepdims=True)
        return mx.maximum(threshold, smallest)

    def _hash(self, positions: mx.array, tokens: mx.array, stream: int) -> mx.array:
        """(B, N) positions and (..., M) tokens -> (B, N, M) uint32."""
        words = self._words[:, stream]
        at = mix(positions.astype(mx.uint32) * mx.array(0x9E3779B9, mx.uint32) ^ words[:, :1])
        at = mix(at + words[:, 1:])
        return mix(mix(at[..., None] ^ tokens.astype(mx.uint32) * mx.array(0x85EBCA6B, mx.uint32)))

    def _gumbel(self, positions: mx.array, tokens: mx.array, stream: int) -> mx.array:
        return -mx.log(-mx.log(_unit(self._hash(positions, tokens, stream))))


def _column(values: list[float]) -> mx.array:
    return mx.array(values, dtype=mx.float32)[:, None, None]


def _unit(bits: mx.array) -> mx.array:
    """uint32 -> float32 strictly between 0 and 1 (23 bits, so that no value rounds to 1)."""
    return ((bits >> 9).astype(mx.float32) + 0.5) * (2.0**-23)


def _pick(index: mx.array, ids: mx.array | None) -> mx.array:
    """(B, N, 1) index into the last axis -> (B, N) int32 token ids."""
    if ids is not None:
        ids = mx.broadcast_to(ids, (*index.shape[:2], ids.shape[-1]))
        index = mx.take_along_axis(ids, index, axis=-1)
    return index[..., 0].astype(mx.int32)
