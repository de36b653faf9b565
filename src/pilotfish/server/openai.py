"""OpenAI's chat completions and completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from pilotfish.engine.logprobs import TokenLogprob
from pilotfish.errors import OptionError
from pilotfish.runtime.request import Chat, Event, Stats
from pilotfish.runtime.request import Request as Options
from pilotfish.runtime.service import Ask, Begun, Service, Whole
from pilotfish.server import failures
from pilotfish.server.bodies import Wire, body_of, described
from pilotfish.server.efforts import thinking_of
from pilotfish.server.streams import beating, data, sse, unless_gone
from pilotfish.server.translate import (
    bias_from,
    call_json,
    call_message,
    checked_tools,
    content_text,
    draft_statistics,
    logprob_entries,
    new_id,
    paired,
    refuse,
    request_from,
    schema_of,
    wanted_logprobs,
    with_choice,
)
from pilotfish.text.answer import Kind, Part
from pilotfish.text.tools import ToolCall

router = APIRouter(prefix="/v1", tags=["openai"], responses=failures.documented(failures.openai))


class StreamOptions(Wire):
    """What a stream ends with."""

    include_usage: bool | None = None


class Sampling(Wire):
    """Fields that completions of both kinds take."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    draft_num_predict: int | None = None
    options: dict[str, Any] | None = None


class Reasoning(Wire):
    """How much to think."""

    effort: str | None = None


class ChatMessage(Wire):
    """One message of a conversation."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class ChatCompletion(Sampling):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Completion(Sampling):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int]
    suffix: str | None = None
    logprobs: int | None = None
    echo: bool | None = None


@router.post("/chat/completions", openapi_extra=described(ChatCompletion))
async def chat_completions(
    request: Request, body: Annotated[ChatCompletion, Depends(body_of(ChatCompletion))]
) -> Response:
    """Answer a conversation."""
    if not body.messages:
        raise OptionError("[] is too short - 'messages'")
    form = schema_of(body.response_format)
    messages = paired([_internal(m) for m in body.messages])
    extra = dict(body.chat_template_kwargs or {})
    effort = body.reasoning_effort or (body.reasoning.effort if body.reasoning else None)
    thinking, budget = thinking_of(effort, "reasoning effort")
    if isinstance(extra.get("enable_thinking"), bool):
        thinking = extra.pop("enable_thinking") or False
    continues = messages[-1]["role"] == "assistant" and bool(messages[-1]["content"])
    chat = Chat(messages, checked_tools(body.tools), thinking, continues=continues, extra=extra)
    chat = with_choice(chat, body.tool_choice, body.parallel_tool_calls)
    asked = wanted_logprobs(body.logprobs, body.top_logprobs)
    options = replace(options_of(body, body.max_completion_tokens), logprobs=asked, format=form, thinking_budget=budget)
    ask = Ask(body.model, chat, options)
    return await _answer(request, ask, body, _ChatShape(body.model))


@router.post("/completions", openapi_extra=described(Completion))
async def completions(request: Request, body: Annotated[Completion, Depends(body_of(Completion))]) -> Response:
    """Answer one prompt, as the only turn of a conversation; without a chat template, continue it."""
    refuse(suffix=body.suffix, echo=body.echo)
    prompt: Any = body.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        if len(prompt) > 1:
            raise OptionError("prompt holds several texts; send them one by one")
        prompt = prompt[0]
    if not prompt:
        raise OptionError("prompt is empty")
    service: Service = request.app.state.service
    resident = await service.load(body.model)
    if isinstance(prompt, str) and (resident.engine.model.template or resident.manifest.template):
        prompt = Chat(({"role": "user", "content": prompt},), thinking=False)
    asked = None if body.logprobs is None else wanted_logprobs(True, body.logprobs)
    ask = Ask(body.model, prompt, replace(options_of(body, None), logprobs=asked))
    return await _answer(request, ask, body, _TextShape(body.model))


def options_of(body: Sampling, max_completion_tokens: int | None) -> Options:
    """The request's options. Raises OptionError."""
    if body.n is not None and body.n != 1:
        raise OptionError("n must be 1")
    limit = max_completion_tokens if body.max_tokens is None else body.max_tokens
    if limit is not None and limit < 1:
        raise OptionError(f"max_tokens is {limit}; it must be at least 1")
    named = {
        "num_predict": limit, "temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k,
        "min_p": body.min_p, "seed": body.seed, "stop": body.stop, "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty, "repetition_penalty": body.repetition_penalty,
        "draft_num_predict": body.draft_num_predict, "min_tokens": body.min_tokens, "ignore_eos": body.ignore_eos,
    }  # fmt: skip
    found = request_from({**(body.options or {}), **{k: v for k, v in named.items() if v is not None}})
    return replace(found, logit_bias=bias_from(body.logit_bias))


