"""JSON schemas with drafting on: valid, finished, and the text of plain decoding."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pilotfish.errors import OptionError
from pilotfish.runtime.loaded import Engine, load
from pilotfish.runtime.request import Chat
from pilotfish.testing import ScriptedDrafter

PERSON = {
    "type": "object",
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "long tag"]}, "maxItems": 3},
    },
}
SCALARS: list[dict[str, Any]] = [
    {"type": "boolean"},
    {"type": "null"},
    {"enum": ["x", 1, None]},
    {"const": {"a": [1]}},
    {"type": "integer", "minimum": -5, "maximum": 5},
    {"type": "string", "maxLength": 5},
    {"type": "string", "pattern": "^[ab]{2,4}$"},
]


def some_schema(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    kind = chance.randrange(4 if depth < 2 else 2)
    if kind < 2:
        return chance.choice(SCALARS)
    if kind == 2:
        return {"type": "array", "items": some_schema(chance, depth + 1), "maxItems": 2}
    names = chance.sample(["id", "name", "value", "é", "a b"], chance.randrange(1, 4))
    return {"type": "object", "properties": {n: some_schema(chance, depth + 1) for n in names},
            "required": names[: chance.randrange(len(names) + 1)], "additionalProperties": False}  # fmt: skip


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """By hand, for what `some_schema` makes."""
    if "enum" in schema:
        return any(value == e and type(value) is type(e) for e in schema["enum"])
    if "const" in schema:
        return value == schema["const"]
    kind = schema["type"]
    if kind in ("integer", "number"):
        fits = isinstance(value, int) if kind == "integer" else isinstance(value, int | float)
        return fits and not isinstance(value, bool) and schema["minimum"] <= value <= schema["maximum"]
    if kind == "string":
        import re

        return (
            isinstance(value, str)
            and len(value) <= schema.get("maxLength", 99)
            and bool(re.search(schema.get("pattern", ""), value))
        )
    if kind == "array":
        return (
            isinstance(value, list)
            and len(value) <= schema["maxItems"]
            and all(conforms(v, schema["items"]) for v in value)
        )
    if kind == "object":
        known = schema["properties"]
        return (
            isinstance(value, dict)
            and set(value) <= set(known)
            and set(schema["required"]) <= set(value)
            and all(conforms(v, known[k]) for k, v in value.items())
        )
    return value is None if kind == "null" else isinstance(value, bool)


SAMPLED = {"temperature": 1.0, "max_tokens": 400}


@pytest.mark.slow
def test_forty_schemas_by_five_seeds_are_valid_end_and_say_the_same_with_drafting(engine: Engine):
    chance = random.Random(2)
    drafted = 0
    for _ in range(40):
        schema = some_schema(chance)
        for seed in range(5):
            plain = engine.generate("make", format=schema, seed=seed, depth=0, **SAMPLED)
            got = engine.generate("make", format=schema, seed=seed, depth=chance.choice([1, 3, 6]), **SAMPLED)
            assert conforms(json.loads(plain), schema), (schema, plain)
            assert plain.stats.finish_reason == "stop"
            assert got.tokens == plain.tokens
            drafted += got.stats.drafted
    assert drafted > 500


@pytest.mark.slow
def test_nano_too(tmp_path: Path):
    nano = load("nano")
    chance = random.Random(4)
    for _ in range(40):
        schema = some_schema(chance)
        for seed in range(5):
            plain = nano.generate("{", format=schema, seed=seed, depth=0, **SAMPLED)
            assert conforms(json.loads(plain), schema), (schema, plain)
            assert nano.generate("{", format=schema, seed=seed, **SAMPLED).tokens == plain.tokens


@pytest.mark.parametrize("right", [0, 2, 8])
def test_drafters_of_every_kind_give_the_same_value(engine: Engine, right: int):
    plain = engine.generate("x", format=PERSON, seed=3, depth=0, **SAMPLED)
    prompt = engine.prompt_ids("x")
    drafter = ScriptedDrafter([[*prompt, *plain.tokens]], lambda _: right, 512)
    scripted = Engine(replace(engine.model, drafter=drafter))
    got = scripted.generate("x", format=PERSON, seed=3, depth=5, **SAMPLED)
    assert got.tokens == plain.tokens
    assert conforms(json.loads(got)["age"], {"type": "integer", "minimum": 0, "maximum": 150})
    assert got.stats.accepted > 0  # forced runs are right even where the drafter never is


def test_any_json_object(engine: Engine):
    text = engine.generate(
        "x",
        format="json",
        seed=1,
        temperature=1.0,
        max_tokens=2000,
        logit_bias={engine.model.backend_tokenizer.token_to_id("}"): 8.0},
    )
    assert isinstance(json.loads(text), dict)


def test_with_penalties_logprobs_and_min_tokens(engine: Engine):
    options = {**SAMPLED, "format": PERSON, "seed": 5, "presence_penalty": 1.0, "logprobs": 2, "min_tokens": 3}
    plain, got = (engine.generate("x", depth=d, **options) for d in (0, 4))
    assert got.tokens == plain.tokens
    assert got.logprobs == plain.logprobs
    json.loads(got)


def test_a_budget_may_cut_a_value(engine: Engine):
    cut = engine.generate("x", format=PERSON, seed=5, temperature=1.0, max_tokens=5, depth=3)
    assert (cut.stats.tokens, cut.stats.finish_reason) == (5, "length")


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_thinking_is_free_and_the_grammar_begins_where_it_ends(thinker: Engine, depth: int):
    """Biases make the random model open its channel, and close it now and then."""
    tokenizer = thinker.model.backend_tokenizer
    bias = {tokenizer.token_to_id("<|channel>"): 6.0, tokenizer.token_to_id("<channel|>"): 6.0}
    thought = 0
    for seed in range(12):
        chat = Chat(({"role": "user", "content": "hi"},), thinking=True)
        got = thinker.generate(chat, format=PERSON, seed=seed, depth=depth, logit_bias=bias, **SAMPLED)
        plain = thinker.generate(chat, format=PERSON, seed=seed, depth=0, logit_bias=bias, **SAMPLED)
        assert got.tokens == plain.tokens
        if got.stats.finish_reason == "stop":
            assert set(json.loads(got)) == {"name", "age", "tags"}
        thought += tokenizer.token_to_id("<|channel>") in got.tokens
    assert thought > 0


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("yaml", "must be json or a JSON schema"),
        ({"type": "nothing"}, "cannot be used"),
        ({"type": "string", "pattern": "("}, "cannot be used"),
        ({"$ref": "#/nowhere"}, "cannot be used"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ],
)
def test_schemas_that_cannot_be_used_are_refused(engine: Engine, schema: Any, why: str):
    with pytest.raises(OptionError, match=why):
        engine.generate("x", format=schema)


@pytest.mark.parametrize(
    "budget",
    [
        pytest.param(0, marks=pytest.mark.slow),
        pytest.param(1, marks=pytest.mark.slow),
        5,
        pytest.param(12, marks=pytest.mark.slow),
    ],
)
def test_thinking_is_closed_at_the_right_token_wherever_it_falls_in_a_round(thinker: Engine, budget: int):
    tokenizer = thinker.model.backend_tokenizer
    opens, closes = (tokenizer.token_to_id(m) for m in ("<|channel>", "<channel|>"))
    chat = Chat(({"role": "user", "content": "hi"},), thinking=True)
    closed = 0
    for seed in range(8):
        options = {"max_tokens": 30, "temperature": 1.0, "seed": seed, "logit_bias": {opens: 9.0, closes: -9.0},
                   "thinking_budget": budget}  # fmt: skip
        plain = thinker.generate(chat, depth=0, **options)
        for depth in (1, 3, 7):
            assert thinker.generate(chat, depth=depth, **options).tokens == plain.tokens
        is_open = False
        for at, token in enumerate(plain.tokens):
            assert not is_open or at < budget or token == closes  # once the budget is spent, nothing stays open
            is_open = token == opens or (is_open and token != closes)
        if opens in plain.tokens[: max(1, budget)] and plain.stats.finish_reason == "length":
            assert closes in plain.tokens
            closed += 1
    assert budget < 5 or closed > 0


TOOLS = (
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": [1, "two"]}}, "required": ["a"]}}},
)  # fmt: skip
ASKED = ({"role": "user", "content": "hi"},)


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("choice", ["required", "add"])
def test_a_forced_call_is_made_with_drafting_on_as_off(thinker: Engine, choice: str, thinking: bool):
    chat, ended = Chat(ASKED, TOOLS, thinking, choice=choice), 0
    for seed in range(6):
        texts = [thinker.generate(chat, seed=seed, depth=depth, **SAMPLED) for depth in (0, 1, 4, "auto")]
        assert len({t.tokens for t in texts}) == 1
        assert texts[0].strip() == ""
        ended += texts[0].stats.finish_reason == "stop"
        for call in texts[0].calls:
            assert call.name == choice or choice == "required"
            assert set(call.arguments) <= ({"a", "b"} if call.name == "add" else set())
            assert call.name == "ping" or isinstance(call.arguments["a"], int)
    assert ended > 0


def test_a_schema_beside_tools_leaves_calls_open(thinker: Engine):
    tokenizer = thinker.model.backend_tokenizer
    bias = {tokenizer.token_to_id("<|tool_call>"): 4.0}
    kinds = set()
    for seed in range(16):
        chat = Chat(ASKED, TOOLS, one_call=True)
        texts = [thinker.generate(chat, format={"enum": [1, 2]}, seed=seed, depth=depth, logit_bias=bias, **SAMPLED)
                 for depth in (0, 3)]  # fmt: skip
        assert texts[0].tokens == texts[1].tokens
        if texts[0].stats.finish_reason == "stop":
            kinds.add("call" if texts[0].calls else json.loads(texts[0]))
    assert "call" in kinds
    assert kinds & {1, 2}


def test_the_first_call_ends_an_answer_that_may_have_only_one(thinker: Engine):
    chat = Chat(ASKED, TOOLS[:1], choice="required")
    several = [len(thinker.generate(chat, seed=s, **SAMPLED).calls) for s in range(8)]
    one = [thinker.generate(replace(chat, one_call=True), seed=s, **SAMPLED) for s in range(8)]
    assert max(several) > 1
    assert {len(t.calls) for t in one} == {1}
    assert {t.stats.finish_reason for t in one} == {"stop"}
