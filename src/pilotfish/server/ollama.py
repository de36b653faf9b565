"""Ollama's own routes that decode: /api/chat and /api/generate."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from time import monotonic
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from pilotfish.errors import OptionError
from pilotfish.runtime.request import Chat, Event, Stats
from pilotfish.runtime.request import Request as Options
from pilotfish.runtime.service import Ask, Begun, Service
from pilotfish.server import failures, fields
from pilotfish.server.bodies import Wire, body_of, described
from pilotfish.server.efforts import thinking_of
from pilotfish.server.fields import NO_IMAGES
from pilotfish.server.streams import ndjson, unless_gone
from pilotfish.server.translate import (
    OLLAMA_WINDOW,
    arguments_of,
    checked_tools,
    draft_statistics,
    logprob_entries,
    new_id,
    paired,
    request_from,
    seconds_of,
    timestamp,
    wanted_logprobs,
)
from pilotfish.text.answer import Kind, Part

router = APIRouter(prefix="/api", tags=["ollama"], responses=failures.documented(failures.native))

NANOSECONDS = 1_000_000_000


class WireMessage(Wire):
    """One message of a conversation."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Common(Wire):
    """Fields of both routes."""

    model: str | None = None
    stream: bool | None = None
    think: bool | str | None = None
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    template: str | None = None


class ChatBody(Common):
    """POST /api/chat."""

    messages: list[WireMessage] | None = None
    tools: list[dict[str, Any]] | None = None


