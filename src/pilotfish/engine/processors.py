"""What changes logits before a token is chosen: penalties, biases, an end that must not come yet.

Row i of a verify pass sees the history that plain decoding would have had there: the tokens before the round, then the
drafts before i. All of it is on the device; nothing is read back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from pilotfish.engine.state import row_positions
from pilotfish.errors import OptionError

MAX_PENALTY = 100.0
NOTHING = -1  # in a history, where there is no token


@dataclass(frozen=True)
class Adjustments:
    """How the logits of one sequence are changed. Raises OptionError for values outside their range.

    repetition: logits of tokens in the window are divided (or, where negative, multiplied) by it; 1 changes nothing.
    presence, frequency: taken off once, and for each time, a token is in the window; 0 changes nothing.
    window: how many of the newest tokens count; 0 for none. of_prompt: whether tokens of the prompt are among them.
    bias: added to the logits of tokens, by id. min_tokens: so many come before any of `eos` may.
    budget: (opens, closes, n): n tokens after the prompt, what token `opens` began and `closes` has not ended is ended.
    """

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    window: int = 0
    of_prompt: bool = False
    bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    eos: frozenset[int] = frozenset()
    budget: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.repetition) and 0 < self.repetition <= MAX_PENALTY):
            raise OptionError(
                f"repetition penalty is {self.repetition}; it must be above 0 and at most {MAX_PENALTY:g}"
            )
        for name in ("presence", "frequency"):
            value = getattr(self, name)
            if not (math.isfinite(value) and abs(value) <= MAX_PENALTY):
                raise OptionError(f"{name} penalty is {value}; it must be between -{MAX_PENALTY:g} and {MAX_PENALTY:g}")
        if self.window < 0 or self.min_tokens < 0:
            raise OptionError("the window of penalties and min_tokens must be 0 or positive")
        if any(not math.isfinite(b) for b in self.bias.values()):
            raise OptionError("a logit bias must be a finite number")

    @property
    def penalizes(self) -> bool:
        return self.window > 0 and (self.repetition, self.presence, self.frequency) != (1.0, 0.0, 0.0)

    @property
    def changes_nothing(self) -> bool:
        return not (self.penalizes or self.bias or (self.min_tokens and self.eos) or self.budget)


class Processors:
    """Changes logits of B rows, each by its own adjustments. Lazy.

    vocab: size of the vocabulary. prompt_lengths: tokens of each prompt, from which `min_tokens` counts.
    """

    def __init__(self, rows: Sequence[Adjustments], vocab: int, prompt_lengths: Sequence[int]) -> None:
        self._rows, self._vocab, self._prompt_lengths = tuple(rows), vocab, tuple(prompt_lengths)
        self.window = max((_looks_at(r) for r in rows), default=0)
        self._repetition, self._presence, self._frequency = (
            _column([getattr(r, name) if r.penalizes else neutral for r in rows])
            for name, neutral in (("repetition", 1.0), ("presence", 0.0), ("frequency", 0.0))
        )
        first = mx.array([self.window - _looks_at(r) for r in rows])[:, None, None]
        self._in_window = mx.arange(self.window) >= first
        self._bias = _biases(rows, vocab) if any(r.bias for r in rows) else None
        self._early = [r.min_tokens > 0 and bool(r.eos) for r in rows]

    def select(self, rows: Sequence[int]) -> Processors:
        """For some of the rows."""
        return Processors([self._rows[i] for i in rows], self._vocab, [self._prompt_lengths[i] for i in rows])

    def begin(self, prompts: Sequence[Sequence[int]]) -> mx.array:
        """(B, window) int32: the newest tokens of each prompt, where they count; else nothing."""
        out = []
        for row, prompt in zip(self._rows, prompts, strict=True):
            tokens = list(prompt[-self.window :]) if self.window and row.of_prompt else []
            out.append([NOTHING] * (self.window - len(tokens)) + tokens)
        return mx.array(out, dtype=mx.int32).reshape(len(out), self.window)

    def advance(self, history: mx.array, tokens: mx.array, accepted: mx.array) -> mx.array:
        """The history after a round: tokens (B, N) of which accepted + 1 were committed."""
        if not self.window:
            return history
        longer = mx.concatenate([history, tokens], axis=1)
        at = accepted[:, None] + 1 + mx.arange(self.window)
        return mx.take_along_axis(longer, at, axis=1)

    def apply(
        self, logits: mx.array, history: mx.array, drafts: mx.array, length: mx.array, ids: mx.array | None = None
    ) -> mx.array:
        """(B, N, M) logits for the tokens at length[b] + 1 ..., row i after `history` and drafts[:, :i].

        drafts: (B, N - 1 or more). `ids` (B, N, M) int32 names the logits' tokens; without it, logit j is token j.
        """
        rows = logits.shape[1]
        out = logits.astype(mx.float32)
        if self.window:
            counts = self._counts(history, drafts, rows)
            counts = counts if ids is None else mx.take_along_axis(counts, ids, axis=-1)
            seen = counts > 0
            penalized = mx.where(out > 0, out / self._repetition, out * self._repetition)
            out = mx.where(seen, penalized - self._presence, out) - self._frequency * counts
        if self._bias is not None:
            wide = mx.broadcast_to(self._bias, (*logits.shape[:2], self._vocab))
            out = out + (wide if ids is None else mx.take_along_axis(wide, ids, axis=-1))
        if any(self._early):
            out = self._held_open(out, length, ids)
        return self._closed(out, history, drafts, length, ids) if any(r.budget for r in self._rows) else out

    def _counts(self, history: mx.array, drafts: mx.array, rows: int) -> mx.array:
        """(B, rows, vocab) float32: how often each token is in the window before each row."""
        batch, columns = history.shape[0], self._vocab + 1  # the last one takes what is no token
        windows = self._windows(history, drafts, rows)
        windows = mx.where(windows < 0, self._vocab, windows).reshape(batch * rows, self.window)
        counts = mx.zeros((batch * rows, columns))
        counts = counts.at[mx.arange(batch * rows)[:, None], windows].add(1.0)
        return counts.reshape(batch, rows, columns)[..., : self._vocab]

    def _windows(self, history: mx.array, drafts: mx.array, rows: int) -> mx.array:
        """(B, rows, window) int32: the tokens before each row, oldest first."""
        sequence = mx.concatenate([history, drafts[:, : rows - 1]], axis=1)
        place = mx.arange(rows)[:, None] + mx.arange(self.window)
        return mx.where(self._in_window, sequence[:, place], NOTHING)

    def _closed(
        self, logits: mx.array, history: mx.array, drafts: mx.array, length: mx.array, ids: mx.array | None
    ) -> mx.array:
        """Rows whose budget is spent while what it is for is open may only close it."""
        rows = logits.shape[1]
        windows, places = self._windows(history, drafts, rows), mx.arange(self.window)
        budgets = [r.budget or (NOTHING - 1, NOTHING - 1, 0) for r in self._rows]
        opens, closes, most = (mx.array([b[i] for b in budgets], dtype=mx.int32)[:, None, None] for i in range(3))
        opened, closed = (mx.max(mx.where(windows == t, places, -1), axis=-1, keepdims=True) for t in (opens, closes))
        wanted = mx.array([r.budget is not None for r in self._rows])[:, None, None]
        start = mx.array(self._prompt_lengths)[:, None, None]
        spent = row_positions(length + 1, rows)[..., None] >= start + most
        tokens = mx.arange(logits.shape[-1], dtype=mx.int32) if ids is None else ids
        barred = wanted & spent & (opened > closed) & (tokens != closes)
        return mx.where(barred, -math.inf, logits)

    def _held_open(self, logits: mx.array, length: mx.array, ids: mx.array | None) -> mx.array:
        """Ends of text at minus infinity where they would come too early."""
        tokens = mx.arange(logits.shape[-1], dtype=mx.int32) if ids is None else ids
        positions = row_positions(length + 1, logits.shape[1])[..., None]
        limits = mx.array([n + r.min_tokens for n, r in zip(self._prompt_lengths, self._rows, strict=True)])
        ends = sorted({e for r in self._rows for e in r.eos})
        is_end = mx.any(tokens[..., None] == mx.array(ends, dtype=mx.int32), axis=-1)
        too_early = positions < limits[:, None, None]
        return mx.where(is_end & too_early, -math.inf, logits)


def _looks_at(row: Adjustments) -> int:
    """Tokens of the past that a row's adjustments need."""
    return row.window if row.penalizes or row.budget else 0


def _column(values: list[float]) -> mx.array:
    return mx.array(values, dtype=mx.float32)[:, None, None]


def _biases(rows: Sequence[Adjustments], vocab: int) -> mx.array:
    """(B, 1, vocab) float32."""
    out = mx.zeros((len(rows), 1, vocab))
    for b, row in enumerate(rows):
        if row.bias:
            out[b, 0, mx.array(list(row.bias))] = mx.array(list(row.bias.values()))
    return out
