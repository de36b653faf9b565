"""The OpenAPI description as a page that needs nothing from anywhere else."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

router = APIRouter()

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}code{font-size:.9em}"
    "h2{margin-top:2rem}summary{cursor:pointer}pre{background:#f4f4f4;padding:.7rem;overflow:auto;font-size:.8em}"
    "@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}pre{background:#222}}"
)


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """All routes, with what their bodies hold."""
    description = request.app.openapi()
    routes = [
        (path, method, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]
    parts = []
    for tag in dict.fromkeys((o.get("tags") or [""])[0] for *_, o in routes):
        parts.append(f"<h2>{escape(tag)}</h2>")
        parts += [_route(*r) for r in routes if (r[2].get("tags") or [""])[0] == tag]
    title = escape(f"{description['info']['title']} {description['info']['version']}")
    intro = escape(description["info"]["description"])
    return HTMLResponse(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        f"<p>{intro} <a href=/openapi.json>openapi.json</a></p>{''.join(parts)}</html>"
    )


def _route(path: str, method: str, operation: dict[str, Any]) -> str:
    what = escape(operation.get("description") or operation.get("summary") or "")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    shown = f"<details><summary>body</summary><pre>{escape(json.dumps(body, indent=1))}</pre></details>" if body else ""
    return f"<p><code>{method.upper()} {escape(path)}</code> {what}</p>{shown}"
