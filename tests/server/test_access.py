"""Who may talk to the server."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import httpx
import pytest
import zstandard

from tests.servers import Running, pilotfish_serve, start, stop

CHAT = {"model": "nano", "messages": [{"role": "user", "content": "x"}], "stream": False, "options": {"num_predict": 1}}


@pytest.mark.parametrize(("host", "status"), [
    ("localhost:11434", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("mac.local", 200), ("192.168.1.4:11434", 200),
    ("evil.example", 403), ("evil.example:11434", 403), ("8.8.8.8", 403),
])  # fmt: skip
def test_a_foreign_name_for_this_machine_is_refused(server: Running, host: str, status: int):
    assert server.get("/api/version", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost", True),
        ("http://localhost:3000", True),
        ("https://127.0.0.1:8443", True),
        ("app://obsidian", True),
        ("vscode-webview://abc", True),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("null", False),
    ],
)
def test_origins(server: Running, origin: str, allowed: bool):
    answer = server.get("/api/version", headers={"Origin": origin})
    preflight = httpx.options(
        server.url + "/v1/messages",
        headers={
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "x-api-key",
        },
    )

    assert answer.status_code == (200 if allowed else 403)
    assert preflight.status_code == (204 if allowed else 403)
    if allowed:
        assert answer.headers["access-control-allow-origin"] == origin
        assert "x-api-key" in preflight.headers["access-control-allow-headers"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(pilotfish_serve, tmp_path_factory.mktemp("library"), PILOTFISH_API_KEY="secret",
                    OLLAMA_ORIGINS="https://*.example", PILOTFISH_MAX_BODY_BYTES="2000")  # fmt: skip
    yield running
    stop(running)


@pytest.mark.parametrize(("headers", "status"), [
    ({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": "Bearer secret"}, 200),
    ({"x-api-key": "secret"}, 200),
])  # fmt: skip
def test_a_key_that_the_operator_set_is_asked_for(guarded: Running, headers: dict, status: int):
    assert guarded.post("/api/chat", CHAT, headers=headers).status_code == status
    assert guarded.get("/health").status_code == 200


def test_without_a_key_any_is_accepted(server: Running):
    assert server.post("/api/chat", CHAT, headers={"Authorization": "Bearer anything"}).status_code == 200


def test_more_origins_can_be_allowed(guarded: Running):
    headers = {"Origin": "https://my.example", "x-api-key": "secret"}
    assert guarded.get("/api/version", headers=headers).status_code == 200


def test_a_body_beyond_the_limit_is_refused_also_when_it_is_compressed(guarded: Running):
    large = json.dumps({**CHAT, "padding": "x" * 5000}).encode()
    headers = {"x-api-key": "secret"}
    assert httpx.post(guarded.url + "/api/chat", content=large, headers=headers).status_code == 413
    for kind, packed in (("gzip", gzip.compress(large)), ("zstd", zstandard.compress(large))):
        answer = httpx.post(guarded.url + "/api/chat", content=packed, headers={**headers, "Content-Encoding": kind})
        assert answer.status_code == 413
        assert "larger than 2000 bytes" in answer.json()["error"]


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_compressed_bodies_are_read(server: Running, kind: str):
    data = json.dumps(CHAT).encode()
    packed = gzip.compress(data) if kind == "gzip" else zstandard.compress(data)
    answer = httpx.post(server.url + "/api/chat", content=packed, headers={"Content-Encoding": kind}, timeout=60)
    assert answer.status_code == 200
    broken = httpx.post(server.url + "/api/chat", content=b"nonsense", headers={"Content-Encoding": kind})
    assert broken.status_code == 400


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses",
                                  "/v1/messages/count_tokens", "/api/show", "/api/generate"])  # fmt: skip
def test_every_route_reads_json_under_any_type(server: Running, path: str):
    body = {**CHAT, "input" if path == "/v1/responses" else "prompt": "x", "max_tokens": 1,
            "max_output_tokens": 1}  # fmt: skip
    for kind in ("application/x-www-form-urlencoded", "text/plain"):
        answer = httpx.post(server.url + path, content=json.dumps(body), headers={"Content-Type": kind}, timeout=60)
        assert answer.status_code == 200, answer.text


def test_the_description_is_a_page_without_foreign_parts(server: Running):
    page = server.get("/docs").text
    assert "POST /v1/chat/completions" in page
    assert "http" not in page.replace("http-equiv", "")


def test_metrics_and_the_description_are_there(server: Running):
    server.post("/api/chat", CHAT)
    text = server.get("/metrics").text
    assert "pilotfish_tokens_total" in text
    assert "pilotfish_queue_waiting 0.0" in text
    assert 'pilotfish_time_to_first_token_seconds_bucket{le="+Inf"}' in text
    paths = server.get("/openapi.json").json()["paths"]
    assert {"/api/chat", "/api/generate", "/v1/chat/completions", "/v1/responses", "/v1/messages"} <= set(paths)
    assert "messages" in json.dumps(paths["/api/chat"]["post"]["requestBody"])


@pytest.mark.parametrize("digest", ["sha256:" + "0" * 63, "md5:1", "sha256:../../../etc/passwd", "sha256-" + "0" * 64])
def test_a_blob_needs_a_digest(server: Running, digest: str):
    answer = httpx.post(server.url + f"/api/blobs/{digest}", content=b"x")
    assert answer.status_code in (400, 404)
