"""`pilotfish serve`: the server."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from typing import Annotated

import typer

from pilotfish.config import parse_host, settings
from pilotfish.errors import OptionError

GRACE = 5  # seconds that running answers have to end when the server is stopped


def serve(
    host: Annotated[
        str | None, typer.Option("--host", help="Address and port; otherwise PILOTFISH_HOST or OLLAMA_HOST.")
    ] = None,
    keep_alive: Annotated[
        float | None, typer.Option("--keep-alive", help="Seconds that an idle model stays in memory.")
    ] = None,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write prompts to the log.")] = False,
) -> None:
    """Answer clients of Ollama, OpenAI and Anthropic on http://127.0.0.1:11434.

    Everything else is set by the environment: see the README.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    chosen = settings()
    if host is not None:
        address, port = parse_host(host)
        chosen = replace(chosen, host=address, port=port)
    if keep_alive is not None:
        chosen = replace(chosen, keep_alive=keep_alive)
    if log_prompts:
        chosen = replace(chosen, log_prompts=True)
    _check_free(chosen.host, chosen.port)
    import uvicorn

    from pilotfish.server.app import build
    from pilotfish.store.library import Library

    Library(chosen.models).clean()
    typer.echo(f"pilotfish answers on http://{chosen.host}:{chosen.port}; Ctrl-C ends it", err=True)
    uvicorn.run(
        build(chosen), host=chosen.host, port=chosen.port, log_level="warning", timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=75, server_header=False,
    )  # fmt: skip


def _check_free(host: str, port: int) -> None:
    """Raise OptionError where something else listens already: most often Ollama itself."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OptionError(
                f"cannot listen on {host}:{port}: {error.strerror}; stop what runs there (Ollama?) or give --host"
            ) from error
