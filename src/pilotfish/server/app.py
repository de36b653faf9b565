"""The server as one application: routes of all dialects over one service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

from pilotfish import __version__
from pilotfish.config import Settings
from pilotfish.runtime.service import Service
from pilotfish.server import anthropic, failures, metrics, ollama, ollama_models, openai, openai_models, page, responses
from pilotfish.server.access import Access


def build(settings: Settings, service: Service | None = None) -> FastAPI:
    """The application. Its thread starts with the service and ends with the application."""
    running = service or Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        running.close()

    app = FastAPI(
        title="pilotfish", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        description="Gemma 4 with multi-token prediction, for clients of Ollama, OpenAI and Anthropic.",
    )  # fmt: skip
    app.state.service, app.state.settings = running, settings
    app.add_middleware(Access, settings=settings)
    failures.install(app)
    running.on_first_token = metrics.FIRST_TOKEN.observe
    for module in (ollama, ollama_models, openai, openai_models, responses, anthropic, metrics, page):
        app.include_router(module.router)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def root() -> PlainTextResponse:
        return PlainTextResponse("Ollama is running")

    return app
