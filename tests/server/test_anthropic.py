"""Anthropic's routes and OpenAI's responses: blocks, items, and the order of their events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.servers import Running, events

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"name": "get_weather", "description": "Weather.", "input_schema": {"type": "object", "properties": {}}}


def test_blocks_are_numbered_and_open_one_at_a_time(scripted: Running):
    body = {"model": "scripted", "max_tokens": 300, "messages": [{"role": "user", "content": "weather both"}],
            "tools": [TOOL], "thinking": {"type": "adaptive"}, "stream": True}  # fmt: skip
    found = events(scripted.post("/v1/messages?beta=true", body, headers={"anthropic-beta": "something-new-2027"}))

    assert [e["type"] for e in found[:2]] == ["message_start", "ping"]
    assert [e["type"] for e in found[-2:]] == ["message_delta", "message_stop"]
    open_block, kinds = None, []
    for e in found:
        if e["type"] == "content_block_start":
            assert open_block is None
            assert e["index"] == len(kinds)
            open_block, _ = e["index"], kinds.append(e["content_block"]["type"])
        elif e["type"] == "content_block_stop":
            assert e["index"] == open_block
            open_block = None
        elif e["type"] == "content_block_delta":
            assert e["index"] == open_block
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    inputs = [
        json.loads(e["delta"]["partial_json"]) for e in found if e.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert [i["city"] for i in inputs] == ["Paris", 'Rome {x}, "y"']
    assert found[-2]["delta"]["stop_reason"] == "tool_use"


def test_thinking_is_off_unless_asked_for(scripted: Running):
    body = {"model": "scripted", "max_tokens": 50, "messages": HELLO}
    assert [b["type"] for b in scripted.post("/v1/messages", body).json()["content"]] == ["text"]
    on = scripted.post("/v1/messages", {**body, "thinking": {"type": "enabled", "budget_tokens": 1024}}).json()
    assert on["content"][0] == {"type": "thinking", "thinking": "Let me greet.\n", "signature": ""}


def test_a_model_that_cannot_think_is_asked_in_vain(server: Running):
    body = {"model": "nano", "max_tokens": 2, "messages": HELLO, "thinking": {"type": "adaptive"}}
    assert server.post("/v1/messages", body).status_code == 200


def test_the_stop_sequence_is_named(scripted: Running):
    body = {"model": "scripted", "max_tokens": 50, "messages": [{"role": "user", "content": "echo: one two three"}],
            "stop_sequences": ["never", "wo th"]}  # fmt: skip
    answer = scripted.post("/v1/messages", body).json()
    assert answer["content"] == [{"type": "text", "text": "one t"}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "wo th")


def test_results_go_to_their_calls_and_billing_lines_are_dropped(scripted: Running):
    turns = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": [{"type": "text", "text": "Looking."}, {
            "type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}]},
        {"role": "user", "content": [{"type": "text", "text": "and?"}, {
            "type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]}]},
    ]  # fmt: skip
    body = {"model": "scripted", "max_tokens": 80, "messages": turns[:1] + turns[1:2] + [
        {"role": "user", "content": turns[2]["content"][1:]}], "tools": [TOOL]}  # fmt: skip
    assert scripted.post("/v1/messages", body).json()["content"][0]["text"] == "get_weather says: sunny."

    system = [{"type": "text", "text": "x-anthropic-billing-header: cch=123;"}, {"type": "text", "text": "Be brief."}]
    asked = {
        "model": "scripted",
        "max_tokens": 200,
        "messages": [{"role": "user", "content": "system?"}],
        "system": system,
    }
    text = scripted.post("/v1/messages", asked).json()["content"][0]["text"]
    assert "Be brief." in text
    assert "billing" not in text


def test_counted_tokens_are_those_of_the_request(scripted: Running):
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "weather " * 40}],
        "tools": [TOOL],
        "system": "s",
    }
    counted = scripted.post("/v1/messages/count_tokens?beta=true", body).json()["input_tokens"]
    for _ in range(2):
        usage = scripted.post("/v1/messages", {**body, "max_tokens": 3}).json()["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted


@pytest.mark.parametrize(("change", "status", "kind"), [
    ({"max_tokens": 0}, 400, "invalid_request_error"), ({"messages": []}, 400, "invalid_request_error"),
    ({"model": "nope"}, 404, "not_found_error"), ({"max_tokens": None}, 400, "invalid_request_error"),
    ({"thinking": {"type": "much"}}, 400, "invalid_request_error"),
    ({"messages": [{"role": "robot", "content": "x"}]}, 400, "invalid_request_error"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 400, "invalid_request_error"),
    ({"output_config": {"format": {"type": "yaml"}}}, 400, "invalid_request_error"),
])  # fmt: skip
def test_bad_input_gets_anthropics_error_body(server: Running, change: dict, status: int, kind: str):
    answer = server.post("/v1/messages", {"model": "nano", "max_tokens": 2, "messages": HELLO, **change})
    assert (answer.status_code, answer.json()["type"], answer.json()["error"]["type"]) == (status, "error", kind)


def test_a_response_is_made_of_items_in_order(scripted: Running):
    tools = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}, {"type": "web_search"}]
    body = {"model": "scripted", "input": "weather", "tools": tools, "stream": True, "reasoning": {"effort": "high"}}
    found = events(scripted.post("/v1/responses", body))

    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    assert [e["type"] for e in found[:2]] == ["response.created", "response.in_progress"]
    final = found[-1]["response"]
    assert (found[-1]["type"], final["status"]) == ("response.completed", "completed")
    assert [i["type"] for i in final["output"]] == ["reasoning", "message", "function_call"]
    done = {e["item"]["id"]: e["item"] for e in found if e["type"] == "response.output_item.done"}
    assert [done[i["id"]] for i in final["output"]] == final["output"]
    assert final["output"][0]["encrypted_content"] == "Let me look.\n"
    replay = [
        {"role": "user", "content": "weather"},
        *final["output"],
        {"type": "function_call_output", "call_id": final["output"][2]["call_id"], "output": "sunny"},
    ]
    whole = scripted.post("/v1/responses", {**body, "input": replay, "stream": False}).json()
    assert whole["output"][-1]["content"][0]["text"] == "get_weather says: sunny."


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
def test_what_would_need_a_memory_is_refused(server: Running, name: str):
    answer = server.post("/v1/responses", {"model": "nano", "input": "x", name: "resp_1"})
    assert answer.status_code == 400
    assert name in answer.json()["error"]["message"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "ping"},
                                    {"type": "any", "disable_parallel_tool_use": True}])  # fmt: skip
def test_a_call_can_be_forced(scripted: Running, choice: dict[str, Any]):
    ping = {"name": "ping", "input_schema": {"type": "object", "properties": {}}}
    body = {"model": "scripted", "max_tokens": 60, "messages": [{"role": "user", "content": "hi"}], "tools": [ping]}
    answer = scripted.post("/v1/messages", {**body, "tool_choice": choice}).json()
    assert answer["stop_reason"] == "tool_use" or "disable_parallel_tool_use" not in choice
    assert {b["type"] for b in answer["content"]} == {"tool_use"}
    assert answer["content"][0]["input"] == {}
    refused = scripted.post("/v1/messages", {**body, "tool_choice": {"type": "tool", "name": "fly"}})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
