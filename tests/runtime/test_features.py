"""Everything that a request may ask for, with drafting on and off: the same text, bit for bit."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pilotfish.engine.sampling import MAX_SEED
from pilotfish.errors import OptionError
from pilotfish.runtime.loaded import Engine
from pilotfish.runtime.request import Chat, Completion, Event
from pilotfish.testing import ScriptedDrafter
from pilotfish.testing.checkpoints import AGENT_MARKS


def some_request(chance: random.Random) -> dict[str, Any]:
    """Options of a request, each with some probability."""
    out: dict[str, Any] = {"max_tokens": chance.randrange(1, 40)}
    out |= chance.choice([{"temperature": 0.0}, {"temperature": 1.0, "seed": chance.randrange(99)},
                          {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": chance.randrange(99)}])  # fmt: skip
    maybe = {
        "repetition_penalty": lambda: chance.uniform(0.7, 1.6), "presence_penalty": lambda: chance.uniform(-2, 2),
        "frequency_penalty": lambda: chance.uniform(-2, 2), "repeat_last_n": lambda: chance.choice([-1, 0, 4, 64]),
        "logit_bias": lambda: {chance.randrange(512): chance.uniform(-20, 20) for _ in range(3)},
        "min_tokens": lambda: chance.randrange(20), "ignore_eos": lambda: True, "logprobs": lambda: chance.randrange(6),
        "stop": lambda: chance.choice(["a", "Qz", "\n"]),
    }  # fmt: skip
    return out | {name: make() for name, make in maybe.items() if chance.random() < 0.4}


TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in (("ping", {}), ("add", {"a": {"type": "integer"}, "to": {"type": "string"}}))
)
CHANNEL = next(i for i, mark in AGENT_MARKS.items() if mark == "<|channel>")
SCHEMAS: list[Any] = [
    "json",
    {"enum": ["x", 1, None]},
    {"type": "array", "items": {"type": "integer"}, "maxItems": 4},
    {"type": "object", "properties": {"k": {"type": "string", "maxLength": 9}}, "required": ["k"]},
]


def some_prompt(chance: random.Random, options: dict[str, Any]) -> Any:
    """Text, or a conversation with tools, thinking and a grammar, each with some probability; adds to `options`."""
    text = "ab c" * chance.randrange(1, 12)
    if chance.random() < 0.3:
        options["format"] = chance.choice(SCHEMAS)
    if chance.random() < 0.4:
        return text
    fields: dict[str, Any] = {}
    if chance.random() < 0.6:
        fields = {"tools": TOOLS, "one_call": chance.random() < 0.3}
        if "format" not in options:
            fields["choice"] = chance.choice(["auto", "required", "ping", "add"])
    if chance.random() < 0.5:
        fields["thinking"] = True
        options["thinking_budget"] = chance.choice([None, 0, 3, 12])
        options["logit_bias"] = {**options.get("logit_bias", {}), CHANNEL: 8.0}
    return Chat(({"role": "user", "content": text},), **fields)


@pytest.mark.slow
def test_five_hundred_requests_say_the_same_with_drafting_on_and_off(thinker: Engine):
    chance = random.Random(11)
    drafted = looked_up = calls = thought = 0
    for _ in range(500):
        options = some_request(chance)
        prompt = some_prompt(chance, options)
        plain = thinker.generate(prompt, depth=0, **options)
        got = thinker.generate(prompt, depth=chance.choice([1, 2, 4, 7, "auto", "auto"]), **options)
        assert got.tokens == plain.tokens, (prompt, options)
        assert (str(got), got.thinking, got.calls) == (str(plain), plain.thinking, plain.calls)
        assert got.logprobs == plain.logprobs
        assert got.stats.finish_reason == plain.stats.finish_reason
        drafted, looked_up = drafted + got.stats.drafted, looked_up + got.stats.looked_up
        calls, thought = calls + len(got.calls), thought + (CHANNEL in got.tokens)
    assert drafted > 5000
    assert min(looked_up, calls, thought) > 10


@pytest.mark.parametrize("right", [0, 1, 3, 8])
def test_strong_penalties_under_drafters_of_every_kind(engine: Engine, right: int):
    """Always wrong, half right, always right."""
    options = {"max_tokens": 40, "temperature": 0.0, "repetition_penalty": 1.8, "frequency_penalty": 1.5}
    for window in (None, 3, 64):
        plain = engine.generate("abc", depth=0, repeat_last_n=window, **options)
        prompt = engine.prompt_ids("abc")
        drafter = ScriptedDrafter([[*prompt, *plain.tokens]], lambda _: right, 512)
        scripted = Engine(replace(engine.model, drafter=drafter))
        for depth in (1, 2, 8):
            got = scripted.generate("abc", depth=depth, repeat_last_n=window, **options)
            assert got.tokens == plain.tokens
            assert right == 0 or got.stats.accepted > 0


def test_penalties_and_biases_do_something(engine: Engine):
    options = {"max_tokens": 30, "temperature": 0.0}
    plain = engine.generate("abc", **options)
    assert engine.generate("abc", frequency_penalty=2.0, **options).tokens != plain.tokens
    biased = engine.generate("abc", logit_bias={300: 100.0}, **options)
    assert set(biased.tokens) == {300}
    banned = engine.generate("abc", logit_bias=dict.fromkeys(set(plain.tokens), -100.0), **options)
    assert not set(banned.tokens) & set(plain.tokens)


def test_an_end_waits_for_min_tokens_or_does_not_end(engine: Engine):
    ends = dict.fromkeys(engine.model.eos, 100.0)
    assert engine.generate("abc", logit_bias=ends, max_tokens=20).stats.tokens == 1
    held = engine.generate("abc", logit_bias=ends, min_tokens=7, max_tokens=20)
    assert (held.stats.tokens, held.stats.finish_reason) == (8, "stop")
    through = engine.generate("abc", logit_bias=ends, ignore_eos=True, max_tokens=20)
    assert (through.stats.tokens, through.stats.finish_reason) == (20, "length")


@pytest.mark.parametrize("depth", [0, 4])
def test_log_probabilities_are_those_of_a_forward_pass(engine: Engine, depth: int):
    text = engine.generate("hello", max_tokens=12, temperature=1.0, seed=3, depth=depth, logprobs=3)
    target, prompt = engine.model.target, engine.prompt_ids("hello")
    views = [s.prefill_view((), 0) for s in target.specs]
    logits = target.forward(mx.array([[*prompt, *text.tokens[:-1]]]), views).logits[0, len(prompt) - 1 :]
    values = np.array(logits.astype(mx.float32)).astype(np.float64)
    values -= values.max(-1, keepdims=True)
    values -= np.log(np.exp(values).sum(-1, keepdims=True))

    assert [p.token for p in text.logprobs] == list(text.tokens)
    for i, found in enumerate(text.logprobs):
        assert found.logprob == pytest.approx(values[i, found.token], abs=1e-4)
        assert [t for t, _ in found.top] == list(np.argsort(-values[i], kind="stable")[:3])


@pytest.mark.parametrize(("options", "why"), [
    ({"logprobs": 21}, "logprobs is 21"), ({"repeat_last_n": -2}, "repeat_last_n is -2"),
    ({"logit_bias": {9999: 1.0}}, "names token 9999"), ({"repetition_penalty": -1.0}, "repetition penalty is -1"),
])  # fmt: skip
def test_values_out_of_range_are_refused(engine: Engine, options: dict, why: str):
    with pytest.raises(OptionError, match=why):
        engine.generate("x", **options)


def test_log_probabilities_of_a_prompt_are_those_of_decoding_it(engine: Engine):
    text = engine.generate("hello", max_tokens=20, temperature=0.0, logprobs=3)
    prompt = [*engine.prompt_ids("hello"), *text.tokens]
    (only,) = engine.stream(prompt, max_tokens=0, prompt_logprobs=3)
    scored = only.prompt_logprobs[-len(text.tokens) :]
    assert [p.token for p in scored] == list(text.tokens)
    for ours, theirs in zip(scored, text.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert [t for t, _ in ours.top] == [t for t, _ in theirs.top]
    assert (only.finish_reason, only.tokens) == ("length", ())


@pytest.mark.parametrize("depth", [0, 3, "auto"])
def test_answers_in_one_batch_are_those_given_alone(engine: Engine, depth: int | str):
    options = {"max_tokens": 25, "temperature": 1.0, "depth": depth, "presence_penalty": 0.5, "logprobs": 2}
    found: dict[int, list[Event]] = {}
    for event in engine.stream("hello there", n=4, seed=9, **options):
        found.setdefault(event.index, []).append(event)
    for i in range(4):
        alone = engine.generate("hello there", seed=9 + i, **options)
        together = Completion.from_events(found[i])
        assert (together.tokens, together.logprobs) == (alone.tokens, alone.logprobs)
        assert together.stats.seed == 9 + i


def test_the_largest_seed_is_a_seed_like_any_other(engine: Engine):
    largest = engine.generate("hello", max_tokens=12, temperature=1.0, seed=MAX_SEED)
    assert largest.stats.seed == MAX_SEED
    assert largest.tokens != engine.generate("hello", max_tokens=12, temperature=1.0, seed=0).tokens
