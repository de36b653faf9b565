"""Other engines: the real mlx-lm in a process of its own, a stand-in for a server, and engines that fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pilotfish.bench import contenders
from pilotfish.bench.against import DRAFTED, PLAIN, compare, summarize
from pilotfish.bench.contenders import Server, TooSlowError, Worker, start
from pilotfish.errors import OptionError, PilotfishError


class Completions(BaseHTTPRequestHandler):
    """Streams two words a second apart in nothing; `status` other than 200 refuses."""

    status = 200

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.asked = json.loads(self.rfile.read(length))  # type: ignore[attr-defined]
        self.send_response(self.status)
        self.end_headers()
        if self.status != 200:
            self.wfile.write(b'{"error": "no such model"}')
            return
        for event in ({"choices": [{"text": "a"}]}, {"choices": [], "usage": {"completion_tokens": 7}}):
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Completions) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def url(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}/v1"


@pytest.mark.slow
def test_mlx_lm_gives_the_same_tokens(pilotfish, tmp_path: Path):
    results, report = tmp_path / "r.jsonl", tmp_path / "r.md"
    code, out, _ = pilotfish("bench", "against", "mlx-lm", "--limit", 1, "--max-tokens", 12, "--repeats", 1,
                             "--results", results, "--report", report)  # fmt: skip

    assert code == 0
    answer = json.loads(results.read_text())
    assert answer["same_text"]["mlx-lm, float32"]
    assert "| mlx-lm, stored |" in out
    assert report.with_suffix(".png").exists()


def test_a_server_is_asked_for_the_prompts_text_and_counted_by_its_usage(engine, server):
    (contender,) = start([url(server)], Path("unused"), "some-name", engine.model.tokenizer.decode, 10)

    (answer,) = compare(engine, [contender], ["def f("], 5, repeats=1)

    assert server.asked["prompt"].endswith("def f(")
    assert (server.asked["model"], server.asked["temperature"]) == ("some-name", 0)
    assert answer.rates[url(server)] > 0
    assert answer.same_text == {url(server): None}
    assert {r.name for r in summarize([answer])} == {PLAIN, DRAFTED, url(server)}


def test_a_server_that_refuses_is_quoted(server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Completions, "status", 404)
    with pytest.raises(PilotfishError, match=r"answered 404.*no such model"):
        Server(url(server), "m", str, 5).decode([1], 3)


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(PilotfishError, match=r"http://127\.0\.0\.1:9/v1 cannot be reached"):
        Server("http://127.0.0.1:9/v1", "m", str, 5).decode([1], 3)


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A worker that runs a script of the test's."""

    def make(script: str, limit: float = 20) -> Worker:
        file = tmp_path / "engine.py"
        file.write_text(script)
        monkeypatch.setitem(contenders.WORKERS, "mlx-lm", str(file))
        (worker, *others) = start(["mlx-lm"], tmp_path, "", str, limit)
        for other in others:
            other.close()
        return worker  # type: ignore[return-value]

    return make


def test_an_engine_that_dies_is_quoted(scripted):
    worker = scripted("raise SystemExit('no such checkpoint')")
    with pytest.raises(PilotfishError, match="mlx-lm, stored ended: no such checkpoint"):
        worker.decode([1, 2], 4)
    worker.close()


def test_an_engine_that_is_too_slow_is_left_out(scripted, engine):
    worker = scripted("import time\ntime.sleep(60)", limit=0.2)
    with pytest.raises(TooSlowError, match=r"longer than 0\.2 s"):
        worker.decode([1], 4)

    (answer,) = compare(engine, [scripted("import time\ntime.sleep(60)", limit=0.2)], ["def f("], 4, repeats=2)

    assert set(answer.rates) == {PLAIN, DRAFTED}


@pytest.mark.parametrize(("spec", "why"), [("vllm", "must be a URL"), ("mlx-lm=/no/python", "cannot start /no/python")])
def test_engines_that_cannot_be_had_are_refused(tmp_path: Path, spec: str, why: str):
    with pytest.raises(OptionError, match=why):
        start([spec], tmp_path, "", str, 1)
