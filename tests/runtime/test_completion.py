"""Text events: what is drafted never changes what is said."""

from __future__ import annotations

import pytest

import pilotfish
from pilotfish.errors import OptionError
from pilotfish.runtime.loaded import Engine
from pilotfish.runtime.request import Request
from pilotfish.testing import FakeClock, ScriptedDrafter

SAMPLED = {"temperature": 1.0, "top_k": 64, "top_p": 0.95, "seed": 7}


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("options", [{"temperature": 0}, SAMPLED], ids=["greedy", "sampled"])
def test_text_tokens_and_ending_are_those_of_plain_decoding(engine: Engine, options: dict, depth: int):
    for prompt in ("def f(x):", [{"role": "user", "content": "hello é"}]):
        plain = engine.generate(prompt, max_tokens=40, depth=0, **options)
        drafted = engine.generate(prompt, max_tokens=40, depth=depth, **options)

        assert drafted == plain
        assert drafted.tokens == plain.tokens
        assert drafted.stats.finish_reason == plain.stats.finish_reason
        assert drafted.stats.cache_length == plain.stats.cache_length
        assert drafted.stats.drafted > 0 == plain.stats.drafted


@pytest.mark.parametrize("right", [0, 2, 4])
def test_a_stop_string_anywhere_in_a_round_cuts_as_in_plain_decoding(engine: Engine, right: int):
    plain = engine.generate("abc", max_tokens=24, depth=0, **SAMPLED)
    answers = [*engine.prepare("abc", Request()).prompt, *plain.tokens]
    scripted = with_drafter(engine, ScriptedDrafter([answers], lambda _: right, 512))
    stops = {plain[i : i + n] for i in range(len(plain) - 3) for n in (1, 2, 3)} - {"\ufffd", ""}
    assert len(stops) > 20
    for stop in sorted(stops):
        want = engine.generate("abc", max_tokens=24, depth=0, stop=stop, **SAMPLED)
        got = scripted.generate("abc", max_tokens=24, depth=4, stop=[stop, "never seen"], **SAMPLED)

        assert got == want == plain[: plain.index(stop)]
        assert got.tokens == want.tokens
        assert got.stats.finish_reason == want.stats.finish_reason == "stop"
        assert got.stats.cache_length == want.stats.cache_length


def with_drafter(engine: Engine, drafter: ScriptedDrafter) -> Engine:
    from dataclasses import replace

    return Engine(replace(engine.model, drafter=drafter, looks_up=False))


def test_events_carry_text_by_token_and_only_the_last_one_ends(engine: Engine):
    events = list(engine.stream("some text", max_tokens=30, **SAMPLED))

    for event in events:
        assert "".join(event.pieces) == event.text
        assert len(event.pieces) == len(event.tokens) == len(event.drafted)
    assert [e.finish_reason for e in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finish_reason == "length"
    assert events[-1].stats.tokens == sum(len(e.tokens) for e in events) == 30


def test_every_event_is_valid_utf8_although_tokens_split_characters(engine: Engine):
    whole = engine.generate("x", max_tokens=200, temperature=1.5, seed=1)

    events = list(engine.stream("x", max_tokens=200, temperature=1.5, seed=1, depth=8))

    assert "".join(e.text for e in events) == whole
    assert whole == engine.model.backend_tokenizer.decode(list(whole.tokens), skip_special_tokens=True)
    for event in events:
        event.text.encode("utf-8")


def test_the_same_seed_repeats_and_another_does_not(engine: Engine):
    a, b, c = (engine.generate("x", max_tokens=30, temperature=1.0, seed=s) for s in (5, 5, 6))

    assert a == b != c
    assert a.stats.seed == 5


def test_without_a_seed_the_stats_name_the_one_used(engine: Engine):
    text = engine.generate("x", max_tokens=20, temperature=1.0)

    assert engine.generate("x", max_tokens=20, temperature=1.0, seed=text.stats.seed) == text


def test_sampling_defaults_come_from_the_checkpoint(engine: Engine):
    request = engine.prepare("x", Request())

    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.top_p) == (1.0, 64, 0.95)
    assert request.max_tokens == 4096 - len(request.prompt)


def test_rejection_keeps_its_promises_about_counts(engine: Engine):
    text = engine.generate("x", max_tokens=40, acceptance="rejection", depth=4, **SAMPLED)

    assert text.stats.tokens == 40
    assert text.stats.acceptance == "rejection"
    assert sum(text.stats.accepted_at) == text.stats.accepted <= text.stats.drafted
    assert engine.generate("x", max_tokens=40, acceptance="rejection", depth=4, temperature=0) == engine.generate(
        "x", max_tokens=40, depth=0, temperature=0
    )


def test_speeds_follow_the_clock(engine: Engine):
    clock = FakeClock()
    slow = Engine(engine.model, clock)
    last = None
    for event in slow.stream("x", max_tokens=8, depth=0, temperature=0):
        last = event
        clock.advance(0.5)

    assert last.stats.decode_seconds == 3.5
    assert last.stats.tokens_per_second == 8 / 3.5


@pytest.mark.parametrize(("options", "message"), [
    ({"max_tokens": 0}, "max_tokens is 0"), ({"depth": -1}, "depth is -1"), ({"depth": 17}, "room for 16"),
    ({"depth": "deep"}, "depth is 'deep'; it must be auto"), ({"max_depth": -2}, "max_depth is -2"),
    ({"max_depth": 17}, "room for 16"),
    ({"acceptance": "maybe"}, "same-text, rejection"), ({"stop": ""}, "stop string is empty"),
    ({"stop": ["a", ""]}, "stop string is empty"), ({"temperature": -1}, "temperature"), ({"seed": -5}, "seed"),
    ({"top_q": 1}, "top_q"),
])  # fmt: skip
def test_bad_options_are_refused_before_anything_runs(engine: Engine, options: dict, message: str):
    with pytest.raises(OptionError, match=message):
        engine.stream("x", **options)


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(engine: Engine, prompt):
    with pytest.raises(OptionError, match="prompt is empty"):
        engine.generate(prompt)


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(engine: Engine):
    with pytest.raises(OptionError, match=r"4096 tokens.*5001"):
        engine.generate("x" * 5000)


def test_public_names_are_there_and_others_are_not():
    assert {name for name in pilotfish.__all__ if getattr(pilotfish, name)} == set(pilotfish.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        pilotfish.nothing  # noqa: B018


def test_depth_is_chosen_at_run_time_and_the_text_stays(engine: Engine):
    plain = engine.generate("def f(x):", max_tokens=120, depth=0, **SAMPLED)
    chosen = engine.generate("def f(x):", max_tokens=120, **SAMPLED)

    assert chosen == plain
    assert chosen.stats.depth == "auto"
    assert len(chosen.stats.depths) == chosen.stats.rounds
    assert len(set(chosen.stats.depths)) > 1
    assert plain.stats.no_drafting == "it was turned off"


def test_a_cap_on_the_depth_is_kept(engine: Engine):
    capped = engine.generate("def f(x):", max_tokens=60, max_depth=2, **SAMPLED)

    assert max(capped.stats.depths) <= 2
    assert engine.generate("def f(x):", max_tokens=20, max_depth=0, **SAMPLED).stats.drafted == 0


def test_without_a_drafter_the_reason_is_given(tiny):
    text = pilotfish.load(tiny, draft=None).generate("x", max_tokens=4, temperature=0)

    assert text.stats.no_drafting == "no drafter was found or given"
