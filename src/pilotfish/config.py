"""What the environment sets; nothing else in pilotfish reads it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

log = logging.getLogger("pilotfish")

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 11434
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Settings:
    """How the server behaves. Seconds, bytes, counts.

    keep_alive: how long an idle model stays in memory; negative is for ever. context: cap on every context, 0 for the
    model's own. cache_bytes and memory_bytes: None takes a quarter, and four fifths, of the memory that is free.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    origins: tuple[str, ...] = ()
    api_key: str | None = None
    models: Path = Path("~/.pilotfish/models")
    keep_alive: float = 300.0
    max_queue: int = 512
    max_models: int = 3
    context: int = 0
    cache_bytes: int | None = None
    memory_bytes: int | None = None
    max_body: int = 64 << 20
    log_prompts: bool = False


def settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings by PILOTFISH_* and, so that a running Ollama set-up carries over, OLLAMA_* variables.

    A value that cannot be read is named in the log and the default taken, as Ollama does.
    """
    env = os.environ if environment is None else environment

    def read(name: str, parse: Any, default: Any) -> Any:
        for prefix in ("PILOTFISH_", "OLLAMA_"):
            text = env.get(prefix + name, "").strip().strip("\"'")
            if not text:
                continue
            try:
                return parse(text)
            except ValueError:
                log.warning("%s%s is %r, which cannot be read; using the default", prefix, name, text)
        return default

    host, port = read("HOST", parse_host, (DEFAULT_HOST, DEFAULT_PORT))
    return Settings(
        host=host,
        port=port,
        origins=read("ORIGINS", lambda text: tuple(o.strip() for o in text.split(",") if o.strip()), ()),
        api_key=read("API_KEY", str, None) if "PILOTFISH_API_KEY" in env else None,
        models=Path(env.get("PILOTFISH_MODELS") or "~/.pilotfish/models").expanduser(),
        keep_alive=read("KEEP_ALIVE", parse_duration, 300.0),
        max_queue=read("MAX_QUEUE", _positive, 512),
        max_models=read("MAX_LOADED_MODELS", _positive, 3) or 3,
        context=read("CONTEXT_LENGTH", _positive, 0),
        cache_bytes=read("CACHE_BYTES", _positive, None),
        memory_bytes=read("MEMORY_BYTES", _positive, None),
        max_body=read("MAX_BODY_BYTES", _positive, 64 << 20),
        log_prompts=read("LOG_PROMPTS", lambda text: text.lower() in ("1", "true", "yes"), False),
    )


def parse_host(text: str) -> tuple[str, int]:
    """ "[scheme://]host[:port]" -> host, port: 80 and 443 by scheme, else Ollama's. Raises ValueError."""
    scheme, mark, rest = text.partition("://")
    rest = (rest if mark else text).split("/")[0]
    port = {"http": 80, "https": 443}.get(scheme, DEFAULT_PORT) if mark else DEFAULT_PORT
    if rest.count(":") > 1 and not rest.startswith("["):
        rest = f"[{rest}]"  # a bare IPv6 address
    parts = urlsplit(f"//{rest}")
    try:
        port = parts.port or port
    except ValueError:
        log.warning("host %r has a port that cannot be read; using %d", text, port)
    return parts.hostname or DEFAULT_HOST, port


def parse_duration(text: str | float) -> float:
    """Seconds: a number, or Go's notation ("5m", "1h30m", "-1s"). Raises ValueError."""
    if isinstance(text, int | float):
        return float(text)
    try:
        return float(text)
    except ValueError:
        pass
    sign = -1.0 if text.startswith("-") else 1.0
    parts = re.findall(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)", text)
    if not parts or "".join(n + u for n, u in parts) != text.lstrip("+-"):
        raise ValueError(f"{text!r} is no duration; write seconds, or 5m, 1h30m")
    return sign * sum(float(n) * _UNITS[u] for n, u in parts)


def free_memory() -> int:
    """Bytes that this machine could still use."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _positive(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value
