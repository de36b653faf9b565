"""Who may talk to the server: Host and Origin checks, CORS, the bearer token."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pilotfish.config import Settings
from pilotfish.errors import OptionError
from pilotfish.server.failures import body_for

DEFAULT_ORIGINS = (
    *(f"{scheme}://{host}{port}" for scheme in ("http", "https") for host in ("localhost", "127.0.0.1", "0.0.0.0")  # noqa: S104
      for port in ("", ":*")),
    "app://*", "file://*", "tauri://*", "vscode-webview://*", "vscode-file://*",
)  # fmt: skip
HEADERS = (
    "Authorization", "Content-Type", "User-Agent", "Accept", "X-Requested-With", "OpenAI-Beta", "x-api-key",
    "anthropic-version", "anthropic-beta", "anthropic-dangerous-direct-browser-access", "x-stainless-arch",
    "x-stainless-async", "x-stainless-custom-poll-interval", "x-stainless-helper-method", "x-stainless-lang",
    "x-stainless-os", "x-stainless-package-version", "x-stainless-poll-helper", "x-stainless-retry-count",
    "x-stainless-runtime", "x-stainless-runtime-version", "x-stainless-timeout",
)  # fmt: skip
METHODS = "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"
LOCAL_NAMES = (".localhost", ".local", ".internal")


class Access:
    """A middleware: refuses foreign hosts and origins, answers preflights, checks the token."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._key = settings.api_key
        self._loopback = _is_loopback(settings.host)
        patterns = (*settings.origins, *DEFAULT_ORIGINS)
        self._origins = re.compile("|".join(re.escape(p).replace(r"\*", ".*") for p in patterns))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refused = self._refusal(request)
        if refused is not None:
            await refused(scope, receive, send)
            return
        origin = request.headers.get("origin")

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start" and origin is not None:
                headers = MutableHeaders(scope=message)
                headers["Access-Control-Allow-Origin"] = origin
                headers.add_vary_header("Origin")
            await send(message)

        await self._app(scope, receive, send_allowed)

    def _refusal(self, request: Request) -> Response | None:
        """The answer to a request that goes no further."""
        if self._loopback and not _is_own(request.headers.get("host", "")):
            return Response(status_code=403)  # a foreign name that resolves to this machine
        origin = request.headers.get("origin")
        if origin is not None and not self._origins.fullmatch(origin):
            return Response(status_code=403)
        if request.method == "OPTIONS" and origin is not None:
            return Response(status_code=204, headers=self._allowed(origin))
        if self._key and not self._has_key(request):
            return JSONResponse(body_for(request.url.path, OptionError("the API key is missing or wrong")), 401)
        return None

    def _allowed(self, origin: str) -> dict[str, str]:
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": ", ".join(HEADERS),
            "Access-Control-Max-Age": "43200",
            "Vary": "Origin",
        }

    def _has_key(self, request: Request) -> bool:
        if request.url.path in ("/", "/health"):
            return True
        given = request.headers.get("x-api-key", "")
        bearer = request.headers.get("authorization", "")
        candidates = [given, bearer.removeprefix("Bearer ").removeprefix("bearer ")]
        return any(hmac.compare_digest(c.encode(), (self._key or "").encode()) for c in candidates)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_own(header: str) -> bool:
    """Whether a Host header names this machine or its private network."""
    host = header.rsplit(":", 1)[0] if re.search(r":\d*$", header) and not header.endswith("]") else header
    host = host.strip("[]").lower().rstrip(".")
    if host in ("", "localhost", socket.gethostname().lower()) or host.endswith(LOCAL_NAMES):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_private or address.is_unspecified
