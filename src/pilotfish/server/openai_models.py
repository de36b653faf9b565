"""/v1/models, for OpenAI's clients and Anthropic's at once; and what this server does not do."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request

from pilotfish.errors import OptionError
from pilotfish.runtime.service import Service
from pilotfish.server import failures
from pilotfish.store.library import Manifest

router = APIRouter(prefix="/v1", tags=["openai"], responses=failures.documented(failures.openai))


@router.get("/models")
async def models(request: Request) -> dict[str, Any]:
    """All models of the library, newest first."""
    service: Service = request.app.state.service
    found = [_entry(m.name, m) for m in service.library]
    ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else {"first_id": None, "last_id": None}
    return {"object": "list", "data": found, "has_more": False, **ends}


@router.get("/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """One model."""
    service: Service = request.app.state.service
    return _entry(name, service.library.get(name))


@router.post("/embeddings")
async def embeddings() -> None:
    """Refused: these are chat models."""
    raise OptionError("this server has no embedding models")


def _entry(name: str, manifest: Manifest) -> dict[str, Any]:
    created = manifest.created or "1970-01-01T00:00:00.000000Z"
    return {
        "id": name, "object": "model", "created": int(datetime.fromisoformat(created).timestamp()),
        "owned_by": "library", "type": "model", "display_name": name, "created_at": created,
    }  # fmt: skip
