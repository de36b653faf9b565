"""OpenAI's chat completions and completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from pilotfish.engine.logprobs import TokenLogprob
from pilotfish.errors import OptionError
from pilotfish.runtime.request import Chat, Event, Stats, together
from pilotfish.runtime.request import Request as Options
from pilotfish.runtime.service import Ask, Begun, Service
from pilotfish.server import failures, fields
from pilotfish.server.bodies import Wire, body_of, described
from pilotfish.server.efforts import thinking_of
from pilotfish.server.openai_shapes import ChatShape, Entries, TextShape, entries_of
from pilotfish.server.streams import beating, data, sse, unless_gone
from pilotfish.server.translate import (
    bias_from,
    call_message,
    checked_tools,
    content_text,
    paired,
    request_from,
    schema_of,
    seconds_of,
    wanted_logprobs,
    with_choice,
)
from pilotfish.text.answer import Kind, Part

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
    keep_alive: float | str | None = None


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
    logprobs: int | None = None
    echo: bool | None = None


@router.post("/chat/completions", openapi_extra=described(ChatCompletion))
async def chat_completions(
    request: Request, body: Annotated[ChatCompletion, Depends(body_of(ChatCompletion, fields.CHAT_COMPLETIONS))]
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
    ask = Ask(body.model, chat, options, seconds_of(body.keep_alive))
    return await _answer(request, ask, body, ChatShape(body.model))


@router.post("/completions", openapi_extra=described(Completion))
async def completions(
    request: Request, body: Annotated[Completion, Depends(body_of(Completion, fields.COMPLETIONS))]
) -> Response:
    """Answer one prompt, as the only turn of a conversation; without a chat template, or with `echo`, continue it."""
    prompt: Any = body.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        if len(prompt) > 1:
            raise OptionError("prompt holds several texts; send them one by one")
        prompt = prompt[0]
    if not prompt:
        raise OptionError("prompt is empty")
    service: Service = request.app.state.service
    resident = await service.load(body.model)
    if isinstance(prompt, str) and not body.echo and (resident.engine.model.template or resident.manifest.template):
        prompt = Chat(({"role": "user", "content": prompt},), thinking=False)
    asked = None if body.logprobs is None else wanted_logprobs(True, body.logprobs)
    scored = (asked or 0) if body.echo and (asked is not None or body.max_tokens == 0) else None
    ask = Ask(body.model, prompt, replace(options_of(body, None, scored), logprobs=asked),
              seconds_of(body.keep_alive))  # fmt: skip
    return await _answer(request, ask, body, TextShape(body.model, prompt if body.echo else None, asked is not None))


def options_of(body: Sampling, max_completion_tokens: int | None, scored: int | None = None) -> Options:
    """The request's options; `scored`: log probabilities of the prompt. Raises OptionError."""
    limit = max_completion_tokens if body.max_tokens is None else body.max_tokens
    if limit is not None and limit < (1 if scored is None else 0):
        raise OptionError(f"max_tokens is {limit}; it must be at least 1")
    named = {
        "num_predict": limit, "temperature": body.temperature, "top_p": body.top_p, "top_k": body.top_k,
        "min_p": body.min_p, "seed": body.seed, "stop": body.stop, "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty, "repetition_penalty": body.repetition_penalty,
        "draft_num_predict": body.draft_num_predict, "min_tokens": body.min_tokens, "ignore_eos": body.ignore_eos,
    }  # fmt: skip
    found = request_from({**(body.options or {}), **{k: v for k, v in named.items() if v is not None}})
    found = replace(found, logit_bias=bias_from(body.logit_bias), n=1 if body.n is None else body.n)
    return found if scored is None else replace(found, prompt_logprobs=scored, max_tokens=limit)


async def _answer(request: Request, ask: Ask, body: Sampling, shape: ChatShape | TextShape) -> Response:
    service: Service = request.app.state.service
    if not body.stream:
        return JSONResponse(shape.whole(await unless_gone(request, service.wholes(ask))))
    begun, items = await service.begin(ask)  # errors before the first byte get a status of their own
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    return sse(_frames(items, begun, shape, with_usage), lambda error: data(failures.openai(error)))


async def _frames(
    items: AsyncGenerator[Event], begun: Begun, shape: ChatShape | TextShape, with_usage: bool
) -> AsyncGenerator[str]:
    logprobs: dict[int, Entries] = {}
    stats: list[Stats] = []
    scored: Sequence[TokenLogprob] = ()
    async with aclosing(beating(items)) as beats:
        async for item in beats:
            if item is None:
                yield ": keepalive\n\n"
                continue
            i = item.index
            if i not in logprobs:
                logprobs[i] = []
                scored = scored or item.prompt_logprobs  # they come with the first of several answers
                first = shape.first(i, begun, scored)
                if first is not None:
                    yield data(first)
            logprobs[i] += entries_of(begun, item.logprobs)
            for part in item.parts:
                yield data(shape.part(i, part, logprobs[i]))
                logprobs[i] = []  # of all tokens up to here, with the first part
            if item.stats:
                stats.append(item.stats)
                if logprobs[i]:
                    yield data(shape.part(i, Part(Kind.TEXT, ""), logprobs[i]))
                yield data(shape.last(i, item.finish_reason or "stop"))
    if with_usage:
        yield data(shape.usage(together(stats)))
    yield "data: [DONE]\n\n"


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
