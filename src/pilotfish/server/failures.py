"""Errors as each dialect words them, with the right status."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from pilotfish.errors import BusyError, ContextOverflowError, ModelNotFoundError, PilotfishError
from pilotfish.runtime.worker import CancelledJobError
from pilotfish.server.bodies import BodyTooLargeError

log = logging.getLogger("pilotfish")

CANCELLED = 499


def status_of(error: Exception) -> int:
    """The status of an error. What would fail again is never a 5xx: clients retry those."""
    if isinstance(error, ModelNotFoundError):
        return 404
    if isinstance(error, BusyError):
        return 503
    if isinstance(error, CancelledJobError):
        return CANCELLED
    if isinstance(error, BodyTooLargeError):
        return 413
    return 400 if isinstance(error, PilotfishError) else 500


def message_of(error: Exception) -> str:
    """What the client is told; nothing of the inside of an error that nobody foresaw."""
    if isinstance(error, PilotfishError):
        return " ".join(str(error).split())
    return "internal error; the server's log has more"


def native(error: Exception) -> dict[str, Any]:
    """Ollama's error body."""
    return {"error": message_of(error)}


def openai(error: Exception) -> dict[str, Any]:
    """OpenAI's error body."""
    status = status_of(error)
    code: str | None = None
    if isinstance(error, ContextOverflowError):
        code = "context_length_exceeded"
    elif status == 404:
        code = "model_not_found"
    kind = {404: "not_found_error", 500: "api_error", 503: "api_error"}.get(status, "invalid_request_error")
    return {"error": {"message": message_of(error), "type": kind, "param": None, "code": code}}


def anthropic(error: Exception) -> dict[str, Any]:
    """Anthropic's error body."""
    status = status_of(error)
    message = message_of(error)
    if isinstance(error, ContextOverflowError):
        message = f"prompt is too long: {error.tokens} tokens > {error.context} maximum"
    kinds = {404: "not_found_error", 413: "request_too_large", 500: "api_error", 503: "overloaded_error"}
    kind = kinds.get(status, "invalid_request_error")
    return {
        "type": "error", "error": {"type": kind, "message": message}, "request_id": f"req_{uuid.uuid4().hex[:24]}"
    }  # fmt: skip


def body_for(path: str, error: Exception) -> dict[str, Any]:
    """The error body of the dialect that a path belongs to."""
    if path.startswith("/v1/messages"):
        return anthropic(error)
    return openai(error) if path.startswith("/v1/") else native(error)


def documented(body: Callable[[Exception], dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI page: the statuses that a route may refuse with, with an example of the body."""
    meanings = {400: "The request cannot be honoured.", 401: "The API key is missing or wrong.", 403: "A foreign host.",
                404: "There is no such model.", 413: "The body is too large.", 500: "An internal error.",
                503: "As many requests wait as may."}  # fmt: skip
    example = {"application/json": {"example": body(PilotfishError("what is wrong, and the way out"))}}
    return {status: {"description": meaning, "content": example} for status, meaning in meanings.items()}


def install(app: FastAPI) -> None:
    """Answer every error of a request in its own dialect."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        status = status_of(error)
        headers = {"x-should-retry": "false"} if status == 500 else {}
        if status == 500:
            log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse(body_for(request.url.path, error), status, headers)

    async def routing(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    app.add_exception_handler(PilotfishError, answer)
    app.add_exception_handler(Exception, answer)
    app.add_exception_handler(HTTPException, routing)
