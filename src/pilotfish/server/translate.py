"""What all dialects say in the same way: messages, tool calls, options, and what draft statistics look like."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pilotfish.config import parse_duration
from pilotfish.engine.logprobs import MOST, TokenLogprob
from pilotfish.errors import CapabilityError, OptionError
from pilotfish.runtime.request import AUTO, REQUIRED, Chat, Request, Stats
from pilotfish.server.fields import NO_IMAGES, OPTIONS, check
from pilotfish.text.template import Message, Tool
from pilotfish.text.tools import ToolCall

PENALTIES = {
    "repeat_penalty": "repetition_penalty", "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
}  # fmt: skip
OLLAMA_WINDOW = 64  # tokens that its penalties look at


def number(name: str, value: Any, kind: type = float) -> Any:
    """A number; integers may be written 4.0. Raises OptionError naming the option."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise OptionError(f"option {name!r} must be {'a whole number' if kind is int else 'a number'}, got {value!r}")
    if kind is int and value != int(value):
        raise OptionError(f"option {name!r} must be a whole number, got {value!r}")
    return kind(value)


def stops(value: Any) -> tuple[str, ...]:
    """Stop strings, given as one or a list. Raises OptionError."""
    if value is None:
        return ()
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(s, str) for s in listed):
        raise OptionError(f"stop must be a string or a list of strings, got {value!r}")
    return tuple(s for s in listed if s)


def request_from(options: Mapping[str, Any]) -> Request:
    """A request from options by Ollama's names; null is absent. Raises OptionError."""
    fields: dict[str, Any] = {}
    check(OPTIONS, options, "option")
    for name, value in options.items():
        if value is None:
            continue
        if name in ("temperature", "top_p", "min_p"):
            fields[name] = number(name, value)
        elif name == "top_k":
            fields[name] = max(0, number(name, value, int))
        elif name == "seed":
            seed = number(name, value, int)
            if seed >= 0:
                fields["seed"] = seed
        elif name == "num_predict":
            limit = number(name, value, int)
            if limit > 0:
                fields["max_tokens"] = limit
        elif name == "num_ctx":
            context = number(name, value, int)
            if context > 0:
                fields["context"] = context
        elif name == "stop":
            fields["stop"] = stops(value)
        elif name == "draft_num_predict":
            fields |= draft_depth(value)
        elif name in PENALTIES:
            fields[PENALTIES[name]] = number(name, value)
        elif name in ("repeat_last_n", "min_tokens"):
            fields[name] = number(name, value, int)
        elif name == "ignore_eos":
            fields[name] = bool(value)
    return Request(**fields)


def seconds_of(keep_alive: float | str | None) -> float | None:
    """How long a model is to stay in memory; None where nothing is said. Raises OptionError."""
    try:
        return None if keep_alive is None else parse_duration(keep_alive)
    except ValueError as error:
        raise OptionError(f"keep_alive: {error}") from error


def bias_from(value: Mapping[str, float] | None) -> dict[int, float]:
    """A logit bias by token id. Raises OptionError for keys that are no ids."""
    try:
        return {int(k): float(v) for k, v in (value or {}).items()}
    except ValueError as error:
        raise OptionError(f"logit_bias must map token ids to numbers: {error}") from error


def schema_of(form: Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    """A `response_format` as a request's format: None for text. Raises OptionError.

    Takes OpenAI's {"type": "json_schema", "json_schema": {"schema": ...}} and the flat {"type": ..., "schema": ...}.
    """
    kind = (form or {}).get("type", "text")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return "json"
    if kind != "json_schema":
        raise OptionError(f"response_format.type is {kind!r}; it must be text, json_object or json_schema")
    nested = form.get("json_schema")
    schema = (nested if isinstance(nested, dict) else form).get("schema")
    if not isinstance(schema, dict):
        raise OptionError("response_format needs a JSON schema: json_schema.schema must be an object")
    return schema


def wanted_logprobs(asked: bool | None, top: int | None) -> int | None:
    """How many alternatives, or None where no log probabilities are asked for. Raises OptionError."""
    if top is not None and not 0 <= top <= MOST:
        raise OptionError(f"top_logprobs must be between 0 and {MOST}")
    if top and not asked:
        raise OptionError("top_logprobs needs logprobs to be true")
    return (top or 0) if asked else None


def logprob_entries(found: Sequence[TokenLogprob], tokenizer: Any) -> list[dict[str, Any]]:
    """Tokens with their log probabilities, as Ollama's and OpenAI's clients read them. `tokenizer`: tokenizers'."""

    def entry(token: int, value: float) -> dict[str, Any]:
        text = tokenizer.decode([token], skip_special_tokens=False)
        return {"token": text, "logprob": value, "bytes": list(text.encode())}

    return [{**entry(p.token, p.logprob), "top_logprobs": [entry(t, v) for t, v in p.top]} for p in found]


def draft_depth(value: Any) -> dict[str, Any]:
    """Fields for a most number of drafts a round: 0 is plain decoding, negative leaves it open."""
    most = number("draft_num_predict", value, int)
    if most < 0:
        return {}
    return {"depth": 0} if most == 0 else {"depth": AUTO, "max_depth": most}


def content_text(content: Any) -> str:
    """A message's content as text: a string, or parts that are joined. Raises CapabilityError for images."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type")
        if kind in ("image_url", "image", "input_image", "input_audio", "audio", "video", "video_url"):
            raise CapabilityError(NO_IMAGES if "image" in kind else f"this model does not support {kind} content")
        if isinstance(part.get("text"), str):
            texts.append(part["text"])
    return "".join(texts)


def arguments_of(value: Any) -> dict[str, Any]:
    """A call's arguments as an object; a JSON string is read. Raises OptionError."""
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except json.JSONDecodeError as error:
            raise OptionError(f"arguments of a tool call are not valid JSON: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise OptionError(f"arguments of a tool call must be an object, got {type(value).__name__}")
    return value


def call_message(name: str, arguments: Any, call_id: str | None) -> dict[str, Any]:
    """One entry of a message's `tool_calls`, as templates read it."""
    call: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments_of(arguments)}}
    return {"id": call_id, **call} if call_id else call


