"""An answer's tokens as its parts: text, thinking, tool calls.

Gemma 4 marks parts with tokens of their own, so an answer is taken apart token by token: how tokens fall into rounds
makes no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from pilotfish.text.detokenize import Detokenizer
from pilotfish.text.stops import StopStrings
from pilotfish.text.tools import QUOTE, ToolCall, parse_call


class Kind(StrEnum):
    """What a part of an answer is."""

    TEXT = "text"
    THINKING = "thinking"
    CALL = "call"


class Part(NamedTuple):
    """A piece of an answer; a call comes whole."""

    kind: Kind
    text: str
    call: ToolCall | None = None


class Markers(NamedTuple):
    """Ids of the tokens that mark parts; None where a vocabulary has no such token."""

    turn: int | None
    channel: int | None
    channel_end: int | None
    call: int | None
    call_end: int | None

    @classmethod
    def of(cls, tokenizer: Any) -> Markers:
        """Those of a `tokenizers.Tokenizer`."""
        return cls(*map(tokenizer.token_to_id, ("<|turn>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>")))


class Answer:
    """Takes an answer's tokens, gives its parts. Stop strings act on text, not on thinking or calls."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stops: Sequence[str], eos: frozenset[int]) -> None:
        self._tokenizer, self._eos = tokenizer, eos
        self._markers = Markers.of(tokenizer)
        self._detokenizer = Detokenizer(tokenizer, prompt)
        self._stops = StopStrings(stops)
        self._kind = Kind.THINKING if is_open(prompt, self._markers) else Kind.TEXT
        self._header = ""  # the name of a channel, until its line ends
        self._in_header = False
        self._call: list[int] = []
        self.thinking_tokens = 0

    @property
    def stopped(self) -> bool:
        """A stop string is complete."""
        return self._stops.stopped

    @property
    def stop_string(self) -> str | None:
        """Which one."""
        return self._stops.found

    def add(self, token: int) -> list[Part]:
        """What `token` completes."""
        marks = self._markers
        if token in self._eos:
            return []
        self.thinking_tokens += self._kind == Kind.THINKING or token == marks.channel
        if self._kind == Kind.CALL:
            if token != marks.call_end:
                self._call.append(token)
                return []
            return self._end_call()
        text = self._detokenizer.add(token)
        parts = self._in_kind(text)
        if token in (marks.channel, marks.channel_end, marks.call):
            parts += self._in_kind(self._detokenizer.cut())
        if token in (marks.channel, marks.call):
            parts += self._held()
        if token == marks.channel:
            self._kind, self._in_header, self._header = Kind.THINKING, True, ""
        elif token == marks.channel_end:
            self._kind, self._in_header = Kind.TEXT, False
        elif token == marks.call:
            self._kind = Kind.CALL
        return parts

    def finish(self) -> list[Part]:
        """What was held back: a call that never ended, the start of a stop string, bytes that are no character."""
        if self.stopped:
            return []
        if self._kind == Kind.CALL:
            return self._end_call()
        parts = self._in_kind(self._detokenizer.finish())
        return parts if self.stopped else parts + self._held()

    def _in_kind(self, text: str) -> list[Part]:
        if self._in_header:
            self._header += text
            _, end, text = self._header.partition("\n")
            self._in_header = not end
        if self._kind == Kind.TEXT:
            text = self._stops.add(text)
        return [Part(self._kind, text)] if text else []

    def _held(self) -> list[Part]:
        held = self._stops.finish()
        return [Part(Kind.TEXT, held)] if held else []

    def _end_call(self) -> list[Part]:
        """A call, or its text where it is none: nothing is lost."""
        ids, self._call, self._kind = self._call, [], Kind.TEXT
        call = parse_call(self._tokenizer.decode(ids, skip_special_tokens=False))
        if call is not None:
            return [Part(Kind.CALL, "", call)]
        ids = [i for i in ids if i not in self._markers]
        text = self._tokenizer.decode(ids, skip_special_tokens=False).replace(QUOTE, '"')
        text = self._stops.add(text)
        return [Part(Kind.TEXT, text)] if text else []


def is_open(prompt: Sequence[int], markers: Markers) -> bool:
    """Whether a prompt ends inside an open channel; some templates open it themselves after a tool's result."""
    for token in reversed(prompt):
        if token in (markers.channel_end, markers.turn):
            return False
        if token == markers.channel:
            return True
    return False
