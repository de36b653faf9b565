"""Anthropic's turns, made of content blocks, as the messages that templates read."""

from __future__ import annotations

from typing import Any

from pilotfish.errors import CapabilityError, OptionError
from pilotfish.server.fields import NO_IMAGES
from pilotfish.server.translate import call_message

# Claude Code's first system block changes with every request; read as text it would spoil every kept prefix.
BILLING = "x-anthropic-billing-header:"


def system_text(system: str | list[dict[str, Any]] | None) -> str:
    """The system prompt as one text, without billing lines."""
    if system is None:
        return ""
    texts = [system] if isinstance(system, str) else [_text(b) for b in system if b.get("type", "text") == "text"]
    lines = [line for text in texts for line in text.split("\n") if not line.startswith(BILLING)]
    return "\n".join(lines).strip("\n") if isinstance(system, list) else "\n".join(lines)


def to_internal(role: str, content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One turn as messages: tool results first, then what else the user says. Raises OptionError."""
    if role not in ("user", "assistant", "system"):
        raise OptionError(f"messages: role is {role!r}; it must be user or assistant")
    if role == "system":  # a note in mid-conversation, where templates have no such turn
        role = "user"
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if role == "assistant":
        return [_assistant(blocks)]
    results = [_result(b) for b in blocks if b.get("type") == "tool_result"]
    text = "".join(_block_text(b) for b in blocks if b.get("type") != "tool_result")
    return [*results, *([{"role": "user", "content": text}] if text or not results else [])]


def _assistant(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {"role": "assistant", "content": "".join(_block_text(b) for b in blocks)}
    thinking = "".join(str(b.get("thinking", "")) for b in blocks if b.get("type") == "thinking")
    if thinking:
        out["reasoning_content"] = thinking
    calls = [b for b in blocks if b.get("type") == "tool_use"]
    if calls:
        out["tool_calls"] = [call_message(str(b.get("name", "")), b.get("input"), b.get("id")) for b in calls]
    return out


def _result(block: dict[str, Any]) -> dict[str, Any]:
    content = block.get("content") or ""
    text = content if isinstance(content, str) else "".join(_block_text(b) for b in content)
    prefix = "Error: " if block.get("is_error") else ""
    return {"role": "tool", "content": prefix + text, "tool_call_id": block.get("tool_use_id")}


def _block_text(block: dict[str, Any]) -> str:
    """The text of a block; blocks of other kinds have none. Raises CapabilityError for images and files."""
    kind = block.get("type")
    if kind == "image":
        raise CapabilityError(NO_IMAGES)
    if kind == "document":
        source = block.get("source") or {}
        if source.get("type") != "text":
            raise CapabilityError("only documents with their text in the request are supported")
        return str(source.get("data", ""))
    return _text(block) if kind == "text" else ""


def _text(block: dict[str, Any]) -> str:
    text = block.get("text", "")
    if not isinstance(text, str):
        raise OptionError("a text block needs a text")
    return text
