"""Ollama's routes about models: listing, showing, pulling, creating, copying, deleting; version and the like."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from pilotfish import __version__
from pilotfish.engine.drafters.gemma4_assistant import AssistantArgs, AssistantModel
from pilotfish.errors import OptionError
from pilotfish.runtime.models import FOR_EVER
from pilotfish.runtime.service import Service
from pilotfish.runtime.worker import CancelledJobError
from pilotfish.server import failures
from pilotfish.server.bodies import Wire, body_of, described
from pilotfish.server.streams import ndjson
from pilotfish.store.create import blob, check_digest, create, put_blob
from pilotfish.store.describe import Description, describe
from pilotfish.store.library import Manifest, canonical
from pilotfish.store.modelfile import Modelfile, as_modelfile, parameter
from pilotfish.store.pull import Progress, pull

router = APIRouter(prefix="/api", tags=["ollama"], responses=failures.documented(failures.native))

OLLAMA_VERSION = "0.31.0"  # the level of Ollama's API that clients may expect
FOR_EVER_DATE = "2318-01-01T00:00:00.000000Z"


class NameBody(Wire):
    """A model by either name of the field."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
    stream: bool | None = None

    @property
    def wanted(self) -> str:
        """The name. Raises OptionError."""
        if not (self.model or self.name):
            raise OptionError("model is required")
        return self.model or self.name or ""


class CopyBody(Wire):
    """POST /api/copy."""

    source: str
    destination: str


class CreateBody(NameBody):
    """POST /api/create."""

    from_: str | None = None
    files: dict[str, str] | None = None
    draft: str | None = None
    draft_files: dict[str, str] | None = None
    template: str | None = None
    system: str | None = None
    license: str | list[str] | None = None
    parameters: dict[str, Any] | None = None
    messages: list[dict[str, str]] | None = None
    quantize: str | None = None
    draft_quantize: str | None = None
    adapters: dict[str, str] | None = None

    def __init__(self, **fields: Any) -> None:
        super().__init__(**({"from_": fields.pop("from")} if "from" in fields else {}), **fields)


@router.head("/version", include_in_schema=False)
@router.get("/version")
async def version() -> dict[str, str]:
    """Ollama's level, and pilotfish's own version."""
    return {"version": OLLAMA_VERSION, "pilotfish": __version__}


@router.get("/status")
async def status() -> dict[str, Any]:
    """There is no cloud behind this server."""
    return {"cloud": {"disabled": True, "source": "env"}}


@router.head("/tags", include_in_schema=False)
@router.get("/tags")
async def tags(request: Request) -> dict[str, Any]:
    """All models of the library, newest first."""
    service: Service = request.app.state.service
    return {"models": await asyncio.to_thread(lambda: [_entry(m, describe(m)) for m in service.library])}


@router.get("/ps")
async def ps(request: Request) -> dict[str, Any]:
    """Models in memory."""
    service: Service = request.app.state.service
    out = []
    for resident in service.models.residents:
        model = resident.engine.model
        described = describe(resident.manifest)
        entry = _entry(resident.manifest, described)
        expires = FOR_EVER_DATE if resident.expires == FOR_EVER else _date(resident.expires)
        size = {"size": model.nbytes, "size_vram": model.nbytes}
        out.append({**entry, **size, "expires_at": expires, "context_length": model.context or 0})
    return {"models": out}


@router.post("/show", openapi_extra=described(NameBody))
async def show(request: Request, body: Annotated[NameBody, Depends(body_of(NameBody))]) -> dict[str, Any]:
    """Everything about one model."""
    service: Service = request.app.state.service
    manifest = service.library.get(body.wanted)
    found = await asyncio.to_thread(describe, manifest)
    arch = found.architecture
    return {
        "license": manifest.license, "modelfile": as_modelfile(
            manifest.source, manifest.draft, manifest.system, manifest.template, manifest.parameters),
        "parameters": _parameters(manifest.parameters), "template": found.template, "system": manifest.system,
        "messages": manifest.messages, "details": _details(manifest, found),
        "model_info": {
            "general.architecture": arch, "general.parameter_count": found.parameters,
            "general.basename": manifest.name.rpartition(":")[0], f"{arch}.context_length": found.context,
            f"{arch}.embedding_length": found.embedding,
        },
        "capabilities": found.capabilities, "modified_at": manifest.created, "tensors": [],
        "pilotfish": {"drafter": found.drafter or "none", "source": manifest.source},
    }  # fmt: skip


@router.post("/copy", openapi_extra=described(CopyBody))
async def copy(request: Request, body: Annotated[CopyBody, Depends(body_of(CopyBody))]) -> Response:
    """Another name for a model."""
    request.app.state.service.library.copy(body.source, body.destination)
    return Response(status_code=200)


@router.delete("/delete", openapi_extra=described(NameBody))
async def delete(request: Request, body: Annotated[NameBody, Depends(body_of(NameBody))]) -> Response:
    """Forget a name, and unload what is in memory under it."""
    service: Service = request.app.state.service
    service.library.remove(body.wanted)
    await service.unload(body.wanted)
    return Response(status_code=200)


@router.post("/pull", openapi_extra=described(NameBody))
async def pull_model(request: Request, body: Annotated[NameBody, Depends(body_of(NameBody))]) -> Response:
    """Bring a model and its drafter from the hub, with progress."""
    service: Service = request.app.state.service
    name = body.wanted
    canonical(name)
    steps = _steps(lambda report: pull(name, service.library, lambda p: report(_progress(p))))
    return await _streamed(steps, body.stream is not False)


