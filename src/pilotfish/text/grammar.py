"""JSON and JSON schemas as constraints, through llguidance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask
from tokenizers import Tokenizer

from pilotfish.errors import OptionError
from pilotfish.text.calls import WITHOUT_BLANKS, Marks, calls_grammar
from pilotfish.text.template import Tool
from pilotfish.text.tools import QUOTE

OVERRIDES: Any = dict(WITHOUT_BLANKS)


class GrammarConstraint:
    """What a grammar allows next (`engine.constraints.Constraint`).

    thinks: the answer may begin with a channel of thinking, which is free; the grammar begins where it ends.
    is_open: the prompt ends inside such a channel already.
    """

    def __init__(
        self, matcher: LLMatcher, vocab: int, eos: frozenset[int], channel: int | None, channel_end: int | None,
        thinks: bool, is_open: bool = False,
    ) -> None:  # fmt: skip
        self._matcher, self._vocab, self._eos = matcher, vocab, sorted(eos)
        self._channel, self._channel_end = channel, channel_end
        self._before = thinks and channel is not None and not is_open  # no token yet
        self._thinking = is_open
        self._ended = False
        self._next: Any = None  # what may come next, once somebody has asked

    def forced(self, most: int) -> list[int]:
        """Tokens that the grammar all but dictates."""
        if self._before or self._thinking or self._ended or self._matcher.is_stopped():
            return []
        # On a copy: having computed them, a matcher forbids tokens that reach beyond the forced ones.
        return list(self._matcher.deep_copy().compute_ff_tokens())[:most]

    def masks(self, drafts: Sequence[int]) -> Any:
        """Bits of each row."""
        rows = np.full((len(drafts) + 1, (self._vocab + 31) // 32), -1, dtype=np.int32)
        kept = self._matcher, self._before, self._thinking, self._ended
        if self._next is None:
            self._fill(rows, 0)
            self._next = rows[0].copy()
        rows[0] = self._next
        if drafts:  # on a copy: a matcher that was rolled back forbids some tokens that it allowed before (1.9.1)
            self._matcher = self._matcher.deep_copy()
        for i, token in enumerate(drafts):
            if not rows[i, token // 32] >> (token % 32) & 1:
                break
            self._advance(token)
            self._fill(rows, i + 1)
        self._matcher, self._before, self._thinking, self._ended = kept
        return rows

    def commit(self, tokens: Sequence[int]) -> None:
        """Tokens are final."""
        self._next = None
        for token in tokens:
            self._advance(token)

    def _advance(self, token: int) -> None:
        """Go on by one token."""
        if self._ended:
            return
        if token in self._eos:
            self._ended = True
        elif self._thinking:
            self._thinking = token != self._channel_end
        elif self._before and token == self._channel:
            self._before, self._thinking = False, True
        else:
            self._before = False
            self._matcher.consume_token(token)

    def _fill(self, rows: Any, at: int) -> None:
        """What may come next, as row `at` of words that allow everything."""
        words = rows[at]
        if self._ended:
            return
        if self._thinking:  # anything but an end, or there would be no value
            for token in self._eos:
                _set(words, token, False)
        elif self._matcher.is_stopped():
            words[:] = 0
            for token in self._eos:
                _set(words, token, True)
        else:
            fill_next_token_bitmask(self._matcher, rows, at)
            if self._matcher.is_error():  # it would allow an end now, and the value would be none
                why = self._matcher.get_error().partition("<state>")[0]
                raise OptionError(f"the JSON schema is too complex to be followed: {' '.join(why.split())}")
            if self._before and self._channel is not None:
                _set(words, self._channel, True)


def _set(words: Any, token: int, on: bool) -> None:
    bit = np.uint32(1 << (token % 32)).view(np.int32)
    words[token // 32] = words[token // 32] | bit if on else words[token // 32] & ~bit


class GrammarTokenizer:
    """A tokenizer as llguidance reads it; made once a model, which takes a second for a large vocabulary."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, eos: frozenset[int]) -> None:
        self.vocab, self.eos = vocab, eos
        plain = Tokenizer.from_str(tokenizer.to_str())
        plain.no_padding()
        plain.no_truncation()
        self.native = LLTokenizer(plain.to_str(), n_vocab=vocab, eos_token=sorted(eos))

        self._marks = [plain.token_to_id(mark) for mark in ("<|tool_call>", "<tool_call|>", QUOTE)]

    @property
    def marks(self) -> Marks | None:
        """Those of tool calls; None where the vocabulary has none, so that no call can be told from text."""
        known = [m for m in self._marks if m is not None]
        return Marks(*known) if len(known) == len(self._marks) else None

    def of_schema(self, schema: Mapping[str, Any]) -> LLMatcher:
        """A JSON value's grammar before its first token. Raises OptionError naming what of the schema is not known."""
        return self._matcher(compiled(_text_of(schema)), "the JSON schema")

    def of_calls(self, tools: Sequence[Tool], one: bool, otherwise: Mapping[str, Any] | None = None) -> LLMatcher:
        """The same for calls of tools; see `calls_grammar`. Raises OptionError."""
        if self.marks is None:
            raise OptionError("this model's vocabulary has no marks for tool calls, so that none can be forced")
        if otherwise is not None:
            compiled(_text_of(otherwise))  # what is wrong with it is said as it is without tools
        return self._matcher(calls_grammar(tools, self.marks, one, otherwise), "the parameters of a tool")

    def _matcher(self, grammar: str, what: str) -> LLMatcher:
        made = LLMatcher(self.native, grammar, log_level=0)
        if made.is_error():
            raise OptionError(f"{what} cannot be used: {' '.join(made.get_error().split())}")
        return made


def _text_of(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema)
    except RecursionError as error:
        raise OptionError("the JSON schema cannot be used: it is nested too deeply") from error


@lru_cache(maxsize=256)
def compiled(schema: str) -> str:
    """A schema as a grammar. Raises OptionError."""
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=OVERRIDES)
    except ValueError as error:
        raise OptionError(f"the JSON schema cannot be used: {' '.join(str(error).split())}") from error
