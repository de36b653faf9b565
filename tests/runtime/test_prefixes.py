"""Sequences that begin alike: a warm answer equals the cold one, and only what is new is computed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pilotfish.kernels import best_operations
from pilotfish.runtime.loaded import Engine, load
from pilotfish.runtime.prefixes import PrefixCache, marks_of
from pilotfish.testing import CountingDevice

LARGE = 1 << 40


@pytest.fixture
def warm(engine: Engine) -> Engine:
    return Engine(engine.model, prefixes=PrefixCache(LARGE))


def filler(words: int) -> str:
    return " ".join(f"w{i}" for i in range(words))


@pytest.mark.parametrize("depth", [0, 3])
def test_a_continued_conversation_computes_only_what_is_new(engine: Engine, warm: Engine, depth: int):
    options: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 30, "depth": depth}
    messages = [{"role": "user", "content": filler(40)}]
    for _ in range(4):
        cold, got = engine.generate(messages, **options), warm.generate(messages, **options)
        assert got.tokens == cold.tokens
        length = got.stats.prompt_tokens
        messages += [{"role": "assistant", "content": "an answer of mine"}, {"role": "user", "content": "go on"}]
        follow_up = warm.generate(messages, **options)
        assert follow_up.tokens == engine.generate(messages, **options).tokens
        assert follow_up.stats.cached_tokens >= length - 10  # all but the answer's own turn
        messages += [{"role": "assistant", "content": str(follow_up)}, {"role": "user", "content": "more"}]


def test_the_same_prompt_again_computes_its_last_turn_only(warm: Engine):
    prompt = [{"role": "user", "content": filler(60)}]
    first = warm.generate(prompt, max_tokens=5, temperature=0)
    device = CountingDevice()
    request = warm.prepare(prompt, _request(max_tokens=5))
    events = list(warm.decode(request, device))

    assert tuple(t for e in events for t in e.tokens) == first.tokens
    assert events[-1].stats.cached_tokens > first.stats.prompt_tokens - 20
    assert device.log.count("W") == 1  # one short chunk


def test_a_sequence_that_wrapped_its_windows_serves_its_end_and_its_marks_only(engine: Engine, warm: Engine):
    """The window holds 16 tokens: a prompt that leaves the other one half-way finds nothing between the marks."""
    ids = engine.prompt_ids("x" * 300)
    warm.generate(ids, max_tokens=20, temperature=0, depth=2)
    branch = [*ids[:200], *engine.prompt_ids("y" * 50)]
    cold = engine.generate(branch, max_tokens=10, temperature=0)
    got = warm.generate(branch, max_tokens=10, temperature=0)
    assert got.tokens == cold.tokens
    assert got.stats.cached_tokens == 0


def test_a_cancelled_request_leaves_its_prompt(warm: Engine):
    prompt = filler(80)
    stream = warm.stream(prompt, max_tokens=500, temperature=0)
    next(stream)
    stream.close()
    again = warm.generate(prompt, max_tokens=3, temperature=0)
    assert again.stats.cached_tokens == again.stats.prompt_tokens - 1


def test_the_least_recently_used_goes_first(engine: Engine):
    probe = Engine(engine.model, prefixes=PrefixCache(LARGE))
    probe.generate("a" * 200, max_tokens=2, temperature=0)
    size = probe.prefixes.nbytes
    warm = Engine(engine.model, prefixes=PrefixCache(int(2.5 * size)))
    for letter in "abac":
        warm.generate(letter * 200, max_tokens=2, temperature=0)

    assert warm.prefixes.nbytes <= 2.5 * size
    assert warm.generate("a" * 200, max_tokens=2, temperature=0).stats.cached_tokens == 200
    assert warm.generate("b" * 200, max_tokens=2, temperature=0).stats.cached_tokens == 0


def test_models_do_not_share_sequences(engine: Engine, tiny: Path):
    prefixes = PrefixCache(LARGE)
    first, second = Engine(engine.model, prefixes=prefixes), load(tiny, prefixes=prefixes)
    first.generate("a" * 200, max_tokens=2, temperature=0)
    assert second.generate("a" * 200, max_tokens=2, temperature=0).stats.cached_tokens == 0
    prefixes.forget(second.model)
    assert first.generate("a" * 200, max_tokens=2, temperature=0).stats.cached_tokens == 200


def test_marks_stand_at_turns_and_where_they_are_far_apart_at_the_end(engine: Engine):
    ids = engine.prompt_ids([{"role": "system", "content": filler(40)}, {"role": "user", "content": filler(60)}])
    turns = [i for i, t in enumerate(ids) if t == 105]
    assert marks_of(engine.model, ids) == [turns[1], turns[2]]
    raw = engine.prompt_ids(filler(60))
    assert marks_of(engine.model, raw) == [len(raw) - 1]


@dataclass
class Talk:
    """A conversation with a word of its own that must never show up elsewhere."""

    canary: str
    messages: list[dict[str, str]] = field(default_factory=list)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [LARGE, 3_000_000], ids=["roomy", "tiny"])
def test_any_interleaving_of_conversations_says_what_fresh_engines_say(engine: Engine, budget: int):
    """200 steps: append, branch, strip an answer's beginning, switch, drafting on and off, eviction."""
    chance, prefixes = random.Random(7), PrefixCache(budget)
    warm = Engine(engine.model, prefixes=prefixes)
    talks = [Talk(f"canary{i}") for i in range(5)]
    hits = 0
    for _ in range(200):
        talk = chance.choice(talks)
        if not talk.messages or chance.random() < 0.1:
            talk.messages = [{"role": "system", "content": f"{talk.canary} " + filler(chance.randrange(5, 30))}]
        if chance.random() < 0.2 and len(talk.messages) > 3:
            del talk.messages[chance.randrange(2, len(talk.messages)) :]
            if talk.messages[-1]["role"] == "user":
                talk.messages.pop()
        talk.messages.append({"role": "user", "content": filler(chance.randrange(1, 25))})
        options = {
            "max_tokens": chance.randrange(1, 25),
            "depth": chance.choice([0, 2, 5, "auto"]),
            **chance.choice([{"temperature": 0.0}, {"temperature": 1.0, "seed": chance.randrange(99)}]),
        }
        want = engine.generate(talk.messages, **{**options, "depth": 0})
        got = warm.generate(talk.messages, **options)
        assert got.tokens == want.tokens
        assert got.stats.cached_tokens < got.stats.prompt_tokens
        assert prefixes.nbytes <= budget
        hits += got.stats.cached_tokens > 0
        text = str(got)[5:] if chance.random() < 0.2 else str(got)  # as a template strips what was thought
        talk.messages.append({"role": "assistant", "content": text})
        assert not any(other.canary in str(got) for other in talks if other is not talk)
    assert hits > (100 if budget == LARGE else 5)


