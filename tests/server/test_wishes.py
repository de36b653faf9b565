"""Schemas, tools and options that cannot be honoured: the right error in every dialect, and the server goes on."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.servers import Running, events, lines

TURNS = [{"role": "user", "content": "hi"}]
DEEP: dict[str, Any] = {"type": "integer"}
for _ in range(400):
    DEEP = {"type": "array", "items": DEEP}
# Patterns without an end to the states that a text may lead to.
EXPLODING = "^((.|a){1,40}(.|b){1,40}(.|c){1,40}){1,40}z$"


def with_schema(route: str, schema: Any) -> dict[str, Any]:
    if route == "/api/chat":
        return {"messages": TURNS, "format": schema, "stream": False}
    if route == "/v1/chat/completions":
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        return {"messages": TURNS, "response_format": form}
    flat = {"format": {"type": "json_schema", "name": "s", "schema": schema}}
    if route == "/v1/responses":
        return {"input": "hi", "text": flat}
    return {"messages": TURNS, "max_tokens": 200, "output_config": flat}


ROUTES = ["/api/chat", "/v1/chat/completions", "/v1/responses", "/v1/messages"]


def error_of(route: str, body: Any) -> str:
    """The message, and that the body is an error of the route's dialect."""
    if route == "/api/chat":
        return str(body["error"])
    error = body["error"]
    if route == "/v1/messages":
        assert body["type"] == "error"
        assert error["type"] == "invalid_request_error"
    else:
        assert error["type"] == "invalid_request_error"
    return str(error["message"])


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("schema", "why"), [
    ("not a schema", None),
    ({"type": "martian"}, "martian"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"type": "string", "pattern": "(a)\\\\1("}, "regex"),
    ({"type": "string", "pattern": "^(?=a)b$"}, "look-around"),
    ({"$ref": "#/$defs/none"}, "none"),
    (DEEP, None),
])  # fmt: skip
def test_schemas_that_cannot_be_used(server: Running, route: str, schema: Any, why: str | None):
    refused = server.post(route, {"model": "nano", **with_schema(route, schema)})
    assert refused.status_code == 400, refused.text[:300]
    message = error_of(route, refused.json())
    assert why is None or why in message
    assert "Traceback" not in message
    assert server.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_a_pattern_that_explodes_ends_the_answer_and_not_the_server(server: Running, route: str, stream: bool):
    body = {"model": "nano", **with_schema(route, {"type": "string", "pattern": EXPLODING}), "stream": stream}
    answer = server.post(
        route, body | ({"options": {"temperature": 0}} if route == "/api/chat" else {"temperature": 0})
    )
    if not stream:
        assert answer.status_code == 400
        assert "too complex to be followed" in error_of(route, answer.json())
    else:
        assert answer.status_code == 200
        last = (lines(answer) if route == "/api/chat" else events(answer))[-1]
        assert "too complex to be followed" in str(last)
    again = server.post(route, {"model": "nano", **with_schema(route, {"enum": [1]})})
    assert again.status_code == 200


@pytest.mark.parametrize(("route", "fields", "why"), [
    ("/api/chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs must be between 0 and 20"),
    ("/api/chat", {"top_logprobs": 2}, "top_logprobs needs logprobs"),
    ("/api/chat", {"options": {"presence_penalty": 1000}}, "presence penalty is 1000"),
    ("/api/chat", {"options": {"min_tokens": -1}}, "min_tokens"),
    ("/v1/chat/completions", {"logprobs": True, "top_logprobs": -1}, "top_logprobs must be between 0 and 20"),
    ("/v1/chat/completions", {"logit_bias": {"4096": 1}}, "names token 4096, but the vocabulary has 4096"),
    ("/v1/chat/completions", {"logit_bias": {"-1": 1}}, "names token -1"),
    ("/v1/chat/completions", {"logit_bias": {"word": 1}}, "must map token ids to numbers"),
    ("/v1/chat/completions", {"logit_bias": {"5": 1e400}}, "finite"),
    ("/v1/chat/completions", {"repetition_penalty": 0}, "repetition penalty is 0"),
    ("/v1/chat/completions", {"tool_choice": "required"}, "needs that tool"),
    ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": -3}}, "thinking_budget is -3"),
    ("/v1/messages", {"tool_choice": {"type": "perhaps"}}, "tool_choice.type is 'perhaps'"),
])  # fmt: skip
def test_options_out_of_range(server: Running, route: str, fields: dict[str, Any], why: str):
    body = {"model": "nano", "messages": TURNS, "max_tokens": 5, "stream": False, **fields}
    refused = httpx.post(server.url + route, content=json.dumps(body), timeout=60)  # httpx itself refuses infinity
    assert refused.status_code == 400, refused.text
    assert why in error_of(route, refused.json())
