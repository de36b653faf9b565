"""OpenAI's responses: the wire format of Codex. Stateless; every stream ends with completed, incomplete or failed."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from pilotfish.errors import ContextOverflowError, OptionError
from pilotfish.runtime.request import Chat, Event, Stats
from pilotfish.runtime.service import Ask, Service
from pilotfish.server import failures, fields
from pilotfish.server.bodies import Wire, body_of, described
from pilotfish.server.efforts import thinking_of
from pilotfish.server.openai import Reasoning
from pilotfish.server.responses_input import to_messages, to_tools
from pilotfish.server.streams import beating, event, sse, unless_gone
from pilotfish.server.translate import (
    call_json,
    checked_tools,
    draft_statistics,
    new_id,
    request_from,
    schema_of,
    with_choice,
)
from pilotfish.text.answer import Kind, Part

log = logging.getLogger("pilotfish")
router = APIRouter(prefix="/v1", tags=["openai"], responses=failures.documented(failures.openai))


class ResponsesBody(Wire):
    """POST /v1/responses."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    reasoning: Reasoning | None = None
    text: dict[str, Any] | None = None
    draft_num_predict: int | None = None


@router.post("/responses", openapi_extra=described(ResponsesBody))
async def responses(
    request: Request, body: Annotated[ResponsesBody, Depends(body_of(ResponsesBody, fields.RESPONSES))]
) -> Response:
    """Answer a conversation given as items."""
    service: Service = request.app.state.service
    form = schema_of((body.text or {}).get("format"))
    tools = checked_tools(to_tools(body.tools))
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise OptionError("max_output_tokens must be at least 1")
    messages = to_messages(body.input, body.instructions)
    if not messages:
        raise OptionError("input is empty")
    thinking, budget = thinking_of(body.reasoning.effort if body.reasoning else None, "reasoning.effort")
    options = request_from({
        "num_predict": body.max_output_tokens, "temperature": body.temperature, "top_p": body.top_p,
        "draft_num_predict": body.draft_num_predict,
    })  # fmt: skip
    chat = with_choice(Chat(messages, tools, thinking), body.tool_choice, body.parallel_tool_calls)
    ask = Ask(body.model, chat, replace(options, format=form, thinking_budget=budget))
    reply = _Reply(body)
    if not body.stream:
        return JSONResponse(await unless_gone(request, _whole(service, ask, reply)))
    _, items = await service.begin(ask)  # errors before the first byte get a status of their own
    return sse(_frames(items, reply), lambda error: event(reply.failed(error)))


async def _whole(service: Service, ask: Ask, reply: _Reply) -> dict[str, Any]:
    async with aclosing(service.stream(ask)) as items:
        async for item in items:
            if isinstance(item, Event):
                for part in item.parts:
                    list(reply.add(part))
                if item.stats:
                    list(reply.end_item())
                    reply.finish(item.stats, item.finish_reason or "stop")
    return reply.response


async def _frames(items: AsyncGenerator[Event], reply: _Reply) -> AsyncGenerator[str]:
    yield event(reply.state("response.created"))
    yield event(reply.state("response.in_progress"))
    async with aclosing(beating(items)) as beats:
        async for item in beats:
            if item is None:  # idle timers count events, not comments
                yield event(reply.state("response.in_progress"))
                continue
            for part in item.parts:
                for value in reply.add(part):
                    yield event(value)
            if item.stats:
                for value in reply.end_item():
                    yield event(value)
                yield event(reply.finish(item.stats, item.finish_reason or "stop"))