def paired(messages: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
    """Messages with the name of its call in every tool result: by id, else by name, else by order."""
    open_calls: list[tuple[str | None, str]] = []
    out: list[Message] = []
    for message in messages:
        if message.get("tool_calls"):
            open_calls += [(c.get("id"), c["function"]["name"]) for c in message["tool_calls"]]
        if message["role"] == "tool":
            message = dict(message)
            found = _matching(open_calls, message.get("tool_call_id"), message.get("name"))
            if found is not None:
                open_calls.remove(found)
                message["name"] = found[1]
        out.append(message)
    return tuple(out)


def _matching(calls: list[tuple[str | None, str]], call_id: Any, name: Any) -> tuple[str | None, str] | None:
    for key, index in ((call_id, 0), (name, 1)):
        if key:
            # The last one of an id or name, as an agent that repeats ids means its newest call.
            return next((c for c in reversed(calls) if c[index] == key), None)
    return calls[0] if calls else None


def checked_tools(tools: Sequence[Any] | None) -> tuple[Tool, ...]:
    """Tools in OpenAI's form; one without parameters takes none, which templates want to be said.

    Raises OptionError for one without a name or with a schema that is no object.
    """
    out = []
    for tool in tools or ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise OptionError("a tool needs a function with a name")
        if not isinstance(function.get("parameters") or {}, dict):
            raise OptionError(f"parameters of tool {function['name']!r} must be a JSON schema object")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        out.append({**tool, "function": {**function, "parameters": parameters}})
    return tuple(out)


def with_choice(chat: Chat, choice: Any, parallel: bool | None) -> Chat:
    """A conversation with `tool_choice` and `parallel_tool_calls` of OpenAI's dialects. Raises OptionError.

    choice: "auto", "none", "required", {"type": "function", "function": {"name": ...}} or the flat form of it, or
    {"type": "allowed_tools", "mode": ..., "tools": [...]}.
    """
    chat = replace(chat, one_call=parallel is False)
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if kind in (None, AUTO):
        return chat
    if kind == "none":
        return replace(chat, tools=())
    if kind == REQUIRED:
        return replace(chat, choice=REQUIRED)
    if kind == "function":
        return replace(chat, choice=_named(choice))
    if kind == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        names = [_named(t) for t in allowed.get("tools") or []]
        tools = tuple(t for t in chat.tools if t["function"]["name"] in names)
        return with_choice(replace(chat, tools=tools), allowed.get("mode"), parallel)
    raise OptionError(f"tool_choice is {choice!r}; it must be auto, none, required or a function by name")


def _named(choice: Mapping[str, Any]) -> str:
    function = choice.get("function")
    name = (function if isinstance(function, Mapping) else choice).get("name")
    if not isinstance(name, str) or not name:
        raise OptionError("tool_choice needs the name of a function")
    return name


def new_id(prefix: str) -> str:
    """An id that no other answer has."""
    return prefix + uuid.uuid4().hex[:24]


def call_json(call: ToolCall) -> str:
    """A call's arguments as JSON."""
    return json.dumps(call.arguments, ensure_ascii=False)


def timestamp() -> str:
    """Now, RFC 3339 in UTC with six digits."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def draft_statistics(stats: Stats) -> dict[str, Any]:
    """What drafting did for an answer."""
    return {
        "mtp": stats.drafted > 0,
        "rounds": stats.rounds,
        "draft_tokens": stats.drafted,
        "accepted": stats.accepted,
        "looked_up": stats.looked_up,
        "accepted_by_position": list(stats.accepted_at),
        "cached_prompt_tokens": stats.cached_tokens,
        "no_drafting": stats.no_drafting,
    }
