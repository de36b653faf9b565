"""Real server processes, and the interpreter of the environment that holds the client packages."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from pilotfish.store.library import Library, Manifest, now
from pilotfish.store.names import resolve
from pilotfish.testing.checkpoints import AGENT_TEMPLATE

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = Path(os.environ.get("PILOTFISH_CLIENTS") or ROOT / ".venv-clients" / "bin" / "python")


@dataclass
class Running:
    """A server process."""

    url: str
    process: subprocess.Popen[bytes]
    models: Path

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(command: Callable[[int], list[str]], models: Path, **environment: str) -> Running:
    port = free_port()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OLLAMA_", "PILOTFISH_"))}
    env |= {
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PILOTFISH_MODELS": str(models),
        "HF_HUB_OFFLINE": "1",
        **environment,
    }
    process = subprocess.Popen(command(port), env=env, cwd=ROOT)
    running = Running(f"http://127.0.0.1:{port}", process, models)
    for _ in range(600):
        try:
            httpx.get(running.url + "/health", timeout=5)
            return running
        except httpx.TransportError:
            assert process.poll() is None, "the server ended at start"
            time.sleep(0.1)
    raise AssertionError("the server does not answer")


def stop(running: Running) -> None:
    running.process.terminate()
    running.process.wait(timeout=30)


def pilotfish_serve(port: int) -> list[str]:
    return [sys.executable, "-m", "pilotfish", "serve", "--host", f"127.0.0.1:{port}"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`pilotfish serve` with nano."""
    running = start(pilotfish_serve, tmp_path_factory.mktemp("library"))
    yield running
    stop(running)


@pytest.fixture(scope="session")
def scripted(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose model, `scripted`, answers from a script; it knows tools and thinking."""
    checkpoint = tmp_path_factory.mktemp("scripted") / "tiny"
    shutil.copytree(tiny, checkpoint)
    script = str(ROOT / "tests" / "server" / "scripted_server.py")
    models = tmp_path_factory.mktemp("library")
    running = start(lambda port: [sys.executable, script, str(port), str(checkpoint), str(models)], models)
    yield running
    stop(running)


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`pilotfish serve` with `agent`: nano with a template that knows tools and thinking."""
    folder = Path(shutil.copytree(resolve("nano"), tmp_path_factory.mktemp("agent") / "nano"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": AGENT_TEMPLATE}))
    models = tmp_path_factory.mktemp("library")
    Library(models).put(Manifest("agent:latest", str(folder), created=now()))
    running = start(pilotfish_serve, models)
    yield running
    stop(running)


@pytest.fixture(scope="session")
def client_script() -> Callable[..., Any]:
    """Run a script of `clients/` with the real packages -> the JSON that it prints."""
    if not CLIENTS.is_file():
        pytest.skip("the client packages are not installed: make clients")

    def run(name: str, running: Running, *arguments: str, timeout: float = 120, python: Path = CLIENTS) -> Any:
        script = ROOT / "tests" / "server" / "clients" / f"{name}.py"
        env = {
            k: v for k, v in os.environ.items() if not k.startswith(("OLLAMA_", "OPENAI_", "ANTHROPIC_", "PILOTFISH_"))
        }
        env |= {"OLLAMA_HOST": running.url, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        env.pop("PYTHONPATH", None)
        done = subprocess.run([str(python), str(script), running.url, *arguments], env=env, capture_output=True,
                              text=True, timeout=timeout)  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.strip().splitlines()[-1])

    return run


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    """The objects of an NDJSON answer."""
    return [json.loads(line) for line in response.text.splitlines()]


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of a stream of server-sent events, without [DONE]."""
    found = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(f) for f in found if f != "[DONE]"]
