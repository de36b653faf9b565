"""Prompt look-up: what is found, and that the text stays that of plain decoding, for any model."""

from __future__ import annotations

import random
from pathlib import Path

import mlx.core as mx
import pytest

from pilotfish.engine.drafters.lookup import LONGEST, continuation
from pilotfish.errors import DraftingUnsupportedError
from pilotfish.runtime.loaded import load
from pilotfish.testing.checkpoints import write_tiny


def by_hand(text: list[int], depth: int) -> list[int]:
    newest = len(text) - 1
    best, most = newest - 1, 0
    for at in range(newest):
        score = 0
        while score < LONGEST and at >= score and text[at - score] == text[newest - score]:
            score += 1
        if score and score >= most:
            best, most = at, score
    return [text[best + 1 + i % max(1, newest - best)] for i in range(depth)]


def test_the_longest_and_then_the_newest_match_is_continued():
    chance = random.Random(2)
    for _ in range(300):
        text = [chance.randrange(4) for _ in range(chance.randrange(2, 40))]
        spare = [chance.randrange(4) for _ in range(10)]  # what stands beyond the newest token means nothing
        got = continuation(mx.array([text + spare]), mx.array([len(text) - 1]), 6)
        assert got.tolist() == [by_hand(text, 6)]


def test_rows_of_a_batch_do_not_touch():
    texts = [[1, 2, 3, 1, 2, 0, 0], [5, 5, 5, 5, 0, 0, 0]]
    got = continuation(mx.array(texts), mx.array([4, 3]), 3)
    assert got.tolist() == [[3, 1, 2], [5, 5, 5]]


@pytest.mark.parametrize("model_type", ["gemma4", "gemma3_text", "llama", "qwen3"])
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
    assert accepted > 0
    assert got.stats.depths[0] > 0 or got.stats.depths[0] == 0


def test_it_drafts_from_the_first_round_on(tiny: Path):
    engine = load(tiny, draft="lookup")
    assert engine.generate("ab" * 20, max_tokens=9, depth=3, temperature=0).stats.depths[0] == 3


def test_running_state_is_refused(tmp_path: Path):
    with pytest.raises(DraftingUnsupportedError, match="cannot be rolled back"):
        load(write_tiny(tmp_path / "m", "mamba"), draft="lookup")
