"""OpenAI's routes, and Anthropic's, without their clients: shapes that the clients do not check."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pilotfish.server.efforts import thinking_of
from tests.servers import Running, events

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def test_a_stream_says_what_the_whole_answer_says(server: Running):
    body = {"model": "nano", "messages": HELLO, "max_tokens": 9, "seed": 5, "temperature": 1}
    whole = server.post("/v1/chat/completions", body).json()
    chunks = events(
        server.post("/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
    )

    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len({c["id"] for c in chunks}) == len({c["created"] for c in chunks}) == 1
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    usage = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [chunks[-1]["usage"][u] for u in usage] == [whole["usage"][u] for u in usage]
    without = events(server.post("/v1/chat/completions", {**body, "stream": True}))
    assert not any("usage" in c for c in without)


@pytest.mark.parametrize("drafts", [0, 8])
def test_the_token_limit_ends_all_dialects_alike(scripted: Running, drafts: int):
    extra = {"draft_num_predict": drafts}
    native = scripted.post("/api/chat", {"model": "scripted", "messages": HELLO, "stream": False,
                                       "options": {"num_predict": 5, **extra}}).json()  # fmt: skip
    chat = scripted.post(
        "/v1/chat/completions", {"model": "scripted", "messages": HELLO, "max_completion_tokens": 5, **extra}
    ).json()
    response = scripted.post(
        "/v1/responses", {"model": "scripted", "input": "hello", "max_output_tokens": 5, **extra}
    ).json()
    message = scripted.post("/v1/messages", {"model": "scripted", "messages": HELLO, "max_tokens": 5, **extra}).json()

    assert (native["done_reason"], native["eval_count"]) == ("length", 5)
    assert (chat["choices"][0]["finish_reason"], chat["usage"]["completion_tokens"]) == ("length", 5)
    assert (response["status"], response["usage"]["output_tokens"]) == ("incomplete", 5)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 5)


def test_a_seed_gives_the_same_text_on_all_routes_with_drafting_on_and_off(server: Running):
    seeded = {"seed": 3, "temperature": 1.0}
    texts = set()
    for drafts in (0, 8):
        options = {**seeded, "num_predict": 10, "draft_num_predict": drafts}
        texts.add(server.post("/api/chat", {"model": "nano", "messages": HELLO, "stream": False, "options": options})
                  .json()["message"]["content"])  # fmt: skip
        body = {"model": "nano", "messages": HELLO, "max_tokens": 10, "draft_num_predict": drafts, **seeded}
        texts.add(server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"])
    assert len(texts) == 1


def test_tool_calls_stream_whole_with_their_arguments_as_a_string(scripted: Running):
    body = {"model": "scripted", "messages": [{"role": "user", "content": "weather both"}], "tools": [WEATHER],
            "stream": True, "reasoning_effort": "none"}  # fmt: skip
    chunks = events(scripted.post("/v1/chat/completions", body))
    deltas = [c["choices"][0]["delta"] for c in chunks]
    calls = [call for d in deltas for call in d.get("tool_calls", [])]

    assert [c["index"] for c in calls] == [0, 1]
    assert len({c["id"] for c in calls}) == 2
    assert [json.loads(c["function"]["arguments"])["city"] for c in calls] == ["Paris", 'Rome {x}, "y"']
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Paris", "days": 2, "units": {"metric": True}}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert "".join(d.get("content") or "" for d in deltas) == "Looking."


def test_a_broken_call_is_text_and_no_marker_leaks(scripted: Running):
    message = scripted.post(
        "/v1/chat/completions",
        {
            "model": "scripted",
            "tools": [WEATHER],
            "reasoning_effort": "none",
            "messages": [{"role": "user", "content": "broken call"}],
        },
    ).json()
    assert message["choices"][0]["message"]["content"] == "Well: call:get_weather{city:"
    assert message["choices"][0]["finish_reason"] == "stop"


def test_reasoning_has_both_names_and_never_comes_with_content(scripted: Running):
    deltas = [
        c["choices"][0]["delta"]
        for c in events(scripted.post("/v1/chat/completions", {"model": "scripted", "messages": HELLO, "stream": True}))
    ]
    thoughts = [d for d in deltas if "reasoning" in d]
    assert (
        "".join(d["reasoning"] for d in thoughts)
        == "".join(d["reasoning_content"] for d in thoughts)
        == "Let me greet.\n"
    )
    assert not any(d.get("content") for d in thoughts)


def test_tokens_of_thinking_are_counted(scripted: Running):
    def counted(effort: str) -> tuple[int, int]:
        body = {"model": "scripted", "messages": HELLO, "reasoning_effort": effort}
        usage = scripted.post("/v1/chat/completions", body).json()["usage"]
        return usage["completion_tokens_details"]["reasoning_tokens"], usage["completion_tokens"]

    thinking, everything = counted("high")
    none, answer = counted("none")
    assert none == 0
    assert thinking == everything - answer > 10


@pytest.mark.parametrize(("path", "fields"), [
    ("/api/chat", {"messages": HELLO, "think": "much"}),
    ("/v1/chat/completions", {"messages": HELLO, "reasoning_effort": "much"}),
    ("/v1/responses", {"input": "hi", "reasoning": {"effort": "much"}}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 5, "output_config": {"effort": "much"}}),
])  # fmt: skip
def test_efforts_that_nobody_knows_are_refused(scripted: Running, path: str, fields: dict[str, Any]):
    refused = scripted.post(path, {"model": "scripted", **fields})
    assert refused.status_code == 400
    assert "'much'; it must be one of none, minimal, low, medium, high" in refused.text


def test_efforts_are_limits_in_tokens():
    assert thinking_of("low", "think") == (None, 1024)
    assert thinking_of("max", "think") == thinking_of(None, "think") == (None, None)
    assert thinking_of("none", "think") == (False, None)
    assert thinking_of(True, "think") == (True, None)


def test_a_budget_ends_thinking(scripted: Running):
    body = {
        "model": "scripted",
        "messages": HELLO,
        "max_tokens": 60,
        "thinking": {"type": "enabled", "budget_tokens": 14},  # tokens are bytes here
    }
    thought, *_ = scripted.post("/v1/messages", body).json()["content"]
    assert thought["type"] == "thinking"
    assert len(thought["thinking"]) < len("Let me greet.")


def test_tools_can_be_hidden(scripted: Running):
    body = {"model": "scripted", "messages": [{"role": "user", "content": "weather"}], "tools": [WEATHER]}
    hidden = scripted.post("/v1/chat/completions", {**body, "tool_choice": "none"}).json()["choices"][0]
    assert "tool_calls" not in hidden["message"]


PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("depth", [0, 4])
@pytest.mark.parametrize(("choice", "names"), [
    ("required", {"ping"}), ({"type": "function", "function": {"name": "ping"}}, {"ping"}),
    ({"type": "function", "name": "ping"}, {"ping"}),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "ping"}}]}}, {"ping"}),
])  # fmt: skip
def test_a_call_can_be_forced(scripted: Running, choice: Any, names: set[str], depth: int):
    # The script greets, and never calls anything.
    body = {"model": "scripted", "messages": HELLO, "tools": [PING], "tool_choice": choice, "draft_num_predict": depth,
            "parallel_tool_calls": False}  # fmt: skip
    answer = scripted.post("/v1/chat/completions", body).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert {c["function"]["name"] for c in answer["message"]["tool_calls"]} == names
    assert json.loads(answer["message"]["tool_calls"][0]["function"]["arguments"]) == {}
    flat = [{"type": "function", "name": "ping", "parameters": {"type": "object", "properties": {}}}]
    item = scripted.post("/v1/responses", {"model": "scripted", "input": "hi", "tools": flat, "tool_choice": choice,
                                           "parallel_tool_calls": False}).json()["output"][-1]  # fmt: skip
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "ping", "{}")


def test_parallel_calls_can_be_forbidden(scripted: Running):
    body = {"model": "scripted", "messages": [{"role": "user", "content": "both weather"}], "tools": [WEATHER]}
    both = scripted.post("/v1/chat/completions", body).json()["choices"][0]["message"]["tool_calls"]
    one = scripted.post("/v1/chat/completions", {**body, "parallel_tool_calls": False}).json()["choices"][0]
    assert (len(both), len(one["message"]["tool_calls"])) == (2, 1)
    assert one["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(("fields", "why"), [
    ({"tool_choice": "required"}, "needs that tool, or any, among the tools"),
    ({"tool_choice": {"type": "function", "function": {"name": "fly"}}, "tools": [PING]}, "'fly' needs that tool"),
    ({"tool_choice": {"type": "function"}, "tools": [PING]}, "needs the name of a function"),
    ({"tool_choice": "perhaps", "tools": [PING]}, "must be auto, none, required or a function by name"),
    ({"tool_choice": "required", "tools": [PING], "response_format": {"type": "json_object"}}, "contradict each other"),
    ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "a b"}}]}, "'a b' cannot be"),
])  # fmt: skip
def test_choices_that_cannot_be_made_are_refused(scripted: Running, fields: dict[str, Any], why: str):
    refused = scripted.post("/v1/chat/completions", {"model": "scripted", "messages": HELLO, **fields})
    assert refused.status_code == 400
    assert why in refused.json()["error"]["message"]


def test_completions_wrap_the_prompt_or_take_ids(server: Running):
    body = {"model": "nano", "prompt": ["hello"], "max_tokens": 4, "temperature": 0}
    wrapped = server.post("/v1/completions", body).json()
    chat = server.post(
        "/v1/chat/completions", {"model": "nano", "messages": HELLO, "max_tokens": 4, "temperature": 0}
    ).json()
    assert wrapped["choices"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert wrapped["object"] == "text_completion"
    ids = server.post("/v1/completions", {**body, "prompt": [2, 300, 301]}).json()
    assert ids["usage"]["prompt_tokens"] == 3
    unknown = server.post("/v1/completions", {**body, "prompt": [2, 10**6]})
    assert "1000000 is not in the vocabulary" in unknown.json()["error"]["message"]
    chunks = events(server.post("/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}}))
    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == wrapped["choices"][0]["text"]


def test_models_have_the_keys_of_both_vendors(server: Running):
    listed = server.get("/v1/models").json()
    assert listed["data"][-1]["id"] == "nano:latest"
    assert listed["data"][-1]["type"] == "model"
    server.post("/api/copy", {"source": "nano", "destination": "org/name:x"})
    for path in ("org/name:x", "org%2Fname:x"):
        assert server.get(f"/v1/models/{path}").json()["id"] == "org/name:x"
    missing = server.get("/v1/models/none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("change", "status", "why"),
    [
        ({"messages": []}, 400, "too short"),
        ({"model": None}, 400, "model"),
        ({"model": "nope"}, 404, "model 'nope' not found"),
        ({"n": 0}, 400, "n is 0; it must be between 1 and 16"),
        ({"n": 17}, 400, "n is 17"),
        ({"max_tokens": -3}, 400, "max_tokens is -3"),
        ({"temperature": "x"}, 400, "temperature"),
        ({"logit_bias": {"99999": 1}}, 400, "logit_bias names token 99999"),
        ({"logit_bias": {"word": 1}}, 400, "must map token ids to numbers"),
        ({"presence_penalty": 500}, 400, "presence penalty is 500"),
        ({"response_format": {"type": "yaml"}}, 400, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, 400, "needs a JSON schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "odd"}}}},
            400,
            "cannot be used",
        ),
        ({"top_logprobs": 3}, 400, "top_logprobs needs logprobs"),
        ({"top_logprobs": 99}, 400, "between 0 and 20"),
        ({"reasoning_effort": "some"}, 400, "reasoning effort"),
        ({"tools": [{"type": "function"}]}, 400, "a tool needs a function with a name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            400,
            "images",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}],
                    }
                ]
            },
            400,
            "not valid JSON",
        ),
    ],
)
def test_bad_input_gets_openais_error_body(server: Running, change: dict, status: int, why: str):
    answer = server.post("/v1/chat/completions", {"model": "nano", "messages": HELLO, **change})
    error = answer.json()["error"]

    assert answer.status_code == status
    assert why in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_overflow_is_worded_for_each_dialects_parsers(server: Running):
    long = [{"role": "user", "content": "word " * 9000}]
    chat = server.post("/v1/chat/completions", {"model": "nano", "messages": long})
    message = server.post("/v1/messages", {"model": "nano", "messages": long, "max_tokens": 5})
    assert chat.status_code == message.status_code == 400
    assert chat.json()["error"]["code"] == "context_length_exceeded"
    assert message.json()["error"]["message"].startswith("prompt is too long: ")
    assert "> 8192 maximum" in message.json()["error"]["message"]


def test_an_error_after_the_first_byte_is_an_event(scripted: Running):
    boom = [{"role": "user", "content": "boom"}]
    chat = events(scripted.post("/v1/chat/completions", {"model": "scripted", "messages": boom, "stream": True}))
    message = events(
        scripted.post("/v1/messages", {"model": "scripted", "messages": boom, "stream": True, "max_tokens": 9})
    )
    response = events(scripted.post("/v1/responses", {"model": "scripted", "input": "boom", "stream": True}))
    assert chat[-1]["error"]["type"] == "api_error"
    assert message[-1]["type"] == "error"
    assert (response[-1]["type"], response[-1]["response"]["error"]["code"]) == ("response.failed", "server_error")
    whole = scripted.post("/v1/chat/completions", {"model": "scripted", "messages": boom})
    assert (whole.status_code, whole.headers["x-should-retry"]) == (500, "false")


PERSON = {
    "type": "object",
    "required": ["name", "age"],
    "additionalProperties": False,
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99, "minimum": 0}},
}


@pytest.mark.parametrize("drafts", [0, 6])
def test_a_schema_is_kept_on_every_route(server: Running, drafts: int):
    extra = {"draft_num_predict": drafts}
    native = server.post("/api/chat", {"model": "nano", "messages": HELLO, "stream": False, "format": PERSON,
                                       "options": extra}).json()["message"]["content"]  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    chat = server.post("/v1/chat/completions", {"model": "nano", "messages": HELLO, "response_format": form, **extra})
    flat = {"type": "json_schema", "name": "person", "schema": PERSON}
    response = server.post(
        "/v1/responses", {"model": "nano", "input": "hello", "text": {"format": flat}, **extra}
    ).json()
    message = server.post("/v1/messages", {"model": "nano", "messages": HELLO, "max_tokens": 99, **extra,
                                           "output_config": {"format": flat}}).json()  # fmt: skip
    texts = [native, chat.json()["choices"][0]["message"]["content"], response["output"][0]["content"][0]["text"],
             message["content"][0]["text"]]  # fmt: skip
    for text in texts:
        assert set(json.loads(text)) == {"name", "age"}


def test_log_probabilities_are_the_same_streamed_and_whole_drafted_and_plain(server: Running):
    body = {"model": "nano", "messages": HELLO, "max_tokens": 9, "seed": 5, "temperature": 1, "logprobs": True,
            "top_logprobs": 2}  # fmt: skip
    found = []
    for drafts in (0, 6):
        ask = {**body, "draft_num_predict": drafts}
        found.append(server.post("/v1/chat/completions", ask).json()["choices"][0]["logprobs"]["content"])
        chunks = events(server.post("/v1/chat/completions", {**ask, "stream": True}))
        streamed = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0].get("logprobs")]
        found.append([e for s in streamed for e in s["content"]])
        native = {"model": "nano", "messages": HELLO, "stream": False, "logprobs": True, "top_logprobs": 2,
                  "options": {"num_predict": 9, "seed": 5, "temperature": 1, "draft_num_predict": drafts}}  # fmt: skip
        found.append(server.post("/api/chat", native).json()["logprobs"])
    assert all(f == found[0] for f in found)
    assert len(found[0]) == 9
    assert len(found[0][0]["top_logprobs"]) == 2
    legacy = server.post(
        "/v1/completions", {"model": "nano", "prompt": "hello", "max_tokens": 4, "logprobs": 1, "temperature": 0}
    )
    assert len(legacy.json()["choices"][0]["logprobs"]["tokens"]) == 4


SAMPLED = {"model": "nano", "temperature": 1.0, "seed": 3, "max_tokens": 12}


@pytest.mark.parametrize("extra", [{}, {"response_format": {"type": "json_object"}}, {"logprobs": True}])
def test_several_answers_are_those_of_seeds_in_a_row(server: Running, extra: dict[str, Any]):
    body = {**SAMPLED, "messages": HELLO, **extra}
    alone = [server.post("/v1/chat/completions", {**body, "seed": 3 + i}).json() for i in range(3)]
    several = server.post("/v1/chat/completions", {**body, "n": 3}).json()
    assert [c["index"] for c in several["choices"]] == [0, 1, 2]
    assert [c["message"] for c in several["choices"]] == [a["choices"][0]["message"] for a in alone]
    assert [c["logprobs"] for c in several["choices"]] == [a["choices"][0]["logprobs"] for a in alone]
    assert several["usage"]["completion_tokens"] == sum(a["usage"]["completion_tokens"] for a in alone)
    assert several["usage"]["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
    streamed: dict[int, str] = {}
    reasons = {}
    for chunk in events(server.post("/v1/chat/completions", {**body, "n": 3, "stream": True})):
        for choice in chunk["choices"]:
            streamed[choice["index"]] = streamed.get(choice["index"], "") + (choice["delta"].get("content") or "")
            reasons[choice["index"]] = choice["finish_reason"]
    assert streamed == {i: a["choices"][0]["message"]["content"] for i, a in enumerate(alone)}
    assert reasons == {i: a["choices"][0]["finish_reason"] for i, a in enumerate(alone)}


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_echoed_with_log_probabilities(server: Running, stream: bool):
    body = {
        **SAMPLED,
        "prompt": "def add(a, b):",
        "echo": True,
        "logprobs": 2,
        "max_tokens": 4,
        "n": 2,
        "stream": stream,
    }
    answer = server.post("/v1/completions", body)
    chunks = events(answer) if stream else [answer.json()]
    for index in (0, 1):
        choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        text = "".join(c["text"] for c in choices)
        assert text.startswith("def add(a, b):")
        found = [c["logprobs"] for c in choices if c["logprobs"]]
        tokens = [t for f in found for t in f["tokens"]]
        values = [v for f in found for v in f["token_logprobs"]]
        assert "".join(tokens).endswith(text)  # the first one is the beginning of text, which no text has
        assert values[0] is None
        if index == 0:
            assert all(isinstance(v, float) and v <= 0 for v in values[1:])
            assert [o for f in found for o in f["text_offset"]] == [
                len("".join(tokens[:i])) for i in range(len(tokens))
            ]


def test_a_prompt_can_be_scored_alone(server: Running):
    body = {"model": "nano", "prompt": "def add(a, b):", "echo": True, "max_tokens": 0}
    scored = server.post("/v1/completions", {**body, "logprobs": 1}).json()
    assert scored["choices"][0]["text"] == "def add(a, b):"
    assert scored["usage"]["completion_tokens"] == 0
    found = scored["choices"][0]["logprobs"]
    assert all(
        max(top.values()) >= v for top, v in zip(found["top_logprobs"][1:], found["token_logprobs"][1:], strict=True)
    )
    assert server.post("/v1/completions", body).json()["choices"][0]["logprobs"] is None
    assert server.post("/v1/completions", {**body, "echo": False}).status_code == 400
