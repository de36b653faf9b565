"""Clients that leave at any moment, and many at once."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.servers import Running, pilotfish_serve, start, stop

LONG = {"model": "nano", "options": {"num_predict": 400, "temperature": 0, "seed": 1}}


def leave_abruptly(url: str, body: dict, wait: float) -> None:
    """Send a request, read for a moment, and reset the connection."""
    parts, data = urlsplit(url), json.dumps(body).encode()
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        head = f"POST /api/chat HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        connection.sendall(head + data)
        connection.settimeout(max(wait, 0.001))
        end = time.monotonic() + wait
        try:
            while time.monotonic() < end and connection.recv(4096):
                pass
        except TimeoutError:
            pass


def running(server: Running) -> float:
    return float(
        next(line for line in server.get("/metrics").text.splitlines() if line.startswith("pilotfish_running")).split()[
            1
        ]
    )


def open_files(server: Running) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def resident(server: Running) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="reads /proc")
def test_five_hundred_clients_that_leave_cost_nothing(tmp_path_factory: pytest.TempPathFactory):
    server = start(pilotfish_serve, tmp_path_factory.mktemp("library"), PILOTFISH_CACHE_BYTES="20000000")
    try:
        chance = random.Random(4)
        short = {**LONG, "messages": [{"role": "user", "content": "hello"}], "stream": False}
        short["options"] = {**short["options"], "num_predict": 20}
        want = server.post("/api/chat", short).json()["message"]["content"]
        before = (0, 0)
        for number in range(500):
            text = "word " * chance.choice([1, 40, 1500, 3000])  # leaves in prefill, at the first token, in mid-round
            body = {
                **LONG,
                "messages": [{"role": "user", "content": f"{number} {text}"}],
                "stream": chance.random() < 0.7,
            }
            leave_abruptly(server.url, body, chance.choice([0.0, 0.005, 0.02, 0.05, 0.15]))
            if number % 50 == 49:
                deadline = time.monotonic() + 5
                while running(server) and time.monotonic() < deadline:
                    time.sleep(0.05)
                assert running(server) == 0
                assert server.post("/api/chat", short).json()["message"]["content"] == want
            if number == 199:
                before = (open_files(server), resident(server))
        assert open_files(server) <= before[0] + 3
        assert resident(server) <= before[1] * 1.1 + 20_000
    finally:
        stop(server)


@pytest.mark.slow
def test_sixty_four_clients_at_once_get_whole_answers(server: Running, pilotfish):
    code, out, err = pilotfish("bench", "load", "--url", server.url, "--clients", 64, "--seconds", 10, "--json")

    found = json.loads(out)
    assert code == 0, err
    assert found["errors"] == []
    assert found["wrong"] == 0
    assert found["answers"] > 100


def test_a_load_without_a_server_says_so(pilotfish):
    code, _, err = pilotfish("bench", "load", "--url", "http://127.0.0.1:9", "--seconds", 1)
    assert code == 1
    assert "start one with pilotfish serve" in err


def test_a_full_queue_is_refused_and_a_retry_succeeds(scripted: Running):
    import concurrent.futures

    def ask(text: str) -> httpx.Response:
        return scripted.post("/api/chat", {"model": "scripted", "messages": [{"role": "user", "content": text}],
                                           "stream": False, "think": False})  # fmt: skip

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        first = pool.submit(ask, "slow 1")
        time.sleep(0.3)
        others = [a.result() for a in [pool.submit(ask, "echo: x") for _ in range(14)]]
        assert first.result().status_code == 200
    refused = [a for a in others if a.status_code != 200]
    assert {a.status_code for a in refused} == {503}
    assert refused[0].json()["error"].startswith("server busy, please try again.")
    assert len(others) - len(refused) == 8
    assert ask("echo: again").json()["message"]["content"] == "again"
