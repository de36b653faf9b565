"""The grammar of forced calls: whatever it lets through is a call that fits its tool."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher
from llguidance.numpy import fill_next_token_bitmask

from pilotfish.errors import OptionError
from pilotfish.runtime.loaded import Engine
from pilotfish.runtime.loaded import load as load_model
from pilotfish.text.tools import ToolCall, parse_call

NODE = {"type": "object", "required": ["v"], "properties": {
    "v": {"type": "boolean"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}}}  # fmt: skip
PARAMETERS = {
    "type": "object",
    "$defs": {"node": NODE},
    "required": ["city", "tree"],
    "properties": {
        "city": {"type": "string"},
        "Days": {"type": "integer"},
        "unit": {"enum": ["C", "F", 3, None]},
        "tree": {"$ref": "#/$defs/node"},
        "odd name": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
        "many": {
            "anyOf": [{"type": "null"}, {"type": ["string", "boolean"]}, {"properties": {"k": {"const": [1, "x"]}}}]
        },
    },
}


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **({"parameters": parameters} if parameters else {})}}


TOOLS = [tool("get.weather", PARAMETERS), tool("stop"), tool("free", {"type": "object"})]


@pytest.fixture(scope="module")
def nano() -> Engine:
    return load_model("nano")


def walk(nano: Engine, matcher: LLMatcher, seed: int) -> str | None:
    """A random text that the grammar allows, ends preferred; None where it does not come to an end."""
    tokenizer, chance = nano.model.backend_tokenizer, random.Random(seed)
    ends = [tokenizer.token_to_id(t) for t in ('<|"|>', "<tool_call|>", "<turn|>", "<eos>")]
    bits, out = np.zeros((1, nano.model.target.vocab_size // 32), dtype=np.int32), []
    while not matcher.is_stopped() and len(out) < 200:
        fill_next_token_bitmask(matcher, bits)
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8)[0], bitorder="little")).tolist()
        preferred = [t for t in ends if t in allowed]
        out.append(preferred[0] if preferred and chance.random() < 0.5 else chance.choice(allowed))
        matcher.consume_token(out[-1])
    return tokenizer.decode(out, skip_special_tokens=False) if matcher.is_stopped() else None


def fits_node(value: Any) -> bool:
    return isinstance(value["v"], bool) and set(value) <= {"v", "kids"} and all(map(fits_node, value.get("kids", [])))


def fits(call: ToolCall) -> bool:
    a = call.arguments
    if call.name != "get.weather":
        return call.name == "free" or a == {}
    return (
        {"city", "tree"} <= set(a) <= set(PARAMETERS["properties"])  # type: ignore[arg-type]
        and isinstance(a["city"], str)
        and fits_node(a["tree"])
        and a.get("unit") in ("C", "F", 3, None)
        and isinstance(a.get("Days", 0), int)
        and 1 <= len(a.get("odd name", [0])) <= 3
        and (a.get("many") in (None, True, False, {}, {"k": [1, "x"]}) or isinstance(a["many"], str))
    )


def test_whatever_is_let_through_is_a_call_that_fits(nano: Engine):
    matcher, names, seen = nano.model.grammar_tokenizer.of_calls(TOOLS, one=False), set(), set()
    for seed in range(150):
        text = walk(nano, matcher.deep_copy(), seed)
        if text is None:
            continue
        for part in text.split("<|tool_call>")[1:]:
            call = parse_call(part.split("<tool_call|>")[0])
            assert call is not None, text
            assert fits(call), text
            names.add(call.name)
            seen |= set(call.arguments) if call.name == "get.weather" else set()
    assert names == {"get.weather", "stop", "free"}
    assert seen == set(PARAMETERS["properties"])  # type: ignore[arg-type]


def test_a_schema_may_be_satisfied_instead(nano: Engine):
    matcher = nano.model.grammar_tokenizer.of_calls(TOOLS[1:2], one=True, otherwise={"enum": [True, 7]})
    texts = {walk(nano, matcher.deep_copy(), seed) for seed in range(30)}
    ends = {"", "<turn|>", "<eos>", "<|tool_response>"}
    assert {t.removesuffix(end) for t in texts if t for end in ends if t.endswith(end)} >= {"true", "7"}
    assert any(t and t.startswith("<|tool_call>call:stop{}<tool_call|>") for t in texts)


@pytest.mark.parametrize("parameters", [
    {"type": "object", "properties": {"a": {"$ref": "elsewhere.json"}, "b": {"$ref": "#/nowhere"}}},
    {"type": "object", "properties": {"a": {"type": "array", "minItems": 500}}},
    {"type": "object", "properties": {"a": {"type": "array", "maxItems": 0}, "b": {"type": "martian"}, "c": True}},
    {"type": "object", "properties": {"quote\"}": {"type": "string", "pattern": "("}}, "additionalProperties": False},
    {"type": "object", "properties": {"a": {"enum": ["", {"k": None}, [], 1.5]}}},
])  # fmt: skip
def test_schemas_of_any_kind_make_a_grammar(nano: Engine, parameters: dict[str, Any]):
    matcher = nano.model.grammar_tokenizer.of_calls([tool("f", parameters)], one=True)
    ended = [t for t in (walk(nano, matcher.deep_copy(), seed) for seed in range(8)) if t]
    assert all(t.startswith("<|tool_call>call:f{") for t in ended)
    assert all(parse_call(t[len("<|tool_call>") : t.rindex("<tool_call|>")]) for t in ended)


def test_a_name_that_no_call_can_hold_is_refused(nano: Engine):
    with pytest.raises(OptionError, match="'a b' cannot be called"):
        nano.model.grammar_tokenizer.of_calls([tool("a b")], one=True)


def test_a_vocabulary_without_marks_cannot_be_forced(engine: Engine):
    with pytest.raises(OptionError, match="no marks for tool calls"):
        engine.model.grammar_tokenizer.of_calls(TOOLS, one=True)
