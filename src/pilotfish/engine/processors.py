"""What changes logits before a token is chosen: penalties, biases, an end that must not come yet.

Row i of a verify pass sees the history that plain decoding would have had there: the tokens before the round, then the
drafts before i. All of it is on the device; nothing is read back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from pilotfish.engine.state import Past, row_positions
from pilotfish.errors import OptionError
from pilotfish.kernels.operations import Adjustment, Operations

MAX_PENALTY = 100.0
NOTHING = -1  # in a history, where there is no token


@dataclass(frozen=True)
class Adjustments:
    """How the logits of one sequence are changed. Raises OptionError for values outside their range.

    repetition: logits of tokens in the window are divided (or, where negative, multiplied) by it; 1 changes nothing.
    presence, frequency: taken off once, and for each time, a token is in the window; 0 changes nothing.
    window: how many of the newest tokens count; 0 for none. of_prompt: whether tokens of the prompt are among them.
    bias: added to the logits of tokens, by id.
    min_tokens: so many come before any of `eos` may, unless nothing else may (a grammar's value is complete).
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

    def placed(self, prompt_length: int) -> Adjustment:
        """The same with positions for counts."""
        opens, closes, budget = self.budget or (NOTHING, NOTHING, 0)
        penalties = (
            (self.repetition, self.presence, self.frequency, self.window) if self.penalizes else (1.0, 0.0, 0.0, 0)
        )
        return Adjustment(
            *penalties, bias=tuple(self.bias.items()), ends=tuple(sorted(self.eos)) if self.min_tokens else (),
            ends_from=prompt_length + self.min_tokens, opens=opens, closes=closes, closed_from=prompt_length + budget,
        )  # fmt: skip

    @property
    def penalizes(self) -> bool:
        return self.window > 0 and (self.repetition, self.presence, self.frequency) != (1.0, 0.0, 0.0)

    @property
    def changes_nothing(self) -> bool:
        return not (self.penalizes or self.bias or (self.min_tokens and self.eos) or self.budget)


class Processors:
    """Changes logits of B rows, each by its own adjustments. Lazy.

    vocab: size of the vocabulary. prompt_lengths: tokens of each prompt, from which `min_tokens` and budgets count.
    operations: may do it in one piece; the text of a request never mixes the two ways.
    """

    def __init__(
        self, rows: Sequence[Adjustments], vocab: int, prompt_lengths: Sequence[int],
        operations: Operations | None = None,
    ) -> None:  # fmt: skip
        self._rows, self._vocab, self._prompt_lengths = tuple(rows), vocab, tuple(prompt_lengths)
        self._operations = operations
        self._placed = [r.placed(n) for r, n in zip(rows, prompt_lengths, strict=True)]
        self.window = max(a.window for a in self._placed)
        self._fused = None if operations is None else operations.adjuster(self._placed, vocab)

    def select(self, rows: Sequence[int]) -> Processors:
        """For some of the rows; what they know of the past stays as wide as it is."""
        out = Processors([self._rows[i] for i in rows], self._vocab, [self._prompt_lengths[i] for i in rows],
                         self._operations)  # fmt: skip
        out.window = self.window
        return out

    def begin(self, prompts: Sequence[Sequence[int]]) -> Past:
        """What is known before the first token: of each prompt the newest tokens, where they count."""
        newest, is_open = [], []
        for row, prompt in zip(self._rows, prompts, strict=True):
            tokens = list(prompt[-self.window :]) if self.window and row.of_prompt else []
            newest.append([NOTHING] * (self.window - len(tokens)) + tokens)
            opens, closes, _ = row.budget or (NOTHING, NOTHING, 0)
            last = next((t for t in reversed(prompt) if t in (opens, closes)), NOTHING)
            is_open.append(int(last == opens and row.budget is not None))
        tokens_ = mx.array(newest, dtype=mx.int32).reshape(len(newest), self.window)
        return Past(tokens_, mx.array(is_open, dtype=mx.int32))

    def advance(self, past: Past, tokens: mx.array, accepted: mx.array) -> Past:
        """What is known after a round: tokens (B, N) of which accepted + 1 were committed."""
        if self._fused is not None:
            return Past(*self._fused.advance(past.tokens, past.open, tokens, accepted))
        newest, is_open, last = past.tokens, past.open, accepted[:, None]
        if self.window:
            longer = mx.concatenate([newest, tokens], axis=1)
            newest = mx.take_along_axis(longer, last + 1 + mx.arange(self.window, dtype=mx.int32), axis=1)
        if any(r.budget for r in self._rows):
            after = self._open(is_open, tokens)
            is_open = mx.take_along_axis(after, last + 1, axis=1)[:, 0]
        return Past(newest, is_open)

    def apply(
        self, logits: mx.array, past: Past, drafts: mx.array, length: mx.array, first: int = 0,
        ids: mx.array | None = None,
    ) -> mx.array:  # fmt: skip
        """(B, N, M) logits for the tokens at length[b] + 1 + first ..., row i after `past` and drafts[:, :first + i].

        `ids` (B, N, M) int32 names the logits' tokens; without it, logit j is token j.
        """
        if self._fused is not None:
            return self._fused(logits, past.tokens, past.open, drafts, first, length, ids)
        rows = logits.shape[1]
        before = drafts[:, : first + rows - 1]
        out = logits.astype(mx.float32)
        if self.window:
            counts = self._counts(past.tokens, before, first, rows)
            counts = counts if ids is None else mx.take_along_axis(counts, ids, axis=-1)
            repetition, presence, frequency = (
                mx.array([getattr(a, name) for a in self._placed], dtype=mx.float32)[:, None, None]
                for name in ("repetition", "presence", "frequency")
            )
            penalized = mx.where(out > 0, out / repetition, out * repetition)
            out = mx.where(counts > 0, penalized - presence, out) - frequency * counts
        if any(a.bias for a in self._placed):
            wide = mx.broadcast_to(self._biases(), (*logits.shape[:2], self._vocab))
            out = out + (wide if ids is None else mx.take_along_axis(wide, ids, axis=-1))
        tokens = mx.arange(logits.shape[-1], dtype=mx.int32) if ids is None else ids
        positions = row_positions(length + 1 + first, rows)[..., None]
        barred = self._early(tokens, positions, out) | self._unclosed(tokens, positions, past.open, before, first)
        return mx.where(barred, -math.inf, out)

    def _counts(self, tokens: mx.array, before: mx.array, first: int, rows: int) -> mx.array:
        """(B, rows, vocab) float32: how often each token is in its sequence's window before each row."""
        batch, columns = tokens.shape[0], self._vocab + 1  # the last one takes what is no token
        sequence = mx.concatenate([tokens, before], axis=1)
        place = first + mx.arange(rows)[:, None] + mx.arange(self.window)
        inside = mx.arange(self.window) >= mx.array([self.window - a.window for a in self._placed])[:, None, None]
        windows = mx.where(inside & (sequence[:, place] >= 0), sequence[:, place], self._vocab)
        counts = mx.zeros((batch * rows, columns))
        counts = counts.at[mx.arange(batch * rows)[:, None], windows.reshape(batch * rows, self.window)].add(1.0)
        return counts.reshape(batch, rows, columns)[..., : self._vocab]

    def _biases(self) -> mx.array:
        """(B, 1, vocab) float32."""
        out = mx.zeros((len(self._placed), 1, self._vocab))
        for b, row in enumerate(self._placed):
            if row.bias:
                tokens, values = zip(*row.bias, strict=True)
                out[b, 0, mx.array(tokens)] = mx.array(values)
        return out

    def _early(self, tokens: mx.array, positions: mx.array, logits: mx.array) -> mx.array:
        """Ends of text that would come too early."""
        out = mx.zeros((1, 1, 1), dtype=mx.bool_)
        for b, row in enumerate(self._placed):
            if row.ends:
                is_end = mx.any(tokens[..., None] == mx.array(row.ends, dtype=mx.int32), axis=-1)
                its_row = (mx.arange(len(self._placed)) == b)[:, None, None]
                others = mx.any((logits > -math.inf) & ~is_end, axis=-1, keepdims=True)
                out = out | (its_row & is_end & others & (positions < row.ends_from))
        return out

    def _unclosed(
        self, tokens: mx.array, positions: mx.array, is_open: mx.array, before: mx.array, first: int
    ) -> mx.array:
        """Whatever does not close what a spent budget was for."""
        if not any(r.budget for r in self._rows):
            return mx.zeros((1, 1, 1), dtype=mx.bool_)
        limits = mx.array([a.closed_from for a in self._placed], dtype=mx.int32)[:, None, None]
        closes = mx.array([a.closes for a in self._placed], dtype=mx.int32)[:, None, None]
        after = self._open(is_open, before)[:, first:, None]
        return (after == 1) & (positions >= limits) & (tokens != closes)

    def _open(self, is_open: mx.array, tokens: mx.array) -> mx.array:
        """(B, N + 1) int32: whether thinking is open before each of N tokens, and after the last."""
        opens = mx.array([a.opens for a in self._placed], dtype=mx.int32)
        closes = mx.array([a.closes for a in self._placed], dtype=mx.int32)
        states = [is_open]
        for j in range(tokens.shape[1]):
            token = tokens[:, j]
            states.append(mx.where(token == opens, 1, mx.where(token == closes, 0, states[-1])))
        return mx.stack(states, axis=1).astype(mx.int32)