class _ChatShape:
    """An answer as chat completion objects."""

    def __init__(self, model: str) -> None:
        self._head = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": model,
                      "system_fingerprint": "fp_pilotfish"}  # fmt: skip
        self._calls = 0

    def chunk(
        self, delta: dict[str, Any], reason: str | None = None, logprobs: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        """One chunk of a stream."""
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": reason}
        if logprobs:
            choice["logprobs"] = {"content": logprobs, "refusal": None}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def first(self) -> dict[str, Any] | None:
        """What a stream begins with."""
        return self.chunk({"role": "assistant", "content": ""})

    def part(self, part: Part, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        """A part of the answer."""
        if part.kind == Kind.THINKING:
            return self.chunk({"reasoning": part.text, "reasoning_content": part.text}, logprobs=logprobs)
        if part.call is None:
            return self.chunk({"content": part.text}, logprobs=logprobs)
        self._calls += 1
        return self.chunk({"tool_calls": [{"index": self._calls - 1, **_call(part.call)}]}, logprobs=logprobs)

    def last(self, reason: str) -> dict[str, Any]:
        """The chunk that says why it ended."""
        return self.chunk({}, "tool_calls" if self._calls and reason == "stop" else reason)

    def usage(self, stats: Stats) -> dict[str, Any]:
        """The chunk of figures."""
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage_of(stats)}

    def whole(self, answer: Whole) -> dict[str, Any]:
        """The answer as one object."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.thinking:
            message |= {"reasoning": answer.thinking, "reasoning_content": answer.thinking}
        reason = answer.finish_reason
        if answer.calls:
            message |= {"content": answer.text or None, "tool_calls": [_call(c) for c in answer.calls]}
            reason = "tool_calls" if reason == "stop" else reason
        found = answer.logprobs
        logprobs = {"content": _entries(answer.begun, found), "refusal": None} if found else None
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": logprobs}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage_of(answer.stats)}


class _TextShape:
    """An answer as text completion objects."""

    def __init__(self, model: str) -> None:
        self._head = {"id": new_id("cmpl-"), "object": "text_completion", "created": int(time.time()), "model": model,
                      "system_fingerprint": "fp_pilotfish"}  # fmt: skip

    def _text(self, text: str, reason: str | None, logprobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        found = _legacy(logprobs) if logprobs else None
        return {**self._head, "choices": [{"text": text, "index": 0, "finish_reason": reason, "logprobs": found}]}

    def first(self) -> dict[str, Any] | None:
        """A stream begins with text."""
        return None

    def part(self, part: Part, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        """A part of the answer; thinking was not asked for."""
        return self._text(part.text if part.kind == Kind.TEXT else "", None, logprobs)

    def last(self, reason: str) -> dict[str, Any]:
        """The chunk that says why it ended."""
        return self._text("", reason)

    def usage(self, stats: Stats) -> dict[str, Any]:
        """The chunk of figures."""
        return {**self._head, "choices": [], "usage": usage_of(stats)}

    def whole(self, answer: Whole) -> dict[str, Any]:
        """The answer as one object."""
        logprobs = _entries(answer.begun, answer.logprobs)
        return {**self._text(answer.text, answer.finish_reason, logprobs), "usage": usage_of(answer.stats)}


async def _answer(request: Request, ask: Ask, body: Sampling, shape: _ChatShape | _TextShape) -> Response:
    service: Service = request.app.state.service
    if not body.stream:
        return JSONResponse(shape.whole(await unless_gone(request, service.whole(ask))))
    begun, items = await service.begin(ask)  # errors before the first byte get a status of their own
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    return sse(_frames(items, begun, shape, with_usage), lambda error: data(failures.openai(error)))


async def _frames(
    items: AsyncGenerator[Event], begun: Begun, shape: _ChatShape | _TextShape, with_usage: bool
) -> AsyncGenerator[str]:
    logprobs: list[dict[str, Any]] = []
    first = shape.first()
    if first is not None:
        yield data(first)
    async with aclosing(beating(items)) as beats:
        async for item in beats:
            if item is None:
                yield ": keepalive\n\n"
                continue
            logprobs += _entries(begun, item.logprobs)
            for part in item.parts:
                yield data(shape.part(part, logprobs))
                logprobs = []  # of all tokens up to here, with the first part
            if item.stats:
                if logprobs:
                    yield data(shape.part(Part(Kind.TEXT, ""), logprobs))
                yield data(shape.last(item.finish_reason or "stop"))
                if with_usage:
                    yield data(shape.usage(item.stats))
    yield "data: [DONE]\n\n"


def _entries(begun: Begun, found: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    return logprob_entries(found, begun.engine.model.backend_tokenizer)


def _legacy(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Log probabilities as the older completions give them."""
    offsets, at = [], 0
    for e in entries:
        offsets.append(at)
        at += len(e["token"])
    return {
        "tokens": [e["token"] for e in entries], "token_logprobs": [e["logprob"] for e in entries],
        "top_logprobs": [{t["token"]: t["logprob"] for t in e["top_logprobs"]} for e in entries],
        "text_offset": offsets,
    }  # fmt: skip


def usage_of(stats: Stats) -> dict[str, Any]:
    """Figures as OpenAI counts them; what drafting did stands among the details."""
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.delivered,
        "total_tokens": stats.prompt_tokens + stats.delivered,
        "prompt_tokens_details": {"cached_tokens": stats.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": stats.thinking_tokens,
            "accepted_prediction_tokens": stats.accepted,
            "rejected_prediction_tokens": stats.drafted - stats.accepted,
            "pilotfish": draft_statistics(stats),
        },
    }


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": new_id("call_"), "type": "function", "function": {"name": call.name, "arguments": call_json(call)}}


def _internal(message: ChatMessage) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    out: dict[str, Any] = {"role": role, "content": content_text(message.content)}
    thinking = message.reasoning_content or message.reasoning
    if thinking:
        out["reasoning_content"] = thinking
    if message.tool_calls:
        out["tool_calls"] = [
            call_message(str(f["name"]), f.get("arguments"), c.get("id"))
            for c in message.tool_calls
            if isinstance(f := c.get("function"), dict) and f.get("name")
        ]
    if message.name and message.role == "tool":
        out["name"] = message.name
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    return out
