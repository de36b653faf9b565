"""`pilotfish bench load`: many clients at once against a running server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Annotated

import typer

from pilotfish.cli.options import JsonOption
from pilotfish.cli.progress import bar
from pilotfish.config import settings
from pilotfish.errors import PilotfishError


def load(
    url: Annotated[
        str | None, typer.Option("--url", help="The server; otherwise PILOTFISH_HOST or the default.")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="The model to ask.")] = "nano",
    clients: Annotated[int, typer.Option("--clients", min=1, help="Clients at once.")] = 64,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="How long they ask.")] = 180,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Tokens of each answer.")] = 40,
    as_json: JsonOption = False,
) -> None:
    """Stream to many clients at once; every answer is compared with the one that a client alone got."""
    from pilotfish.bench.load import run
    from pilotfish.bench.report import table

    chosen = settings()
    where = url or f"http://{chosen.host}:{chosen.port}"
    try:
        with bar("asking") as update:
            found = asyncio.run(run(where, model, clients, seconds, max_tokens, update))
    except OSError as error:
        raise PilotfishError(f"no server answers on {where} ({error}); start one with pilotfish serve") from error
    if as_json:
        record = {k: v for k, v in asdict(found).items() if k != "first_token"}
        typer.echo(json.dumps({**record, "p50": found.percentile(50), "p99": found.percentile(99)}, indent=1))
        return
    rows = [
        ("clients", found.clients), ("seconds", f"{found.seconds:.0f}"), ("answers", found.answers),
        ("refused, queue full", found.refused), ("wrong or mixed up", found.wrong), ("errors", len(found.errors)),
        ("tokens/s", f"{found.tokens / found.seconds:.0f}"),
        ("ms a token more than alone", f"{1e3 * found.overhead:.2f}"),
        ("ms a token outside the engine", f"{1e3 * found.beside_engine:.2f}"),
        ("s to the first token, p50 / p99", f"{found.percentile(50):.2f} / {found.percentile(99):.2f}"),
    ]  # fmt: skip
    typer.echo(table(("load", model), rows), nl=False)
    for message in found.errors[:5]:
        typer.echo(message, err=True)
    if found.errors or found.wrong:
        raise typer.Exit(1)