class _Reply:
    """The response object as it grows, and the events of its growing."""

    def __init__(self, body: ResponsesBody) -> None:
        self.response: dict[str, Any] = {
            "id": new_id("resp_"), "object": "response", "created_at": int(time.time()), "status": "in_progress",
            "error": None, "incomplete_details": None, "instructions": body.instructions, "metadata": {},
            "model": body.model, "output": [], "temperature": body.temperature,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "tool_choice": body.tool_choice or "auto", "tools": body.tools or [], "top_p": body.top_p,
            "max_output_tokens": body.max_output_tokens, "previous_response_id": None, "reasoning": None,
            "text": {"format": {"type": "text"}}, "truncation": "disabled", "usage": None, "store": False,
        }  # fmt: skip
        self._sequence = -1
        self._kind: Kind | None = None
        self._item: dict[str, Any] = {}
        self._text = ""

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """One event, numbered."""
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence, **fields}

    def state(self, kind: str) -> dict[str, Any]:
        """An event that carries the whole response."""
        return self.event(kind, response=self.response)

    def add(self, part: Part) -> Iterator[dict[str, Any]]:
        """The events of a part."""
        if part.kind != self._kind or part.call is not None:
            yield from self.end_item()
            yield from self._begin(part)
        if part.call is not None:
            arguments = call_json(part.call)
            self._item["arguments"] = arguments
            yield self.event("response.function_call_arguments.delta", **self._place(), delta=arguments)
            yield self.event("response.function_call_arguments.done", **self._place(), arguments=arguments,
                             name=part.call.name)  # fmt: skip
            return
        self._text += part.text
        if part.kind == Kind.THINKING:
            yield self.event("response.reasoning_summary_text.delta", **self._place(), summary_index=0, delta=part.text)
        else:
            yield self.event(
                "response.output_text.delta", **self._place(), content_index=0, delta=part.text, logprobs=[]
            )

    def end_item(self) -> Iterator[dict[str, Any]]:
        """The events that close the item that is open."""
        if self._kind is None:
            return
        item, text, place = self._item, self._text, self._place()
        part: dict[str, Any]
        if self._kind == Kind.THINKING:
            part = {"type": "summary_text", "text": text}
            item["summary"], item["encrypted_content"] = [part], text
            yield self.event("response.reasoning_summary_text.done", **place, summary_index=0, text=text)
            yield self.event("response.reasoning_summary_part.done", **place, summary_index=0, part=part)
        elif self._kind == Kind.TEXT:
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            item["content"] = [part]
            yield self.event("response.output_text.done", **place, content_index=0, text=text, logprobs=[])
            yield self.event("response.content_part.done", **place, content_index=0, part=part)
        item["status"] = "completed"
        self._kind = None
        yield self.event("response.output_item.done", output_index=place["output_index"], item=item)

    def _begin(self, part: Part) -> Iterator[dict[str, Any]]:
        self._kind, self._text = part.kind, ""
        if part.kind == Kind.THINKING:
            item: dict[str, Any] = {"id": new_id("rs_"), "type": "reasoning", "summary": [], "encrypted_content": ""}
        elif part.call is not None:
            item = {"id": new_id("fc_"), "type": "function_call", "call_id": new_id("call_"), "name": part.call.name,
                    "arguments": ""}  # fmt: skip
        else:
            item = {"id": new_id("msg_"), "type": "message", "role": "assistant", "content": []}
        item["status"] = "in_progress"
        self.response["output"].append(item)
        self._item = item
        empty: dict[str, Any]
        yield self.event("response.output_item.added", output_index=self._place()["output_index"], item=dict(item))
        if part.kind == Kind.THINKING:
            empty = {"type": "summary_text", "text": ""}
            yield self.event("response.reasoning_summary_part.added", **self._place(), summary_index=0, part=empty)
        elif part.call is None:
            empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield self.event("response.content_part.added", **self._place(), content_index=0, part=empty)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item["id"], "output_index": len(self.response["output"]) - 1}

    def finish(self, stats: Stats, reason: str) -> dict[str, Any]:
        """The last event: completed, or incomplete where the budget ended it."""
        cut = reason == "length"
        self.response |= {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": {
                "input_tokens": stats.prompt_tokens, "output_tokens": stats.delivered,
                "total_tokens": stats.prompt_tokens + stats.delivered,
                "input_tokens_details": {"cached_tokens": stats.cached_tokens, "cache_write_tokens": 0},
                "output_tokens_details": {
                    "reasoning_tokens": stats.thinking_tokens, "pilotfish": draft_statistics(stats),
                },
            },
        }  # fmt: skip
        return self.state(f"response.{self.response['status']}")

    def failed(self, error: Exception) -> dict[str, Any]:
        """The last event of a response that an error ended."""
        code = "context_length_exceeded" if isinstance(error, ContextOverflowError) else "server_error"
        self.response |= {"status": "failed", "error": {"code": code, "message": failures.message_of(error)}}
        return self.state("response.failed")
