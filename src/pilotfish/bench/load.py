"""Many clients at once against a running server: are all streams whole, and what does serving cost beside decoding."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any
from urllib.parse import urlsplit

PROMPTS = ("Write a function that adds two numbers.", "Explain a loop.", "class Stack:", "Sort a list of words.")
SEEDS = 8


@dataclass(frozen=True)
class Question:
    """One request; the same question always has the same answer."""

    prompt: str
    seed: int

    def body(self, model: str, tokens: int) -> dict[str, Any]:
        """As /api/chat takes it."""
        options = {"seed": self.seed, "temperature": 1.0, "num_predict": tokens}
        return {"model": model, "messages": [{"role": "user", "content": self.prompt}], "options": options}


QUESTIONS = [Question(p, s) for p in PROMPTS for s in range(SEEDS)]


@dataclass
class Load:
    """What clients saw. seconds: of the run; engine_seconds: what the server says it spent on prompts and rounds."""

    clients: int
    seconds: float = 0.0
    answers: int = 0
    refused: int = 0
    wrong: int = 0
    errors: list[str] = field(default_factory=list)
    tokens: int = 0
    engine_seconds: float = 0.0
    first_token: list[float] = field(default_factory=list)
    alone_seconds_per_token: float = 0.0

    @property
    def overhead(self) -> float:
        """Seconds a token beside what one client alone, who never waits, takes for it."""
        return self.seconds / self.tokens - self.alone_seconds_per_token if self.tokens else 0.0

    @property
    def beside_engine(self) -> float:
        """Seconds a token in which the server neither read a prompt nor decoded."""
        return (self.seconds - self.engine_seconds) / self.tokens if self.tokens else 0.0

    def percentile(self, percent: int) -> float:
        """Of the seconds to the first token."""
        return quantiles(self.first_token, n=100)[percent - 1] if len(self.first_token) > 1 else 0.0


async def run(
    url: str, model: str, clients: int, seconds: float, tokens: int, progress: Callable[[int, int], None] | None = None
) -> Load:
    """Ask every question once, alone; then let `clients` ask at random for `seconds` and compare every answer.

    A full queue (503) is no error: the client asks again. Raises OSError where no server answers.
    """
    load, expected = Load(clients), {}
    alone_tokens, alone_seconds = 0, 0.0
    for question in [QUESTIONS[0], *QUESTIONS]:  # the first one loads the model
        start = time.perf_counter()
        text, last, _ = await _answer(url, question.body(model, tokens))
        if question in expected:
            alone_tokens += last["eval_count"]
            alone_seconds += time.perf_counter() - start
        expected[question] = text
    for question in QUESTIONS:
        start = time.perf_counter()
        _, last, _ = await _answer(url, question.body(model, tokens))
        alone_tokens += last["eval_count"]
        alone_seconds += time.perf_counter() - start
    load.alone_seconds_per_token = alone_seconds / max(1, alone_tokens)

    started = time.perf_counter()
    end = started + seconds

    async def client(number: int) -> None:
        turn = number
        while time.perf_counter() < end:
            question = QUESTIONS[turn % len(QUESTIONS)]
            turn += 7
            await _one(load, url, question.body(model, tokens), expected[question])
            if progress:
                progress(min(int(time.perf_counter() - started), int(seconds)), int(seconds))

    await asyncio.gather(*(client(i) for i in range(clients)))
    load.seconds = time.perf_counter() - started
    return load


async def _one(load: Load, url: str, body: dict[str, Any], expected: str) -> None:
    try:
        text, last, first = await _answer(url, body)
    except _RefusedError as refused:
        if refused.status != 503:
            load.errors.append(str(refused))
        load.refused += refused.status == 503
        await asyncio.sleep(0.05)
        return
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        load.errors.append(f"{type(error).__name__}: {error}")
        return
    load.answers += 1
    load.wrong += text != expected
    load.tokens += last["eval_count"]
    load.engine_seconds += (last["eval_duration"] + last["prompt_eval_duration"]) / 1e9
    load.first_token.append(first)


class _RefusedError(Exception):
    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:200]}")
        self.status = status


async def _answer(url: str, body: dict[str, Any]) -> tuple[str, dict[str, Any], float]:
    """Text, the last object, and seconds to the first one. Raises ValueError for a stream that is not whole."""
    start, first, text = time.perf_counter(), 0.0, ""
    last: dict[str, Any] = {}
    async for line in _lines(url, body):
        value = json.loads(line)
        if "error" in value or last.get("done"):
            raise ValueError(f"unexpected line: {line[:200]!r}")
        first = first or time.perf_counter() - start
        text += value["message"]["content"]
        last = value
    if not last.get("done"):
        raise ValueError("the stream ended before its last object")
    return text, last, first


async def _lines(url: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
    """The lines of a streamed answer, over a connection of its own."""
    parts, data = urlsplit(url), json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        head = f"POST /api/chat HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(data)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + data)
        await writer.drain()
        status = int((await reader.readuntil(b"\r\n")).split()[1])
        while (await reader.readuntil(b"\r\n")) != b"\r\n":
            pass
        if status != 200:
            raise _RefusedError(status, (await reader.read()).decode(errors="replace"))
        rest = b""
        while size := int((await reader.readuntil(b"\r\n")).strip() or b"0", 16):
            rest += await reader.readexactly(size)
            await reader.readexactly(2)
            *lines, rest = rest.split(b"\n")
            for line in lines:
                yield line
    finally:
        writer.close()