class GenerateBody(Common):
    """POST /api/generate."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    context: list[int] | None = None
    debug_render_only: Annotated[bool | None, Field(alias="_debug_render_only")] = None


@router.post("/chat", openapi_extra=described(ChatBody))
async def chat(request: Request, body: Annotated[ChatBody, Depends(body_of(ChatBody, fields.CHAT))]) -> Response:
    """Answer a conversation; without messages, load or unload the model."""
    service: Service = request.app.state.service
    model, keep_alive = _common(body)
    if not body.messages:
        return await _load_only(service, model, keep_alive, {"message": {"role": "assistant", "content": ""}})
    messages = paired([_internal(m) for m in body.messages])
    continues = messages[-1]["role"] == "assistant" and bool(messages[-1]["content"])
    thinking = _thinking(body.think)
    conversation = Chat(
        messages, checked_tools(body.tools), thinking, template=_jinja(body.template), continues=continues
    )
    ask = Ask(model, conversation, _options(body), keep_alive, penalty_window=OLLAMA_WINDOW)
    return await _answer(
        request, ask, body.stream is not False, lambda kind, text: {"message": _message(kind, text)}, None
    )


@router.post("/generate", openapi_extra=described(GenerateBody))
async def generate(
    request: Request, body: Annotated[GenerateBody, Depends(body_of(GenerateBody, fields.GENERATE))]
) -> Response:
    """Answer one prompt, or continue it as it stands (`raw`); without a prompt, load or unload the model."""
    service: Service = request.app.state.service
    model, keep_alive = _common(body)
    if body.raw and (body.template or body.system or body.context):
        raise OptionError("raw mode does not support template, system, or context")
    if not body.prompt:
        return await _load_only(service, model, keep_alive, {"response": ""})
    request_options = _options(body)
    if body.raw:
        ask = Ask(model, body.prompt, request_options, keep_alive, penalty_window=OLLAMA_WINDOW)
    else:
        system = [{"role": "system", "content": body.system}] if body.system else []
        thinking = _thinking(body.think)
        turn = Chat(
            (*system, {"role": "user", "content": body.prompt}), (), thinking,
            template=_jinja(body.template),
        )  # fmt: skip
        ask = Ask(model, turn, request_options, keep_alive, before=tuple(body.context or ()),
                  penalty_window=OLLAMA_WINDOW)  # fmt: skip
    if body.debug_render_only:
        _, text = await service.render(ask)
        return JSONResponse({"model": model, "created_at": timestamp(), "_debug_info": {"rendered_template": text}})
    return await _answer(request, ask, body.stream is not False, _piece, None if body.raw else [])


Shape = Callable[[Kind, str], dict[str, Any]]
"""A part of an answer as the fields of a chunk."""


async def _answer(request: Request, ask: Ask, streamed: bool, shape: Shape, context: list[int] | None) -> Response:
    service: Service = request.app.state.service
    arrived = monotonic()
    if streamed:
        begun, items = await service.begin(ask)  # errors before the first byte get a status of their own
        return ndjson(_chunks(items, begun, ask.model, arrived, shape, context), failures.native)

    async def whole() -> dict[str, Any]:
        begun, items = await service.begin(ask)
        out: dict[str, Any] = {}
        async for chunk in _chunks(items, begun, ask.model, arrived, shape, context):
            out = _merged(out, chunk)
        return out

    return JSONResponse(await unless_gone(request, whole()))


async def _chunks(
    items: AsyncGenerator[Event], begun: Begun, model: str, arrived: float, shape: Shape, context: list[int] | None
) -> AsyncGenerator[dict[str, Any]]:
    def head() -> dict[str, Any]:
        return {"model": model, "created_at": timestamp()}

    said: list[int] = []
    logprobs: list[dict[str, Any]] = []
    calls = 0
    async with aclosing(items):
        async for item in items:
            said += item.tokens
            logprobs += logprob_entries(item.logprobs, begun.engine.model.backend_tokenizer)
            for part in item.parts:
                fields = shape(part.kind, part.text)
                if logprobs:  # of all tokens up to here, with the first part
                    fields["logprobs"], logprobs = logprobs, []
                if part.call is not None:
                    fields = _call_fields(fields, part, calls)
                    calls += 1
                yield {**head(), **fields, "done": False}
            if item.stats:
                last = {**head(), **shape(Kind.TEXT, ""), "done": True, "done_reason": item.finish_reason}
                if context is not None:
                    last["context"] = [*begun.prepared.prompt, *said[: item.stats.delivered]]
                if logprobs:
                    last["logprobs"] = logprobs
                yield {**last, **_metrics(begun, item.stats, monotonic() - arrived)}


def _piece(kind: Kind, text: str) -> dict[str, Any]:
    return {"response": "", "thinking": text} if kind == Kind.THINKING else {"response": text}


def _message(kind: Kind, text: str) -> dict[str, Any]:
    if kind == Kind.THINKING:
        return {"role": "assistant", "content": "", "thinking": text}
    return {"role": "assistant", "content": text}


def _call_fields(fields: dict[str, Any], part: Part, index: int) -> dict[str, Any]:
    assert part.call is not None
    call = {
        "id": new_id("call_"),
        "function": {"index": index, "name": part.call.name, "arguments": part.call.arguments},
    }
    if "message" not in fields:
        return fields | {"tool_calls": [call]}
    return {"message": fields["message"] | {"tool_calls": [call]}}


def _merged(whole: dict[str, Any], chunk: dict[str, Any]) -> dict[str, Any]:
    """Chunks as one object: texts joined, calls collected, the rest from the last one."""
    out = {**whole, **chunk}
    if "message" in chunk:
        out["message"] = _merged(whole.get("message", {}), chunk["message"])
    for name in ("content", "thinking", "response"):
        if isinstance(whole.get(name), str):
            out[name] = whole[name] + chunk.get(name, "")
    if whole.get("logprobs"):
        out["logprobs"] = [*whole["logprobs"], *chunk.get("logprobs", [])]
    if whole.get("tool_calls"):
        out["tool_calls"] = [*whole["tool_calls"], *chunk.get("tool_calls", [])]
    return out


def _metrics(begun: Begun, stats: Stats, seconds: float) -> dict[str, Any]:
    return {
        "total_duration": int(seconds * NANOSECONDS),
        "load_duration": int(begun.load_seconds * NANOSECONDS),
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": int(stats.prefill_seconds * NANOSECONDS),
        "eval_count": stats.delivered,
        "eval_duration": int(stats.decode_seconds * NANOSECONDS),
        "pilotfish": draft_statistics(stats),
    }


async def _load_only(service: Service, model: str, keep_alive: float | None, empty: dict[str, Any]) -> Response:
    service.library.get(model)
    if keep_alive == 0:
        await service.unload(model)
    else:
        await service.load(model, keep_alive)
    reason = "unload" if keep_alive == 0 else "load"
    return JSONResponse({"model": model, "created_at": timestamp(), **empty, "done": True, "done_reason": reason})


def _common(body: Common) -> tuple[str, float | None]:
    """Model and seconds to keep it, after refusing what is not supported yet."""
    if not body.model:
        raise OptionError("model is required")
    return body.model, seconds_of(body.keep_alive)


def _options(body: Common) -> Options:
    """The request's options. Raises OptionError."""
    asked = wanted_logprobs(body.logprobs, body.top_logprobs)
    _, budget = thinking_of(body.think, "think")
    return replace(request_from(body.options or {}), logprobs=asked, format=body.format or None, thinking_budget=budget)


def _thinking(think: bool | str | None) -> bool | None:
    """Left open, a model that can think does; a level insists as `true` does."""
    wanted = thinking_of(think, "think").wanted
    return True if isinstance(think, str) and wanted is None else wanted


def _jinja(template: str | None) -> str:
    """A template that replaces the model's. Raises OptionError for Go's syntax."""
    if template and "{%" not in template and "messages" not in template:
        raise OptionError("template must be jinja, over `messages`; Ollama's Go templates are not supported")
    return template or ""


def _internal(message: WireMessage) -> dict[str, Any]:
    if message.images:
        raise OptionError(NO_IMAGES)
    role = message.role.lower()
    out: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": message.content or ""}
    if message.thinking:
        out["reasoning_content"] = message.thinking
    if message.tool_calls:
        out["tool_calls"] = [_call(c) for c in message.tool_calls]
    if message.tool_name:
        out["name"] = message.tool_name
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    return out


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise OptionError("a tool call needs a function with a name")
    out = {
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments_of(function.get("arguments"))},
    }
    return {"id": call["id"], **out} if call.get("id") else out
