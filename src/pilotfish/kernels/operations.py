"""What a decoder layer is made of, as operations that each device implements in its own way.

Contract of every implementation: *row i of a result depends only on row i of the input*, bit for bit, whatever the
number of rows, the size of the buffers or the moment at which they grew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import mlx.core as mx

from pilotfish.kernels.weights import Weights

Prepared = Any
"""`Weights` in the form that an implementation keeps; made once by `Operations.prepare`."""


class Residual(NamedTuple):
    """What ends half a layer: (stream + norm(product) * weight) * scale."""

    stream: mx.array  # (..., n)
    weight: mx.array  # (n)
    eps: float
    scale: mx.array | None = None  # (1)


class Runs(NamedTuple):
    """Where keys and values lie, each (B, kv_heads, slots, head_dim).

    One run whose slot 0 holds position `first`; or a run from 0 and a tail that begins at position start[b]; or, with
    `ring`, one buffer in which position p lies in slot p % slots.
    """

    keys: tuple[mx.array, ...]
    values: tuple[mx.array, ...]
    start: mx.array | None = None  # (B,) int32
    first: int = 0
    ring: bool = False


class Choice(NamedTuple):
    """How one row of a batch is sampled; see `engine.sampling`. temperature 0: greedy; top_k 0 and top_p 1 keep all.

    words: by stream of noise, two words of uint32.
    """

    temperature: float
    top_k: int
    top_p: float
    log_min_p: float
    words: tuple[tuple[int, int], ...]


class Adjustment(NamedTuple):
    """How the logits of one row of a batch are changed before a token is chosen; see `engine.processors`.

    window: newest tokens that penalties look at, 0 for no penalties. bias: (token, what is added).
    ends, ends_from: tokens that may not stand before that position, unless all others are at minus infinity.
    opens, closes, closed_from: from that position on, what token `opens` began must be ended by `closes`; -1 for none.
    """

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    window: int = 0
    bias: tuple[tuple[int, float], ...] = ()
    ends: tuple[int, ...] = ()
    ends_from: int = 0
    opens: int = -1
    closes: int = -1
    closed_from: int = 0


class Adjuster(Protocol):
    """Changes logits (B, N, M)."""

    def __call__(
        self, logits: mx.array, tokens: mx.array, is_open: mx.array, drafts: mx.array, first: int, length: mx.array,
        ids: mx.array | None,
    ) -> mx.array:  # fmt: skip
        """Float32 logits for positions length[b] + 1 + first ..., row i after tokens (B, W) and drafts[:, :first + i].

        is_open: (B,) int32, whether something is open after `tokens`. `ids` (B, N, M) int32 names the logits' tokens.
        """

    def advance(
        self, tokens: mx.array, is_open: mx.array, drafts: mx.array, accepted: mx.array
    ) -> tuple[mx.array, mx.array]:
        """`tokens` and `is_open` after the first accepted[b] + 1 of drafts (B, N)."""


class Chooser(Protocol):
    """Chooses tokens for logits (B, N, M)."""

    def __call__(self, logits: mx.array, length: mx.array, shift: int, ids: mx.array | None, stream: int) -> mx.array:
        """Tokens (B, N) int32 for positions length[b] + shift ...; `ids` (B, N, M) int32 names the logits' tokens."""

    def reject(
        self, logits: mx.array, length: mx.array, drafts: mx.array, offered: Sequence[mx.array], ids: Sequence[mx.array]
    ) -> tuple[mx.array, mx.array]:
        """Drafts (B, depth) drawn from `offered` (of each position (B, 1, M), tokens named by `ids` or by their place)
        against the target's logits (B, depth + 1, V) -> tokens (B, depth + 1), accepted (B,)."""


