"""Items of a response's input as the messages that templates read."""

from __future__ import annotations

import logging
from typing import Any

from pilotfish.errors import OptionError
from pilotfish.server.translate import call_message, content_text, paired
from pilotfish.text.template import Message

log = logging.getLogger("pilotfish")


def to_messages(items: str | list[dict[str, Any]], instructions: str | None) -> tuple[Message, ...]:
    """Items in order; reasoning goes to the turn after it, neighbouring calls to one turn. Raises OptionError."""
    out: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    thinking = ""
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "reasoning":
            thinking += _reasoning(item)
            continue
        if kind == "message":
            role = "system" if item.get("role") == "developer" else str(item.get("role"))
            message: dict[str, Any] = {"role": role, "content": _content(item.get("content"))}
            _append(out, message)
        elif kind == "function_call":
            call = call_message(str(item.get("name", "")), item.get("arguments"), item.get("call_id"))
            _assistant(out).setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            out.append({"role": "tool", "content": _content(item.get("output")), "tool_call_id": item.get("call_id")})
            continue
        else:
            log.warning("an input item of type %r is left out", kind)
            continue
        if thinking and out[-1]["role"] == "assistant":
            out[-1]["reasoning_content"] = thinking
            thinking = ""
    return paired(out)


def to_tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Functions in chat completions' form; namespaces are flattened, tools that others would run left out."""
    out = []
    for tool in tools or []:
        if tool.get("type") == "namespace":
            inner = [{**t, "name": f"{tool.get('name')}.{t.get('name')}"} for t in tool.get("tools") or []]
            out += to_tools(inner)
        elif tool.get("type") == "function":
            function = tool.get("function") or {k: tool.get(k) for k in ("name", "description", "parameters")}
            out.append({"type": "function", "function": {k: v for k, v in function.items() if v is not None}})
        else:
            log.warning("a tool of type %r is left out", tool.get("type"))
    return out


def _append(out: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """A message after a call and before its result belongs to the same turn of the assistant."""
    if message["role"] == "assistant" and out and out[-1]["role"] == "assistant":
        out[-1]["content"] += message["content"]
    else:
        out.append(message)


def _assistant(out: list[dict[str, Any]]) -> dict[str, Any]:
    if not out or out[-1]["role"] != "assistant":
        out.append({"role": "assistant", "content": ""})
    return out[-1]


def _content(content: Any) -> str:
    if isinstance(content, list) and any(p.get("type") == "input_file" for p in content if isinstance(p, dict)):
        raise OptionError("input_file is not supported; put the file's text into the message")
    return content_text(content)


def _reasoning(item: dict[str, Any]) -> str:
    summary = "".join(str(p.get("text", "")) for p in item.get("summary") or [])
    return str(item.get("encrypted_content") or summary)
