"""Other engines as something that decodes token ids: a worker process in an environment of its own, or a server."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pilotfish.errors import OptionError, PilotfishError

WORKERS = {"mlx-lm": "mlx_lm_plain.py", "mlx-vlm": "mlx_vlm_drafted.py"}
FORMS = ("stored", "bfloat16", "float32")


class TooSlowError(PilotfishError):
    """A contender did not answer within its time limit."""


class Decoded(NamedTuple):
    """tokens: ids, None where an engine does not give them; rate: tokens a second after the first."""

    tokens: list[int] | None
    rate: float


class Contender(Protocol):
    """Another engine."""

    name: str

    def decode(self, prompt: Sequence[int], max_tokens: int) -> Decoded:
        """Greedily, `max_tokens` at most. Raises TooSlowError, or PilotfishError where the engine fails."""

    def close(self) -> None:
        """End what was started."""


class Worker:
    """A process that decodes with another engine; `form` is what its weights are turned into at load."""

    def __init__(self, engine: str, python: str, model: Path, form: str, drafter: Path | None, limit: float) -> None:
        self.name, self._limit = f"{engine}, {form}", limit
        script = Path(__file__).parent / "engines" / WORKERS[engine]
        arguments = [python, str(script), str(model), form, *([str(drafter)] if drafter else [])]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user named the interpreter
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise OptionError(f"cannot start {python}: {error.strerror}") from error

    def decode(self, prompt: Sequence[int], max_tokens: int) -> Decoded:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"prompt": list(prompt), "max_tokens": max_tokens}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        if not select.select([self._process.stdout], [], [], self._limit)[0]:
            self.close()
            raise TooSlowError(f"{self.name} took longer than {self._limit:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        answer: dict[str, Any] = json.loads(line)
        return Decoded(answer["tokens"], (len(answer["tokens"]) - 1) / max(answer["seconds"], 1e-9))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream:
                stream.close()

    def _failure(self) -> PilotfishError:
        assert self._process.stderr is not None
        words = self._process.stderr.read().strip().splitlines()
        return PilotfishError(f"{self.name} ended: {words[-1] if words else 'without a word'}")


class Server:
    """A server that speaks OpenAI's completions, asked for the prompt's text; `text_of` turns ids into it."""

    def __init__(self, url: str, model: str, text_of: Callable[[Sequence[int]], str], limit: float) -> None:
        self.name, self._url, self._model = url, url.rstrip("/"), model
        self._text_of, self._limit = text_of, limit

    def decode(self, prompt: Sequence[int], max_tokens: int) -> Decoded:
        body = {
            "model": self._model, "prompt": self._text_of(prompt), "max_tokens": max_tokens, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        request = urllib.request.Request(  # noqa: S310 - the user named the server
            f"{self._url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        first, tokens = 0.0, 0
        try:
            with urllib.request.urlopen(request, timeout=self._limit) as answer:  # noqa: S310
                for line in answer:
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line[6:])
                    if event.get("choices") and event["choices"][0].get("text"):
                        first = first or time.perf_counter()
                    tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        except TimeoutError:
            raise TooSlowError(f"{self._url} took longer than {self._limit:g} s") from None
        except urllib.error.HTTPError as error:
            raise PilotfishError(
                f"{self._url} answered {error.code}: {error.read(300).decode(errors='replace')}"
            ) from None
        except OSError as error:
            raise PilotfishError(f"{self._url} cannot be reached: {error}") from None
        if not tokens:
            raise PilotfishError(f"{self._url} gave no usage figures, so its tokens cannot be counted")
        return Decoded(None, (tokens - 1) / max(time.perf_counter() - first, 1e-9))

    def close(self) -> None:
        return None


def start(
    specs: Sequence[str], model: Path, served_as: str, text_of: Callable[[Sequence[int]], str], limit: float
) -> list[Contender]:
    """Contenders named as "mlx-lm", "mlx-vlm=/path/to/python" or "http://host/v1". Raises OptionError."""
    contenders: list[Contender] = []
    for spec in specs:
        if spec.startswith(("http://", "https://")):
            contenders.append(Server(spec, served_as, text_of, limit))
            continue
        engine, _, python = spec.partition("=")
        if engine not in WORKERS:
            raise OptionError(
                f"engine is {engine!r}; it must be a URL such as http://localhost:8080/v1 or one of "
                f"{', '.join(WORKERS)}, with =PYTHON for the interpreter of its environment"
            )
        drafter = model / "assistant" if engine == "mlx-vlm" else None
        contenders += [Worker(engine, python or sys.executable, model, form, drafter, limit) for form in FORMS]
    return contenders
