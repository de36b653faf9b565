"""Prompts as token ids: chat messages through the checkpoint's own template, or text as it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pilotfish.errors import OptionError

Message = Mapping[str, Any]
Tool = Mapping[str, Any]
"""A function as OpenAI's APIs describe it: {"type": "function", "function": {"name", "description", "parameters"}}."""


def chat_text(
    tokenizer: Any, messages: Sequence[Message], tools: Sequence[Tool] = (), thinking: bool = False, template: str = "",
    continues: bool = False, extra: Mapping[str, Any] | None = None,
) -> str:  # fmt: skip
    """`messages` as the model reads them, ready for its answer. `tokenizer` is mlx-lm's wrapper.

    thinking: asked of templates that know it. template: jinja, in place of the checkpoint's. continues: the last
    message is the beginning of the answer. extra: further variables for the template.
    Raises OptionError if the checkpoint has no template or the template refuses the messages.
    """
    if not (template or tokenizer.has_chat_template):
        raise OptionError(
            "this checkpoint has no chat template; continue plain text instead (--raw, or a str in Python)"
        )
    for message in messages:
        if not isinstance(message.get("role"), str) or message.get("content") is None:
            raise OptionError(f"a message needs a role and content, got {dict(message)!r}")
    options: dict[str, Any] = {"chat_template": template} if template else {}
    options |= {"continue_final_message": True} if continues else {"add_generation_prompt": True}
    try:
        # Thinking is off unless it is asked for: a vocabulary with thinking marks is not a wish.
        text: str = tokenizer.apply_chat_template(
            [dict(m) for m in messages], tokenize=False, tools=list(tools) or None, enable_thinking=thinking,
            **options, **(extra or {}),
        )  # fmt: skip
    except Exception as error:  # templates raise whatever their jinja code raises
        raise OptionError(f"the chat template refuses these messages: {error}") from error
    return text


def chat_ids(tokenizer: Any, text: str) -> list[int]:
    """Token ids of what `chat_text` gave."""
    return without_double_bos(tokenizer.encode(text, add_special_tokens=False), tokenizer.bos_token_id)


def longest_token(tokenizer: Any) -> int:
    """Characters of the longest token: a text of n characters has at least n / longest tokens."""
    return max(map(len, tokenizer.backend_tokenizer.get_vocab()))


def raw_ids(tokenizer: Any, text: str, needs_bos: bool) -> list[int]:
    """Token ids of `text`; begins with exactly one BOS where the model needs one."""
    ids = without_double_bos(tokenizer.encode(text), tokenizer.bos_token_id)
    if needs_bos and tokenizer.bos_token_id is not None and ids[:1] != [tokenizer.bos_token_id]:
        ids = [tokenizer.bos_token_id, *ids]
    return ids


def without_double_bos(ids: list[int], bos: int | None) -> list[int]:
    """One BOS where the tokenizer added one to a text that already began with it."""
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids
