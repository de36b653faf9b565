"""Requests from many clients to models in memory: what every dialect of the server talks to."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

from pilotfish.config import Settings
from pilotfish.engine.logprobs import TokenLogprob
from pilotfish.runtime.defaults import completed
from pilotfish.runtime.loaded import Engine, Prompt
from pilotfish.runtime.models import Models, Resident
from pilotfish.runtime.request import Chat, Event, Prepared, Request, Stats
from pilotfish.runtime.worker import Done, Job, Worker
from pilotfish.store.library import Library
from pilotfish.text.answer import Kind
from pilotfish.text.tools import ToolCall

log = logging.getLogger("pilotfish")

T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """A request to a model by name. keep_alive: seconds that it stays in memory afterwards, None for the default.

    before: token ids of earlier turns, put before the prompt. penalty_window: the newest tokens that penalties look
    at where neither the request nor the model says; None for all that were generated.
    """

    model: str
    prompt: Prompt
    request: Request
    keep_alive: float | None = None
    before: tuple[int, ...] = ()
    penalty_window: int | None = None


class Begun(NamedTuple):
    """The first thing that an answer yields: the model is there and the prompt is known."""

    engine: Engine
    prepared: Prepared
    load_seconds: float  # from arrival to here, waiting included


@dataclass
class Totals:
    """What the server has done since it started."""

    requests: int = 0
    failed: int = 0
    cancelled: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    decode_seconds: float = 0.0


@dataclass(frozen=True)
class Whole:
    """An answer as a whole. prompt_logprobs: on the first of several."""

    begun: Begun
    text: str
    thinking: str
    calls: tuple[ToolCall, ...]
    finish_reason: str
    stop_string: str | None
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    stats: Stats
    seconds: float

    @classmethod
    def of(cls, begun: Begun, events: Sequence[Event], seconds: float) -> Whole:
        """From the events of one answer."""
        last, parts = events[-1], [p for e in events for p in e.parts]
        assert last.stats is not None, "the last event of an answer carries its stats"
        return cls(
            begun=begun,
            text="".join(p.text for p in parts if p.kind == Kind.TEXT),
            thinking="".join(p.text for p in parts if p.kind == Kind.THINKING),
            calls=tuple(p.call for p in parts if p.call is not None),
            finish_reason=last.finish_reason or "stop",
            stop_string=last.stop_string,
            logprobs=tuple(p for e in events for p in e.logprobs),
            prompt_logprobs=tuple(p for e in events for p in e.prompt_logprobs),
            stats=last.stats,
            seconds=seconds,
        )


class Service:
    """Models, the thread that runs them, and the library they come from."""

    def __init__(self, settings: Settings, models: Models | None = None) -> None:
        self.settings = settings
        self.library: Library = models.library if models else Library(settings.models)
        self.models = models or Models(self.library, settings)
        self.worker = Worker(settings.max_queue, self.models.expire)
        self.totals = Totals()
        self.on_first_token: Callable[[float], object] = lambda seconds: None

    def close(self) -> None:
        """Cancel everything and end the thread."""
        self.worker.close()

    async def stream(self, ask: Ask) -> AsyncGenerator[Begun | Event]:
        """`Begun`, then an `Event` a round. Closing the iterator cancels the request.

        Raises what loading and preparing raise, and BusyError.
        """
        arrived = time.monotonic()
        self.totals.requests += 1

        def work(job: Job) -> Iterator[Begun | Event]:
            resident = self.models.get(ask.model, ask.keep_alive)
            job.check()
            engine = resident.engine
            prompt, request = completed(ask.prompt, ask.request, resident.manifest)
            if request.repeat_last_n is None and ask.penalty_window is not None:
                request = replace(request, repeat_last_n=ask.penalty_window)
            if self.settings.context:
                request = replace(request, context=min(request.context or self.settings.context, self.settings.context))
            if ask.before:
                prompt = [*ask.before, *_without_bos(engine, engine.prompt_ids(prompt))]
            prepared = engine.prepare(prompt, request)
            if self.settings.log_prompts:
                log.info("%s is asked: %r", ask.model, engine.model.tokenizer.decode(prepared.prompt))
            yield Begun(engine, prepared, time.monotonic() - arrived)
            try:
                yield from engine.decode(prepared, progress=lambda done, total: job.check())
            finally:
                self.models.touch(resident, ask.keep_alive)

        first = True
        async with aclosing(self._run(work)) as items:
            async for item in items:
                if isinstance(item, Event) and first:
                    first = False
                    self.on_first_token(time.monotonic() - arrived)
                if isinstance(item, Event) and item.stats:
                    self._count(item.stats, item.index)
                yield item

    async def begin(self, ask: Ask) -> tuple[Begun, AsyncGenerator[Event]]:
        """As `stream`, up to `Begun`: what goes wrong before the first token is raised here; then come the events."""
        items = self.stream(ask)
        begun = await anext(items)
        return cast(Begun, begun), cast("AsyncGenerator[Event]", items)

    async def whole(self, ask: Ask) -> Whole:
        """The answer at its end. Cancelling the task cancels the request."""
        return (await self.wholes(ask))[0]

    async def wholes(self, ask: Ask) -> list[Whole]:
        """All answers (`Request.n`) at their end. Cancelling the task cancels the request."""
        started = time.monotonic()
        begun, items = await self.begin(ask)
        events: dict[int, list[Event]] = {}
        async with aclosing(items):
            async for item in items:
                events.setdefault(item.index, []).append(item)
        seconds = time.monotonic() - started
        return [Whole.of(begun, events[i], seconds) for i in sorted(events)]

    async def on_device(self, function: Callable[[], T]) -> T:
        """Call a function on the device's thread, after the requests that wait already."""

        def work(job: Job) -> Iterator[T]:
            yield function()

        async with aclosing(self._run(work)) as items:
            results: list[T] = [item async for item in items]
        return results[0]

    async def load(self, name: str, keep_alive: float | None = None) -> Resident:
        """A model, in memory from now on. Raises as `Models.get`."""
        return await self.on_device(lambda: self.models.get(name, keep_alive))

    async def unload(self, name: str) -> bool:
        """Drop a model from memory; whether it was there."""
        return await self.on_device(lambda: self.models.unload(name))

    async def render(self, ask: Ask) -> tuple[list[int], str]:
        """The ids of a prompt, and the conversation as the model reads it; nothing is decoded."""

        def work() -> tuple[list[int], str]:
            resident = self.models.get(ask.model, ask.keep_alive)
            prompt, _ = completed(ask.prompt, ask.request, resident.manifest)
            text = resident.engine.chat_text(prompt) if isinstance(prompt, Chat) else str(prompt)
            return resident.engine.prompt_ids(prompt), text

        return await self.on_device(work)

    async def _run(self, work: Callable[[Job], Iterator[Any]]) -> AsyncGenerator[Any]:
        """A job's items as they come; its error is raised here."""
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[Any] = asyncio.Queue()

        def deliver(item: Any) -> None:
            try:
                loop.call_soon_threadsafe(items.put_nowait, item)
            except RuntimeError:  # the loop has ended with the server
                job.cancel()

        job = Job(work, deliver)
        self.worker.submit(job)
        ended = False
        try:
            while True:
                item = await items.get()
                if isinstance(item, Done):
                    ended = True
                    if item.error:
                        self.totals.failed += 1
                        raise item.error
                    return
                yield item
        finally:
            if not ended:
                self.totals.cancelled += 1
                job.cancel()

    def _count(self, stats: Stats, index: int) -> None:
        totals = self.totals
        if index == 0:  # several answers share a prompt
            totals.prompt_tokens += stats.prompt_tokens
            totals.cached_tokens += stats.cached_tokens
            totals.decode_seconds += stats.decode_seconds
        totals.tokens += stats.delivered
        totals.rounds += stats.rounds
        totals.drafted += stats.drafted
        totals.accepted += stats.accepted


def _without_bos(engine: Engine, ids: list[int]) -> list[int]:
    return ids[1:] if ids[:1] == [engine.model.tokenizer.bos_token_id] else ids