class Operations(Protocol):
    """The operations of one device. All are lazy."""

    name: str
    reads_tails: bool  # whether `attention` takes a run and a tail without copying them together

    def prepare(self, weights: Weights) -> Prepared:
        """Weights, ready for the other operations."""

    def project(
        self, x: mx.array, matrices: Sequence[Prepared], *, norm: tuple[mx.array, float] | None = None,
        gated: bool = False, times: tuple[mx.array, int] | None = None, residual: Residual | None = None,
        cap: float = 0.0,
    ) -> mx.array:  # fmt: skip
        """x (..., k) times the transposes of matrices (n_i, k), side by side -> (..., sum of n_i) in x's dtype.

        norm: (weight (k), eps), an RMS norm of x before. After the products at most one of:
        gated: gelu(x gate) * (x up), for matrices (gate, up) -> (..., n). times: (values (..., parts, n), part):
        gelu(x w) * values[..., part, :]. residual: see `Residual`. cap: tanh(out / cap) * cap.
        """

    def gather(self, x: mx.array, indices: mx.array, stack: Prepared) -> mx.array:
        """x (..., k), or (..., picks, k), times the experts (of a stack (experts, n, k)) that indices (..., picks) name
        -> (..., picks, n)."""

    def lookup(self, ids: mx.array, table: Prepared, scale: float, dtype: mx.Dtype) -> mx.array:
        """Rows of a table (n, k) that ids (...) name, times `scale` -> (..., k) in `dtype`."""

    def concatenate(self, parts: Sequence[mx.array]) -> mx.array:
        """Parts side by side along the last axis."""

    def blend(
        self, projected: mx.array, own: mx.array, weight: mx.array, *, eps: float, scale: float, factor: float,
    ) -> mx.array:  # fmt: skip
        """(rms_norm(projected * scale, weight) + own) * factor, for (B, L, layers * width) and weight (width)
        -> (B, L, layers, width)."""

    def choices(self, rows: Sequence[Choice], suppress: Sequence[int]) -> Chooser | None:
        """A fused choice of tokens for a batch, or None where the caller has to make it of MLX's operations."""

    def adjuster(self, rows: Sequence[Adjustment], vocab: int) -> Adjuster | None:
        """The same for what changes logits."""

    def mask(self, logits: mx.array, bits: mx.array, ids: mx.array | None = None) -> mx.array:
        """(B, N, M) logits with those of forbidden tokens at minus infinity.

        bits: (B, N, words) int32; bit t % 32 of word t // 32 allows token t. `ids` (B, N, M) int32 names the tokens of
        the logits.
        """

    def logprobs(self, logits: mx.array, tokens: mx.array, k: int) -> tuple[mx.array, mx.array, mx.array]:
        """(B, N, V) logits, tokens (B, N) -> float32 log probabilities (B, N); of the k most likely tokens, best first,
        ids (B, N, k) int32 and log probabilities (B, N, k)."""

    def fuse(self, outputs: Sequence[mx.array]) -> list[mx.array]:
        """The same arrays, made by as few nodes of MLX's graph as the device allows.

        What of these arrays' making is needed elsewhere too must be among `outputs`, or it is computed twice.
        """

    def rms_norm(self, x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
        """x / rms(x) * weight over the last axis."""

    def heads(
        self, x: mx.array, q_weight: mx.array, k_weight: mx.array | None, offset: mx.array, rotation: Any, *,
        head_dim: int, kv_heads: int, shared: bool, eps: float,
    ) -> tuple[mx.array, ...]:  # fmt: skip
        """Split (B, L, (heads + kv_heads [+ kv_heads]) * head_dim), norm each head, turn queries and keys.

        Row i of sequence b stands at offset[b] + i; `rotation` is a `Rotation`. `shared`: values are the keys before
        norm and rotation, and x has no part for them. kv_heads 0: queries only.
        -> queries (B, L, heads, head_dim), then keys and values (B, kv_heads, L, head_dim).
        """

    def write(
        self, keys: mx.array, values: mx.array, new_keys: mx.array, new_values: mx.array, length: mx.array,
        start: mx.array | None = None, ring: int = 0,
    ) -> tuple[mx.array, mx.array]:  # fmt: skip
        """Buffers (B, kv_heads, slots, head_dim) with row i of new_* at slot (length[b] - start[b] + i), % ring."""

    def attention(self, q: mx.array, runs: Runs, length: mx.array, window: int | None, scale: float) -> mx.array:
        """q (B, L, heads, head_dim) against all that rows see -> (B, L, heads * head_dim).

        Row i of sequence b stands at length[b] + i and sees `window` positions up to its own (None: all).
        """
