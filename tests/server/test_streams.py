"""Streams that have nothing to say for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from pilotfish.server.streams import beating


async def slow(gone: list[str]) -> AsyncGenerator[int]:
    try:
        yield 1
        await asyncio.sleep(0.1)
        yield 2
        await asyncio.sleep(60)
    finally:
        gone.append("closed")


def test_a_beat_stands_for_silence_and_leaving_closes_the_source():
    gone: list[str] = []

    async def run() -> list[int | None]:
        seen: list[int | None] = []
        beats = beating(slow(gone), 0.03)
        async for item in beats:
            seen.append(item)
            if seen.count(None) > 5:
                break
        await beats.aclose()
        return seen

    seen = asyncio.run(run())
    assert [s for s in seen if s] == [1, 2]
    assert None in seen[1 : seen.index(2)]
    assert gone == ["closed"]


def test_an_error_of_the_source_comes_through():
    async def fails() -> AsyncGenerator[int]:
        yield 1
        raise ValueError("inside")

    async def run() -> None:
        async for _ in beating(fails(), 1):
            pass

    with pytest.raises(ValueError, match="inside"):
        asyncio.run(run())