@router.post("/create", openapi_extra=described(CreateBody))
async def create_model(request: Request, body: Annotated[CreateBody, Depends(body_of(CreateBody))]) -> Response:
    """Make a model of another one or of uploaded files."""
    service: Service = request.app.state.service
    if body.adapters:
        raise OptionError("adapters are not supported; merge them into the checkpoint first")
    name, licence = body.wanted, body.license
    if not (body.from_ or body.files):
        raise OptionError("neither 'from' or 'files' was specified")
    for digest in (*(body.files or {}).values(), *(body.draft_files or {}).values()):
        check_digest(digest)
    wanted = Modelfile(
        source=body.from_ or "", draft=body.draft or "", system=body.system or "", template=body.template or "",
        license="\n".join(licence) if isinstance(licence, list) else licence or "",
        parameters=_checked(body.parameters or {}), messages=body.messages or [],
    )  # fmt: skip
    steps = _steps(lambda report: create(
        name, wanted, service.library, lambda status: report({"status": status}), files=body.files,
        draft_files=body.draft_files, quantize_to=body.quantize or "", quantize_draft_to=body.draft_quantize or "",
        assistant_classes=(AssistantModel, AssistantArgs),
    ))  # fmt: skip
    return await _streamed(steps, body.stream is not False)


@router.head("/blobs/{digest}")
async def has_blob(request: Request, digest: str) -> Response:
    """Whether a file was uploaded."""
    there = blob(request.app.state.service.library, digest).is_file()
    return Response(status_code=200 if there else 404)


@router.post("/blobs/{digest}")
async def upload_blob(request: Request, digest: str) -> Response:
    """Store a file under its checksum, piece by piece: shards are large."""
    library = request.app.state.service.library
    if blob(library, digest).is_file():
        return Response(status_code=200)
    library.blobs.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=library.blobs, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            async for chunk in request.stream():
                await asyncio.to_thread(file.write, chunk)
        new = await asyncio.to_thread(put_blob, library, digest, Path(name))
        return Response(status_code=201 if new else 200)
    finally:
        Path(name).unlink(missing_ok=True)


@router.post("/embed")
@router.post("/embeddings")
async def embed() -> None:
    """Refused: these are chat models."""
    raise OptionError("this server has no embedding models")


@router.api_route("/{rest:path}", methods=["GET", "POST", "DELETE", "PUT"], include_in_schema=False)
async def unknown(rest: str) -> Response:
    """What this server does not have: pushing, accounts, experiments."""
    return JSONResponse({"error": f"/api/{rest} is not available"}, 404)


def _entry(manifest: Manifest, found: Description) -> dict[str, Any]:
    return {
        "name": manifest.name, "model": manifest.name, "modified_at": manifest.created, "size": found.size,
        "digest": manifest.digest, "details": _details(manifest, found), "capabilities": found.capabilities,
    }  # fmt: skip


def _details(manifest: Manifest, found: Description) -> dict[str, Any]:
    return {
        "parent_model": manifest.parent, "format": "safetensors", "family": found.architecture,
        "families": [found.architecture], "parameter_size": found.parameter_size,
        "quantization_level": found.quantization, "context_length": found.context,
    }  # fmt: skip


def _parameters(parameters: dict[str, Any]) -> str:
    """Lines that clients split at blanks; strings are quoted and stay on their line."""
    pairs = [(k, v) for k, vs in parameters.items() for v in (vs if isinstance(vs, list) else [vs])]
    return "\n".join(f"{k:<30} {json.dumps(v) if isinstance(v, str) else v}" for k, v in pairs)


def _checked(parameters: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in parameters.items():
        if name == "stop":
            out["stop"] = [str(v) for v in (value if isinstance(value, list) else [value])]
        else:
            out[name] = parameter(name, str(value))
    return out


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _progress(step: Progress) -> dict[str, Any]:
    if not step.digest:
        return {"status": step.status}
    line: dict[str, Any] = {"status": step.status, "digest": step.digest, "total": step.total}
    return line | ({"completed": step.completed} if step.completed else {})


async def _steps(work: Callable[[Callable[[dict[str, Any]], None]], Any]) -> AsyncGenerator[dict[str, Any]]:
    """What work on another thread reports; leaving the generator stops it at its next report."""
    loop = asyncio.get_running_loop()
    reports: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    left = False

    def report(value: dict[str, Any]) -> None:
        if left:
            raise CancelledJobError("the client has left")
        loop.call_soon_threadsafe(reports.put_nowait, value)

    task = asyncio.create_task(asyncio.to_thread(work, report))
    task.add_done_callback(lambda _: reports.put_nowait(None))
    try:
        while (value := await reports.get()) is not None:
            yield value
        task.result()
    finally:
        left = True
        if not task.done():
            task.add_done_callback(lambda t: t.exception())  # it ends by itself; nobody is left to tell


async def _streamed(steps: AsyncGenerator[dict[str, Any]], streamed: bool) -> Response:
    """As lines, or the last one alone. What fails before the second line has a status of its own."""
    if not streamed:
        last: dict[str, Any] = {}
        async for step in steps:
            last = step
        return JSONResponse(last)
    first = await anext(steps)
    try:
        second = await anext(steps)
    except StopAsyncIteration:
        second = None

    async def lines() -> AsyncGenerator[dict[str, Any]]:
        try:
            yield first
            if second is not None:
                yield second
            async for value in steps:
                yield value
        finally:
            await steps.aclose()

    return ndjson(lines(), failures.native)
