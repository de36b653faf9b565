"""Prompt look-up: what is found, when it drafts, and that the text stays that of plain decoding, for any model."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import mlx.core as mx
import pytest

from pilotfish.engine.depth import AutoDepth, AutoLookup, DepthMemory, FixedLookup, Kept, Kind, RoundSeen
from pilotfish.engine.depth.matches import LONGEST, MatchMemory
from pilotfish.engine.drafters.lookup import SIZES, PromptLookup, TextIndex
from pilotfish.errors import DraftingUnsupportedError, ModelNotFoundError
from pilotfish.runtime.loaded import load
from pilotfish.testing.checkpoints import write_tiny


def by_hand(text: list[int]) -> tuple[int, int]:
    """Where the continuation stands and how long the match is, of the newest run of the largest size there is."""
    for size in SIZES:
        for place in range(len(text) - 1, size - 1, -1):
            if text[place - size : place] == text[len(text) - size :]:
                length = 0
                while length < min(place, LONGEST) and text[place - 1 - length] == text[-1 - length]:
                    length += 1
                return place, length
    return 0, 0


def test_a_match_is_found_by_its_longest_run_and_then_followed():
    chance = random.Random(2)
    for _ in range(200):
        text = [chance.randrange(4) for _ in range(chance.randrange(2, 30))]
        index = TextIndex(text)
        place, length = by_hand(text)
        for _ in range(20):
            assert index.match == length
            if length:
                period = len(text) - place
                assert index.continuation(6) == [text[place + i % period] for i in range(6)]
            token = chance.randrange(4)
            foretold = index.add(token)
            assert foretold == ((text[place] == token) if length else None)
            text.append(token)
            place, length = (place + 1, min(length + 1, LONGEST)) if foretold else by_hand(text)


def test_drafts_begin_after_what_is_in_flight_row_by_row():
    lookup = PromptLookup([[1, 2, 3, 4, 5, 6, 1, 2], [7, 8, 9, 7]], FixedLookup(2))
    # The device has committed three tokens more than the host knows in the first row, none in the second.
    draft = lookup.draft(mx.array([10, 3]), 2, most_ahead=3, vocab=None)
    assert draft.tokens.tolist() == [[6, 1], [8, 9]]

    lookup.add(1, [8])
    lookup.select([1])
    assert lookup.draft(mx.array([4]), 3, most_ahead=0, vocab=None).tokens.tolist() == [[9, 7, 8]]


def test_the_longer_a_match_the_longer_the_draft():
    memory = DepthMemory(16)
    policy = AutoLookup(AutoDepth(memory, max_depth=0))
    for _ in range(200):
        policy.saw_token(1, False)
        policy.saw_token(LONGEST, True)
    assert policy.next_depth([1], 0) == 0
    assert policy.next_depth([LONGEST], 0) == 16
    assert policy.next_depth([0], 0) == 0
    # What is in flight has to follow the match as well: enough of it, and nothing is left to hope for.
    for length in range(4, LONGEST + 1):
        for i in range(60):
            policy.saw_token(length, i % 10 > 0)
    sure, hopeless = (AutoLookup(AutoDepth(memory, max_depth=0)).next_depth([4], ahead) for ahead in (0, 40))
    assert (sure > 0, hopeless) == (True, 0)


def test_a_better_assistant_is_left_alone():
    memory = DepthMemory(16)
    beside = AutoDepth(memory)
    policy = AutoLookup(beside)
    while beside.warming_up:
        assert policy.next_depth([LONGEST], 0) == 0  # the first looks are not disturbed
        depth = beside.next_depth(1)
        beside.observe(RoundSeen(depth, 1, [Kept(depth, False)], 1 + 0.02 * depth))
    for match in range(1, LONGEST + 1):
        for _ in range(40):
            policy.saw_token(match, False)
    assert beside.value > 2
    assert policy.next_depth([3], 0) == 0


def test_rounds_that_look_up_cost_what_they_were_timed_at():
    memory = DepthMemory(16)
    beside = AutoDepth(memory, max_depth=0)
    policy = AutoLookup(beside)
    for _ in range(30):
        beside.observe(RoundSeen(0, 1, [Kept(0, False)], 1.0))
    for _ in range(60):
        policy.observe(RoundSeen(16, 1, [Kept(16, False)], 40.0))  # deep rounds are dear here
        policy.saw_token(LONGEST, True)
    assert memory.lookup_costs(Kind(1)).relative(16) > 20
    assert memory.costs(Kind(1)).relative(0) == 1
    assert 0 <= policy.next_depth([LONGEST], 0) < 16


def test_a_loaded_model_remembers_how_far_matches_hold():
    memory = MatchMemory()
    request = MatchMemory(memory)
    before = MatchMemory(memory).probability(4)
    for _ in range(50):
        request.observe(4, True)
    assert request.probability(4) > MatchMemory(memory).probability(4) - 0.05 > before


@pytest.mark.parametrize("model_type", ["gemma4", *(pytest.param(m, marks=pytest.mark.slow)
                                                   for m in ("gemma3_text", "llama", "qwen3"))])  # fmt: skip
@pytest.mark.parametrize("rule", ["same-text", "rejection"])
def test_any_model_says_the_same_with_it(tiny: Path, tmp_path: Path, model_type: str, rule: str):
    folder = tiny if model_type == "gemma4" else write_tiny(tmp_path / "m", model_type)
    engine = load(folder, draft="lookup")
    assert engine.model.drafter_name == "lookup"
    prompt = "the cat sat. the cat sat. the cat"
    accepted = 0
    for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3, "top_k": 4}):
        plain = engine.generate(prompt, max_tokens=60, depth=0, **options)
        for depth in (1, 3, 8, "auto"):
            got = engine.generate(prompt, max_tokens=60, depth=depth, acceptance=rule, **options)
            if rule == "same-text" or options["temperature"] == 0:
                assert got.tokens == plain.tokens
            accepted += got.stats.accepted
            assert got.stats.looked_up == got.stats.accepted
    assert accepted > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_beside_an_assistant_the_text_is_the_same(temperature: float):
    nano, looked_up = load("nano"), 0
    prompt = [{"role": "user", "content": "Write this again: " + "for x in range(10):\n    print(x)\n" * 4}]
    for seed in range(3):
        options = {"max_tokens": 120, "temperature": temperature, "seed": seed}
        texts = [nano.generate(prompt, **options, **how) for how in ({"depth": 0}, {"lookup": False}, {})]
        assert len({t.tokens for t in texts}) == 1
        assert texts[1].stats.looked_up == 0
        looked_up += texts[2].stats.looked_up
    assert looked_up > 0


def test_it_drafts_from_the_first_round_on(tiny: Path):
    engine = load(tiny, draft="lookup")
    assert engine.generate("ab" * 20, max_tokens=9, depth=3, temperature=0).stats.depths[0] == 3


def test_kinds_of_draft(copy_of_tiny: Path, tmp_path: Path):
    assert load("nano").model.drafter_name == "assistant and lookup"
    assert load("nano", draft="assistant").model.drafter_name == "assistant"
    assert load("nano", draft="none").model.drafter_name == "none"
    shutil.rmtree(copy_of_tiny / "assistant")
    alone = copy_of_tiny
    assert load(alone).model.drafter_name == "lookup"
    assert load(write_tiny(tmp_path / "m", "llama")).model.drafter_name == "none"  # only where it is asked for
    with pytest.raises(ModelNotFoundError, match="no assistant in its folder"):
        load(alone, draft="assistant")


def test_running_state_is_refused(tmp_path: Path):
    with pytest.raises(DraftingUnsupportedError, match="cannot be rolled back"):
        load(write_tiny(tmp_path / "m", "mamba"), draft="lookup")
