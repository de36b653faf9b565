"""The thread that owns the device, and the service in front of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from pilotfish.config import Settings
from pilotfish.errors import BusyError, ContextOverflowError, ModelNotFoundError, OptionError
from pilotfish.runtime.models import Models
from pilotfish.runtime.request import Event, Request
from pilotfish.runtime.service import Ask, Begun, Service
from pilotfish.runtime.worker import CancelledJobError, Done, Job, Worker
from pilotfish.store.library import Library, Manifest, now


def collect(work, worker: Worker) -> tuple[Job, list, threading.Event]:
    items: list = []
    done = threading.Event()

    def deliver(item):
        items.append(item)
        if isinstance(item, Done):
            done.set()

    job = Job(work, deliver)
    worker.submit(job)
    return job, items, done


def test_jobs_run_on_one_thread_in_order():
    worker = Worker(8)
    order: list[tuple[int, str]] = []

    def work(number: int):
        def run(job: Job) -> Iterator[int]:
            order.append((number, threading.current_thread().name))
            yield number

        return run

    jobs = [collect(work(i), worker) for i in range(5)]
    assert all(done.wait(5) for *_, done in jobs)
    assert order == [(i, "pilotfish-device") for i in range(5)]
    worker.close()


def test_errors_are_delivered_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL, "pilotfish")
    worker = Worker(8)

    def fails(job: Job) -> Iterator[int]:
        yield 1
        raise RuntimeError("inside")

    _, items, done = collect(fails, worker)
    assert done.wait(5)
    assert items[0] == 1
    assert str(items[1].error) == "inside"
    _, items, done = collect(lambda job: iter([7]), worker)
    assert done.wait(5)
    assert items[0] == 7
    worker.close()


def test_a_cancelled_job_ends_at_its_next_item_and_closes_what_it_opened():
    worker, closed = Worker(8), threading.Event()
    first = threading.Event()

    def endless(job: Job) -> Iterator[int]:
        try:
            while True:
                first.set()
                yield 0
        finally:
            closed.set()

    job, items, done = collect(endless, worker)
    first.wait(5)
    job.cancel()
    assert done.wait(5)
    assert closed.is_set()
    assert isinstance(items[-1].error, CancelledJobError)
    worker.close()


def test_more_than_may_wait_are_refused():
    worker, go = Worker(2), threading.Event()

    def waits(job: Job) -> Iterator[int]:
        go.wait(5)
        yield 1

    running = collect(waits, worker)
    while worker.waiting:
        pass
    others = [collect(lambda job: iter([1]), worker) for _ in range(2)]
    with pytest.raises(BusyError, match=r"server busy, please try again\."):
        collect(lambda job: iter([1]), worker)
    go.set()
    assert all(done.wait(5) for *_, done in (running, *others))
    worker.close()


@pytest.fixture
def service(tiny: Path, tmp_path: Path) -> Iterator[Service]:
    settings = Settings(models=tmp_path, max_models=2)
    library = Library(tmp_path)
    for name in ("one", "two", "three"):
        folder = tmp_path / name
        folder.symlink_to(tiny)
        library.put(Manifest(f"{name}:latest", str(folder), created=now()))
    library.put(Manifest("alias:latest", str(tmp_path / "one"), system="Be brief.", created=now()))
    library.put(Manifest("broken:latest", str(tmp_path), created=now()))
    running = Service(settings, Models(library, settings))
    yield running
    running.close()


def ask(model: str = "one", prompt: str = "hello", **options) -> Ask:
    return Ask(model, prompt, Request(**{"max_tokens": 8, "temperature": 0.0, **options}))


def test_an_answer_streams_and_is_whole(service: Service):
    async def run():
        whole = await service.whole(ask())
        items = [i async for i in service.stream(ask())]
        return whole, items

    whole, items = asyncio.run(run())
    assert isinstance(items[0], Begun)
    assert "".join(i.text for i in items[1:]) == whole.text
    assert service.totals.tokens == 2 * whole.stats.delivered
    assert service.totals.requests == 2


def test_models_come_and_go_by_use(service: Service):
    async def run():
        for name in ("one", "two", "one", "three"):
            await service.whole(ask(name))
        return [r.manifest.name for r in service.models.residents]

    assert asyncio.run(run()) == ["three:latest", "one:latest"]


def test_two_names_of_the_same_weights_share_them(service: Service):
    async def run():
        first = await service.load("one")
        second = await service.load("alias")
        return first.engine is second.engine, len(service.models.residents), await service.unload("one")

    assert asyncio.run(run()) == (True, 1, True)
    assert service.models.residents == []


def test_a_model_that_cannot_be_loaded_fails_its_own_request_only(service: Service):
    async def run():
        with pytest.raises(ModelNotFoundError):
            await service.whole(ask("broken"))
        with pytest.raises(ModelNotFoundError, match="model 'none' not found"):
            await service.whole(ask("none"))
        with pytest.raises(OptionError, match="temperature"):
            await service.whole(replace(ask(), request=Request(temperature=-1.0)))
        return await service.whole(ask())

    assert asyncio.run(run()).text


def test_the_servers_context_caps_every_request(tiny: Path, tmp_path: Path):
    settings = Settings(models=tmp_path, context=20)
    Library(tmp_path).put(Manifest("one:latest", str(tiny), created=now()))
    service = Service(settings)

    async def run():
        with pytest.raises(ContextOverflowError, match="20 tokens"):
            await service.whole(ask(prompt="x" * 30))
        return await service.whole(ask(prompt="x" * 10, max_tokens=50))

    assert asyncio.run(run()).stats.tokens == 9
    service.close()


def test_leaving_frees_the_device_within_a_round(service: Service):
    async def run():
        async with aclosing(service.stream(ask(max_tokens=3000))) as items:
            seen = 0
            async for item in items:
                seen += isinstance(item, Event)
                if seen == 3:
                    break
        answer = await asyncio.wait_for(service.whole(ask(prompt="next")), 5)
        return answer.stats.tokens

    assert asyncio.run(run()) == 8
    assert service.totals.cancelled == 1


def test_two_loops_at_once_share_the_device_in_turn(service: Service):
    async def run():
        return await asyncio.gather(*(service.whole(ask(prompt=f"p{i}")) for i in range(6)))

    together = asyncio.run(run())
    alone = [asyncio.run(service.whole(ask(prompt=f"p{i}"))) for i in range(6)]
    assert [a.text for a in together] == [a.text for a in alone]