@pytest.mark.parametrize("model_type", ["gemma3_text", "llama", "mamba"])
def test_other_families_too(tmp_path: Path, model_type: str):
    from pilotfish.testing.checkpoints import write_tiny

    cold = load(write_tiny(tmp_path / "m", model_type), draft=None)
    warm = Engine(cold.model, prefixes=PrefixCache(LARGE))
    prompt = "z" * 150
    for text in (prompt, prompt, prompt + "and more"):
        want = cold.generate(text, max_tokens=12, temperature=0)
        got = warm.generate(text, max_tokens=12, temperature=0)
        assert got.tokens == want.tokens
    assert got.stats.cached_tokens > 0


def test_stock_operations_too(tiny: Path):
    cold = load(tiny, kernels="stock")
    assert cold.model.target.operations.name != best_operations().name or best_operations().name == "stock"
    warm = Engine(cold.model, prefixes=PrefixCache(LARGE))
    messages = [{"role": "user", "content": filler(30)}]
    for _ in range(3):
        want, got = (e.generate(messages, max_tokens=12, temperature=0, depth=3) for e in (cold, warm))
        assert got.tokens == want.tokens
        messages += [{"role": "assistant", "content": str(got)}, {"role": "user", "content": "more"}]
    assert got.stats.cached_tokens > 0


def _request(**options: Any) -> Any:
    from pilotfish.runtime.request import Request

    return Request(temperature=0, **options)
