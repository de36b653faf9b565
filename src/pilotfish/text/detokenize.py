"""Streamed text that is whole UTF-8 at every step, whatever bytes the tokens split."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

CONTEXT = 4  # tokens of context that decide how the next one is spelled (a leading space, say)


class Detokenizer:
    """Turns token ids into text one by one; text comes out once its last character is complete.

    `prompt` gives the first tokens their context and is not part of the text. Special tokens have no text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._context = list(prompt)[-CONTEXT:]
        self._stream = DecodeStream(ids=self._context, skip_special_tokens=True)
        self._pending: list[int] = []

    def add(self, token: int) -> str:
        """The text that `token` completes; empty while a character is still incomplete."""
        self._pending.append(token)
        text: str | None = self._stream.step(self._tokenizer, token)
        if text is None:
            return ""
        self._context = (self._context + self._pending)[-CONTEXT:]
        self._pending.clear()
        return text

    def cut(self) -> str:
        """What `finish` gives, before text of another kind goes on."""
        text = self.finish()
        self._stream = DecodeStream(ids=self._context, skip_special_tokens=True)
        return text

    def finish(self) -> str:
        """Text of bytes that never became a character, as U+FFFD."""
        before = self._tokenizer.decode(self._context, skip_special_tokens=True)
        whole = self._tokenizer.decode(self._context + self._pending, skip_special_tokens=True)
        self._pending.clear()
        return whole[len(before) :]
