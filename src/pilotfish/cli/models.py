"""Model commands: pull, list, show, rm, cp, create on this machine's library; ps and stop on a running server."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from pilotfish.cli.options import JsonOption
from pilotfish.config import settings
from pilotfish.errors import OptionError, PilotfishError

NameArgument = Annotated[str, typer.Argument(help="gemma4, gemma4:31b, org/name on the hub, or nano.")]


def pull(name: NameArgument) -> None:
    """Download a model with its drafter; an interrupted download goes on where it was."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from pilotfish.store.pull import Progress as Step
    from pilotfish.store.pull import pull as download

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def report(step: Step) -> None:
            if not step.digest:
                bars.console.print(step.status)
                return
            if step.digest not in tasks:
                tasks[step.digest] = bars.add_task(step.status, total=step.total)
            bars.update(tasks[step.digest], completed=step.completed)

        manifest = download(name, _library(), report)
    typer.echo(f"{manifest.name} is ready, drafter {manifest.draft}")


def list_models(as_json: JsonOption = False) -> None:
    """List the models on this machine, newest first."""
    from pilotfish.bench.report import table
    from pilotfish.store.describe import describe

    found = [(m, describe(m)) for m in _library()]
    if as_json:
        typer.echo(json.dumps([{"name": m.name, "size": d.size, "drafter": d.drafter} for m, d in found], indent=1))
        return
    rows = [(m.name, d.parameter_size, d.quantization, f"{d.size / 1e6:.1f} MB", d.drafter or "none") for m, d in found]
    typer.echo(table(("name", "parameters", "quantization", "size", "drafter"), rows), nl=False)


def show(name: NameArgument) -> None:
    """Show what a model is: architecture, quantization, context, size, licence, drafter, what it can do."""
    from pilotfish.store.describe import describe
    from pilotfish.store.names import resolve
    from pilotfish.store.verdicts import verdict

    library = _library()
    manifest = library.get(name)
    found = describe(manifest)
    exactness = verdict(library.root, resolve(manifest.source), found.drafter)
    rows = {
        "name": manifest.name, "architecture": found.architecture,
        "parameters": f"{found.parameter_size}, {found.quantization}", "context": f"{found.context} tokens",
        "size": f"{found.size / 1e6:.1f} MB", "drafter": found.drafter or "none",
        "capabilities": ", ".join(found.capabilities), "source": manifest.source,
        "exactness": exactness,
        "license": (manifest.license.strip().splitlines() or ["not given"])[0], "system": manifest.system or "none",
        "parameters set": ", ".join(f"{k} {v}" for k, v in manifest.parameters.items()) or "none",
    }  # fmt: skip
    for key, value in rows.items():
        typer.echo(f"{key:>15}  {value}")


def remove(
    names: Annotated[list[str], typer.Argument(help="Models to forget; checkpoints stay in the cache.")],
) -> None:
    """Forget models."""
    for name in names:
        _library().remove(name)
        typer.echo(f"removed {name}")


def copy(source: NameArgument, destination: Annotated[str, typer.Argument(help="The new name.")]) -> None:
    """Give a model another name."""
    _library().copy(source, destination)
    typer.echo(f"{destination} is {source}")


def create(
    name: Annotated[str, typer.Argument(help="The new model's name.")],
    file: Annotated[Path, typer.Option("-f", "--file", help="A Modelfile.")] = Path("Modelfile"),
    quantize: Annotated[str, typer.Option("--quantize", help="nvfp4, mxfp4, mxfp8, affine4, affine6, affine8.")] = "",
    quantize_draft: Annotated[str, typer.Option("--quantize-draft", help="The same for the drafter.")] = "",
) -> None:
    """Make a model of a Modelfile: FROM, DRAFT, PARAMETER, SYSTEM, TEMPLATE (jinja), MESSAGE, LICENSE."""
    from pilotfish.engine.drafters.gemma4_assistant import AssistantArgs, AssistantModel
    from pilotfish.store.create import create as make
    from pilotfish.store.modelfile import parse

    try:
        wanted = parse(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read the Modelfile {file}: {error}") from error
    make(name, wanted, _library(), lambda status: typer.echo(status, err=True), quantize_to=quantize,
         quantize_draft_to=quantize_draft, assistant_classes=(AssistantModel, AssistantArgs), local=True)  # fmt: skip


def ps() -> None:
    """List the models in a running server's memory."""
    from pilotfish.bench.report import table

    found = _ask("GET", "/api/ps", None)["models"]
    rows = [(m["name"], f"{m['size'] / 1e6:.1f} MB", m["context_length"], m["expires_at"]) for m in found]
    typer.echo(table(("name", "size", "context", "until"), rows), nl=False)


def stop(name: NameArgument) -> None:
    """Unload a model from a running server's memory."""
    _ask("POST", "/api/generate", {"model": name, "keep_alive": 0, "stream": False})
    typer.echo(f"stopped {name}")


def _library() -> Any:
    from pilotfish.store.library import Library

    return Library(settings().models)


def _ask(method: str, path: str, body: dict[str, Any] | None) -> Any:
    """A running server's answer. Raises PilotfishError where there is none, or with what it says."""
    chosen = settings()
    url = f"http://{chosen.host}:{chosen.port}"
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {chosen.api_key}"} if chosen.api_key else {}
    try:
        with urllib.request.urlopen(  # noqa: S310 - our own server
            urllib.request.Request(url + path, data, headers, method=method)  # noqa: S310
        ) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise PilotfishError(json.loads(error.read()).get("error", f"{url} answered {error.code}")) from None
    except OSError:
        raise PilotfishError(f"no server answers on {url}; start one with pilotfish serve") from None


COMMANDS: dict[str, Callable[..., None]] = {
    "pull": pull, "list": list_models, "show": show, "rm": remove, "cp": copy, "create": create, "ps": ps, "stop": stop,
}  # fmt: skip
