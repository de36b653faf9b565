"""The model that ships: small, quantized, documented, and the same text with drafting on."""

from __future__ import annotations

from functools import cache

import pytest

import pilotfish
from pilotfish.bench.acceptance import measure
from pilotfish.runtime.loaded import Engine
from pilotfish.store import checkpoint, names
from pilotfish.text.prompts import read_prompts
from pilotfish.verify import DEFAULT_PROMPTS, verify
from tests.conftest import POLYGLOT


@cache
def nano() -> Engine:
    return pilotfish.load()


def test_the_pair_is_small_and_quantized_to_four_bits():
    folder = names.resolve("nano")
    files = [f for f in folder.rglob("*") if f.is_file()]

    assert sum(f.stat().st_size for f in files) <= 12_000_000
    for part in (folder, folder / "assistant"):
        assert checkpoint.read_config(part)["quantization"] == {"group_size": 64, "bits": 4, "mode": "affine"}


def test_it_is_built_like_e2b():
    text = checkpoint.text_config(nano().model.config)

    assert text["hidden_size_per_layer_input"] > 0
    assert 0 < text["num_kv_shared_layers"] < text["num_hidden_layers"]
    assert set(text["layer_types"]) == {"sliding_attention", "full_attention"}
    assert text["sliding_window"] >= 128
    assert nano().model.context >= 2048
    assert text["num_hidden_layers"] >= 8 * len(nano().model.drafter.network.layers)


def test_a_model_card_says_what_it_is_and_is_not():
    card = (names.resolve("nano") / "README.md").read_text()

    for word in ("licence", "not", "trained", "polyglot"):
        assert word in card.lower()


def test_messages_are_answered_with_code():
    text = nano().generate([{"role": "user", "content": "def add(a, b):"}], max_tokens=24, seed=1)

    assert text.startswith("```")
    assert text.stats.temperature == 1.0  # the checkpoint's own default


def test_drafts_are_accepted_greedy_and_sampled():
    """A drafter that never met the sampler would pass greedily and fail sampled."""
    results = {r.setting: r for r in measure(nano(), DEFAULT_PROMPTS[:4], 40, depth=4)}

    assert len(results) == 3
    assert all(r.accepted_per_round > 0.5 for r in results.values())


def test_texts_are_the_same_and_logits_bitwise_equal():
    report = verify(nano(), read_prompts(POLYGLOT, 1), 16, depths=[1, 4])

    assert (report.same_text, report.same_logits) == (True, True)


@pytest.mark.slow
def test_the_proof_holds_with_stock_operations_too():
    report = verify(pilotfish.load(kernels="stock"), read_prompts(POLYGLOT, 1), 8, depths=[1, 4])

    assert (report.same_text, report.same_logits) == (True, True)


@pytest.mark.slow
def test_texts_are_the_same_and_logits_bitwise_equal_over_many_prompts():
    prompts = read_prompts(POLYGLOT, 6)  # spread over the six languages

    report = verify(nano(), prompts, 64)

    assert len(report.comparisons) == len(prompts) * 2 * 5
    assert (report.same_text, report.same_logits) == (True, True)
