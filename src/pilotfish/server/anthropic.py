"""Anthropic's messages, and counting their tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from pilotfish.errors import OptionError
from pilotfish.runtime.request import Chat, Event, Stats
from pilotfish.runtime.service import Ask, Begun, Service, Whole
from pilotfish.server import failures, fields
from pilotfish.server.anthropic_messages import system_text, to_internal
from pilotfish.server.bodies import Wire, body_of, described
from pilotfish.server.efforts import thinking_of
from pilotfish.server.streams import beating, event, sse, unless_gone
from pilotfish.server.translate import (
    call_json,
    checked_tools,
    draft_statistics,
    new_id,
    number,
    paired,
    request_from,
    schema_of,
    with_choice,
)
from pilotfish.text.answer import Kind, Part
from pilotfish.text.template import Tool
from pilotfish.text.tools import ToolCall

router = APIRouter(prefix="/v1", tags=["anthropic"], responses=failures.documented(failures.anthropic))


CHOICES = {"auto": "auto", "none": "none", "any": "required", "tool": "function"}  # as OpenAI names them


class WireMessage(Wire):
    """One turn."""

    role: str
    content: str | list[dict[str, Any]]


class CountBody(Wire):
    """POST /v1/messages/count_tokens."""

    model: str
    messages: list[WireMessage]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


class MessagesBody(CountBody):
    """POST /v1/messages."""

    max_tokens: int
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    draft_num_predict: int | None = None


@router.post("/messages", openapi_extra=described(MessagesBody))
async def messages(
    request: Request, body: Annotated[MessagesBody, Depends(body_of(MessagesBody, fields.MESSAGES))]
) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    if body.max_tokens < 1:
        raise OptionError("max_tokens: must be at least 1")
    if body.temperature is not None and not 0 <= body.temperature <= 2:
        raise OptionError("temperature: must be between 0 and 1")
    options = request_from({
        "num_predict": body.max_tokens, "temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k,
        "stop": body.stop_sequences, "draft_num_predict": body.draft_num_predict,
    })  # fmt: skip
    form = schema_of((body.output_config or {}).get("format"))
    options = replace(options, format=form, thinking_budget=_budget(body))
    ask = Ask(body.model, await _chat(service, body), options)
    if not body.stream:
        return JSONResponse(_whole(body.model, await unless_gone(request, service.whole(ask))))
    begun, items = await service.begin(ask)  # errors before the first byte get a status of their own
    return sse(_frames(items, begun, body.model), lambda error: event(failures.anthropic(error)))


@router.post("/messages/count_tokens", openapi_extra=described(CountBody))
async def count_tokens(
    request: Request, body: Annotated[CountBody, Depends(body_of(CountBody, fields.COUNT))]
) -> Response:
    """How many tokens the same request would be read as."""
    service: Service = request.app.state.service
    ids, _ = await service.render(Ask(body.model, await _chat(service, body), request_from({})))
    return JSONResponse({"input_tokens": len(ids)})


async def _chat(service: Service, body: CountBody) -> Chat:
    if not body.messages:
        raise OptionError("messages: at least one message is required")
    tools = _tools(body.tools)
    choice = (body.tool_choice or {}).get("type", "auto")
    if choice not in CHOICES:
        raise OptionError(f"tool_choice.type is {choice!r}; it must be auto, any, tool or none")
    turns = [turn for m in body.messages for turn in to_internal(m.role, m.content)]
    system = system_text(body.system)
    if system:
        turns.insert(0, {"role": "system", "content": system})
    thinking = await _thinking(service, body)
    continues = turns[-1]["role"] == "assistant" and bool(turns[-1]["content"]) and not turns[-1].get("tool_calls")
    chat = Chat(paired(turns), tools, thinking, continues=continues)
    parallel = not (body.tool_choice or {}).get("disable_parallel_tool_use")
    return with_choice(chat, {**(body.tool_choice or {}), "type": CHOICES[choice]}, parallel)


async def _thinking(service: Service, body: CountBody) -> bool:
    """Off unless asked for; a model that cannot think is asked in vain, without an error."""
    asked = (body.thinking or {}).get("type")
    if asked not in (None, "enabled", "disabled", "adaptive"):
        raise OptionError(f"thinking.type is {asked!r}; it must be enabled, adaptive or disabled")
    effort = (body.output_config or {}).get("effort")
    wanted = asked in ("enabled", "adaptive") or (asked is None and effort not in (None, "none", "low"))
    return wanted and (await service.load(body.model)).engine.model.can_think


def _budget(body: CountBody) -> int | None:
    """Tokens to think: `thinking.budget_tokens`, else by `output_config.effort`."""
    asked = (body.thinking or {}).get("budget_tokens")
    if asked is not None:
        return int(number("thinking.budget_tokens", asked, int))
    return thinking_of((body.output_config or {}).get("effort"), "output_config.effort").budget


def _tools(tools: list[dict[str, Any]] | None) -> tuple[Tool, ...]:
    """Tools in OpenAI's form; those that the vendor's own servers would run are left out."""
    own = [t for t in tools or [] if "input_schema" in t or not isinstance(t.get("type"), str)]
    return checked_tools([
        {
            "type": "function",
            "function": {
                "name": t.get("name"), "description": t.get("description", ""), "parameters": t.get("input_schema"),
            },
        }
        for t in own
    ])  # fmt: skip


def _usage(stats: Stats) -> dict[str, Any]:
    return {
        "input_tokens": stats.prompt_tokens - stats.cached_tokens,
        "output_tokens": stats.delivered,
        "cache_read_input_tokens": stats.cached_tokens,
        "cache_creation_input_tokens": 0,
        "pilotfish": draft_statistics(stats),
    }


def _stop_reason(reason: str, stop_string: str | None, called: bool) -> str:
    if reason == "length":
        return "max_tokens"
    if stop_string is not None:
        return "stop_sequence"
    return "tool_use" if called else "end_turn"


def _whole(model: str, answer: Whole) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if answer.thinking:
        content.append({"type": "thinking", "thinking": answer.thinking, "signature": ""})
    if answer.text or not answer.calls:
        content.append({"type": "text", "text": answer.text})
    content += [_tool_use(c) | {"input": c.arguments} for c in answer.calls]
    return {
        "id": new_id("msg_"), "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": _stop_reason(answer.finish_reason, answer.stop_string, bool(answer.calls)),
        "stop_sequence": answer.stop_string, "usage": _usage(answer.stats),
    }  # fmt: skip


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": new_id("toolu_"), "name": call.name, "input": {}}


class _Blocks:
    """Content blocks of a stream: one open at a time, numbered in order."""

    def __init__(self) -> None:
        self.index, self.called = -1, False
        self._open: Kind | None = None

    def add(self, part: Part) -> list[dict[str, Any]]:
        """The events of a part."""
        out = [] if self._open == part.kind and part.call is None else self._begin(part)
        if part.kind == Kind.THINKING:
            delta = {"type": "thinking_delta", "thinking": part.text}
        elif part.call is not None:
            self.called = True
            delta = {"type": "input_json_delta", "partial_json": call_json(part.call)}
        else:
            delta = {"type": "text_delta", "text": part.text}
        return [*out, {"type": "content_block_delta", "index": self.index, "delta": delta}]

    def end(self) -> list[dict[str, Any]]:
        """The events that close what is open."""
        if self._open is None:
            return []
        out: list[dict[str, Any]] = []
        if self._open == Kind.THINKING:
            signature = {"type": "signature_delta", "signature": ""}
            out.append({"type": "content_block_delta", "index": self.index, "delta": signature})
        self._open = None
        return [*out, {"type": "content_block_stop", "index": self.index}]

    def _begin(self, part: Part) -> list[dict[str, Any]]:
        out = self.end()
        self.index, self._open = self.index + 1, part.kind
        block: dict[str, Any] = {"type": "text", "text": ""}
        if part.kind == Kind.THINKING:
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif part.call is not None:
            block = _tool_use(part.call)
        return [*out, {"type": "content_block_start", "index": self.index, "content_block": block}]


async def _frames(items: AsyncGenerator[Event], begun: Begun, model: str) -> AsyncGenerator[str]:
    usage = {"input_tokens": len(begun.prepared.prompt), "output_tokens": 0}
    message: dict[str, Any] = {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    yield event({"type": "message_start", "message": message})
    yield event({"type": "ping"})
    blocks = _Blocks()
    async with aclosing(beating(items)) as beats:
        async for item in beats:
            if item is None:
                yield event({"type": "ping"})
                continue
            for part in item.parts:
                for block_event in blocks.add(part):
                    yield event(block_event)
            if item.stats:
                if blocks.index < 0:
                    for block_event in blocks.add(Part(Kind.TEXT, "")):
                        yield event(block_event)
                for block_event in blocks.end():
                    yield event(block_event)
                delta = {"stop_reason": _stop_reason(item.finish_reason or "stop", item.stop_string, blocks.called),
                         "stop_sequence": item.stop_string}  # fmt: skip
                yield event({"type": "message_delta", "delta": delta, "usage": _usage(item.stats)})
    yield event({"type": "message_stop"})
