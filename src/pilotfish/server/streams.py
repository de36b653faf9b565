"""Framing of streamed answers, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse

from pilotfish.runtime.worker import CancelledJobError
from pilotfish.server.failures import log

T = TypeVar("T")
KEEP_ALIVE = 10.0  # seconds without anything to say, after which a stream says that it lives


def compact(value: Any) -> str:
    """JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def ndjson(
    objects: AsyncGenerator[dict[str, Any]], failure: Callable[[Exception], dict[str, Any]]
) -> StreamingResponse:
    """One object a line; an error after the first byte is a line of its own."""

    async def lines() -> AsyncIterator[str]:
        try:
            async for value in objects:
                yield compact(value) + "\n"
        except Exception as error:
            log.info("a stream failed: %s", error)
            yield compact(failure(error)) + "\n"
        finally:
            await objects.aclose()

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def sse(frames: AsyncGenerator[str], failure: Callable[[Exception], str]) -> StreamingResponse:
    """Server-sent events, already framed; an error after the first byte is an event of its own."""

    async def events() -> AsyncIterator[str]:
        try:
            async for frame in frames:
                yield frame
        except Exception as error:
            log.info("a stream failed: %s", error)
            yield failure(error)
        finally:
            await frames.aclose()

    return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def data(value: Any) -> str:
    """An event without a name."""
    return f"data: {compact(value)}\n\n"


def event(value: dict[str, Any]) -> str:
    """An event named by its own `type`."""
    return f"event: {value['type']}\ndata: {compact(value)}\n\n"


async def beating(items: AsyncGenerator[T], seconds: float = KEEP_ALIVE) -> AsyncGenerator[T | None]:
    """The same items, and None whenever nothing came for a while."""
    waiting: asyncio.Task[T] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(items))
            done, _ = await asyncio.wait({waiting}, timeout=seconds)
            if not done:
                yield None
                continue
            try:
                item = waiting.result()
            except StopAsyncIteration:
                return
            waiting = None
            yield item
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.wait({waiting})
        await items.aclose()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises CancelledJobError then."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise CancelledJobError("request canceled")
        return task.result()
    finally:
        for waiting in (task, gone):
            if not waiting.done():
                waiting.cancel()
        await asyncio.wait({task, gone})


async def _gone(request: Request) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return
