"""Gemma 4's tool calls: call:NAME{key:VALUE,...}, which is not JSON.

Strings stand between <|"|> marks and hold any character; keys and other values are bare.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

QUOTE = '<|"|>'
NAME = r"[\w.:/-]+"
_HEAD = re.compile(rf"\s*call:\s*({NAME})\s*")
_BARE = re.compile(r"[^,{}\[\]]*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
DEEPEST = 64  # values inside values; more is not a call but a model gone astray


class ToolCall(NamedTuple):
    """A function that the model wants called."""

    name: str
    arguments: dict[str, Any]


def parse_call(text: str) -> ToolCall | None:
    """The call that `text` (what stands between the marks of a call) is, or None where it is none."""
    head = _HEAD.match(text)
    if head is None:
        return None
    try:
        reader = _Reader(text, head.end())
        arguments = reader.value(0)
        reader.end()
    except _MalformedError:
        return None
    return ToolCall(head.group(1), arguments) if isinstance(arguments, dict) else None


class _MalformedError(Exception):
    """The text is no call."""


class _Reader:
    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, at

    def value(self, depth: int) -> Any:
        """What begins here."""
        if depth > DEEPEST:
            raise _MalformedError
        self._space()
        if self.text.startswith("{", self.at):
            return self._object(depth)
        if self.text.startswith("[", self.at):
            return self._array(depth)
        for quote in (QUOTE, '"'):  # models write a plain quote now and then
            if self.text.startswith(quote, self.at):
                return self._string(quote)
        bare = self._match(_BARE).strip()
        if not bare:
            raise _MalformedError
        if bare in _WORDS:
            return _WORDS[bare]
        number = _NUMBER.fullmatch(bare)
        if number is None:
            return bare
        return float(bare) if number.group(1) or number.group(2) else int(bare)

    def end(self) -> None:
        """Nothing but blanks is left."""
        self._space()
        if self.at != len(self.text):
            raise _MalformedError

    def _object(self, depth: int) -> dict[str, Any]:
        self._take("{")
        out: dict[str, Any] = {}
        while not self._took("}"):
            if out:
                self._take(",")
                if self._took("}"):
                    break
            self._space()
            quote = next((q for q in (QUOTE, '"') if self.text.startswith(q, self.at)), None)
            key = self._string(quote) if quote else self._match(re.compile(r"[^:,{}\[\]]+")).strip()
            self._take(":")
            out[key] = self.value(depth + 1)
        return out

    def _array(self, depth: int) -> list[Any]:
        self._take("[")
        out: list[Any] = []
        while not self._took("]"):
            if out:
                self._take(",")
                if self._took("]"):
                    break
            out.append(self.value(depth + 1))
        return out

    def _string(self, quote: str) -> str:
        start = self.at + len(quote)
        end = self.text.find(quote, start)
        if end < 0:
            raise _MalformedError
        self.at = end + len(quote)
        return self.text[start:end]

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise _MalformedError
        self.at = found.end()
        return found.group()

    def _space(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def _took(self, mark: str) -> bool:
        self._space()
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def _take(self, mark: str) -> None:
        if not self._took(mark):
            raise _MalformedError
