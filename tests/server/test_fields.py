"""The table of request fields, walked: what it says is what each route does, with drafting on as off."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from pilotfish.server.anthropic import CountBody, MessagesBody
from pilotfish.server.fields import BY_ROUTE, HONOURED, NO_EFFECT, OPTIONS
from pilotfish.server.ollama import ChatBody, GenerateBody
from pilotfish.server.openai import ChatCompletion, Completion
from pilotfish.server.responses import ResponsesBody
from tests.servers import Running

BODIES: dict[str, type[BaseModel]] = {
    "/api/chat": ChatBody, "/api/generate": GenerateBody, "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion, "/v1/responses": ResponsesBody, "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": CountBody,
}  # fmt: skip
DECODING = [route for route in BODIES if not route.endswith("count_tokens")]
TURNS = [{"role": "user", "content": "hi there"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
FLAT = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
NESTED = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
ALL_BUT_GREEDY = {"temperature": 1, "top_p": 1e-6}  # these routes take no seed
OPTIONS_OF_ALL = {"num_predict": 24, "seed": 4, "temperature": 1, "presence_penalty": 0.5}
BASE: dict[str, dict[str, Any]] = {
    "/api/chat": {"messages": TURNS, "stream": False, "options": OPTIONS_OF_ALL},
    "/api/generate": {"prompt": "hi there", "stream": False, "options": OPTIONS_OF_ALL},
    "/v1/chat/completions": {"messages": TURNS, "max_tokens": 24, "seed": 4, "temperature": 1},
    "/v1/completions": {"prompt": "hi there", "max_tokens": 24, "seed": 4, "temperature": 1},
    "/v1/responses": {"input": "hi there", "max_output_tokens": 24, **ALL_BUT_GREEDY},
    "/v1/messages": {"messages": TURNS, "max_tokens": 24, **ALL_BUT_GREEDY},
}  # fmt: skip
# A value of every honoured field that asks for something; by route where routes differ.
OPTION_VALUES: dict[str, Any] = {
    "temperature": 0.7, "top_p": 0.8, "min_p": 0.05, "top_k": 20, "seed": 9, "num_predict": 7, "num_ctx": 200,
    "stop": ["o", "t"], "draft_num_predict": 2, "repeat_penalty": 1.3, "repetition_penalty": 1.3,
    "presence_penalty": 2, "frequency_penalty": 0.9, "repeat_last_n": 0, "min_tokens": 20, "ignore_eos": True,
}  # fmt: skip
VALUES: dict[str, Any] = {
    "think": False, "format": SCHEMA, "keep_alive": "3m", "logprobs": True, "top_logprobs": 3, "tools": [TOOL],
    "template": "{% for m in messages %}{{ m.content }}{% endfor %}", "system": "Be brief.", "raw": True,
    "context": [2, 105], "_debug_render_only": True, "stream_options": {"include_usage": True}, "max_tokens": 7,
    "max_completion_tokens": 7, "n": 2, "logit_bias": {"300": 50, "301": -5}, "options": {"top_k": 5}, "echo": True,
    "tool_choice": "required", "parallel_tool_calls": False, "response_format": NESTED, "reasoning": {"effort": "none"},
    "reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False}, "instructions": "Be brief.",
    "max_output_tokens": 7, "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}},
    "thinking": {"type": "enabled", "budget_tokens": 9}, "output_config": {"format": {"type": "json_schema",
    "schema": SCHEMA}}, "stop_sequences": ["o", "t"], **OPTION_VALUES,
}  # fmt: skip
PER_ROUTE: dict[str, dict[str, Any]] = {
    "/v1/completions": {"logprobs": 3},
    "/v1/responses": {"tools": [FLAT], "top_p": 1e-5},
    "/v1/messages": {
        "tools": [{"name": "look", "input_schema": FLAT["parameters"]}],
        "tool_choice": {"type": "any"},
        "top_p": 1e-5,
    },
}
# What a field needs beside it to mean anything.
NEEDED: dict[str, dict[str, Any]] = {"top_logprobs": {"logprobs": True}, "min_tokens": {"logit_bias": {"1": 99}},
                                     "ignore_eos": {"logit_bias": {"1": 99}}}  # fmt: skip
ALWAYS = {"model", "messages", "prompt", "input", "stream"}  # are in every request of this walk
# What an answer need not show: how long the model stays, how much is drafted, the only call that was made, an end that
# does not come, what a greedy choice leaves out, thinking that is not done.
UNSEEN = {"keep_alive", "stream_options", "draft_num_predict", "num_ctx", "parallel_tool_calls"}
UNSEEN_ON = {"/api/": {"min_tokens", "ignore_eos"}, "/v1/responses": {"temperature", "top_p"},
             "/v1/messages": {"temperature", "top_p", "top_k", "thinking"}}  # fmt: skip
NAMED_LIKE_PYTHON = {"debug_render_only": "_debug_render_only"}


@pytest.mark.parametrize("route", BODIES)
def test_the_table_has_every_field_that_a_route_reads(route: str):
    read = {NAMED_LIKE_PYTHON.get(name, name) for name in BODIES[route].model_fields}
    honoured = {name for name, field in BY_ROUTE[route].items() if field == HONOURED}
    assert read == honoured


def value_of(route: str, name: str) -> Any:
    return PER_ROUTE.get(route, {}).get(name, VALUES.get(name))


def with_depth(route: str, body: dict[str, Any], depth: int) -> dict[str, Any]:
    if route.startswith("/api/"):
        return {**body, "options": {**body["options"], "draft_num_predict": depth}}
    return {**body, "draft_num_predict": depth}


def essence(value: Any) -> Any:
    """An answer without what differs from run to run: ids, times, and what drafting did."""
    if isinstance(value, list):
        return [essence(v) for v in value]
    if not isinstance(value, dict):
        return value
    gone = {"id", "created", "created_at", "pilotfish", "item_id", "call_id", "prompt_tokens_details", "load_duration",
            "completion_tokens_details", "input_tokens_details", "output_tokens_details", "cache_read_input_tokens",
            "input_tokens", "completed_at"}  # fmt: skip
    return {k: essence(v) for k, v in value.items() if k not in gone and not k.endswith("duration")}


def cases() -> list[Any]:
    out = []
    for route in DECODING:
        out += [pytest.param(route, {name: value_of(route, name)}, id=f"{route} {name}")
                for name, field in BY_ROUTE[route].items() if field == HONOURED and name not in ALWAYS]  # fmt: skip
        if route.startswith("/api/"):
            out += [pytest.param(route, {"options": {name: OPTION_VALUES[name]}}, id=f"{route} options.{name}")
                    for name, field in OPTIONS.items() if field == HONOURED]  # fmt: skip
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("route", "asked"), cases())
def test_a_field_that_is_honoured_gives_the_same_answer_with_drafting_on_as_off(
    agent: Running, route: str, asked: dict[str, Any]
):
    (name,) = asked
    assert asked[name] is not None, f"no value of {name} to walk with"
    body = {"model": "agent", **BASE[route]}
    body |= NEEDED.get(name, {})
    if name in ("tool_choice", "parallel_tool_calls"):
        body["tools"] = value_of(route, "tools")
    if name == "raw":
        asked = {"raw": True}
    if name == "max_completion_tokens":
        del body["max_tokens"]
    without = body
    if "options" in body:
        body = {**body, **asked, "options": {**body["options"], **asked.get("options", {})}}
    else:
        body = {**body, **asked}
    answers = [agent.post(route, with_depth(route, body, depth)) for depth in (0, 5)]
    assert [a.status_code for a in answers] == [200, 200], answers[0].text
    assert essence(answers[0].json()) == essence(answers[1].json())
    unseen = UNSEEN.union(*(names for prefix, names in UNSEEN_ON.items() if route.startswith(prefix)))
    if not {name, *asked.get("options", {})} & unseen:
        plain = agent.post(route, with_depth(route, without, 0))
        assert essence(plain.json()) != essence(answers[0].json()), "it changed nothing"


@pytest.mark.parametrize(("route", "name"), [
    (route, name) for route in DECODING for name, field in BY_ROUTE[route].items() if field.refusal
])  # fmt: skip
def test_a_field_that_is_refused_says_so_in_its_dialect(agent: Running, route: str, name: str):
    field = BY_ROUTE[route][name]
    refused = agent.post(route, {"model": "agent", **BASE[route], name: {"some": "thing"}})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error if isinstance(error, str) else error["message"]) == field.refusal
    for nothing in (None, *field.neutral):
        assert agent.post(route, {"model": "agent", **BASE[route], name: nothing}).status_code == 200


@pytest.mark.parametrize("name", [name for name, field in OPTIONS.items() if field.refusal])
def test_an_option_that_is_refused_says_so(agent: Running, name: str):
    body = {"model": "agent", **BASE["/api/chat"]}
    refused = agent.post("/api/chat", {**body, "options": {**OPTIONS_OF_ALL, name: 0.5}})
    assert (refused.status_code, refused.json()) == (400, {"error": OPTIONS[name].refusal})
    neutral = {**OPTIONS_OF_ALL, name: (*OPTIONS[name].neutral, 0)[0]}
    assert agent.post("/api/chat", {**body, "options": neutral}).status_code == 200


@pytest.mark.parametrize("route", DECODING)
def test_fields_without_effect_change_nothing(agent: Running, route: str):
    body = {"model": "agent", **BASE[route]}
    without = {name: {"some": "thing"} for name, field in BY_ROUTE[route].items() if field == NO_EFFECT}
    more = {**body, **without, "never_heard_of": 1}
    if "options" in body:
        more["options"] = {**body["options"], **dict.fromkeys((n for n, f in OPTIONS.items() if f == NO_EFFECT), 1)}
    answers = [agent.post(route, b) for b in (body, more)]
    assert [a.status_code for a in answers] == [200, 200], answers[1].text
    assert essence(answers[0].json()) == essence(answers[1].json())
