"""The engine against numbers from the reference implementation, for every member of the family."""

from __future__ import annotations

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest

from pilotfish.engine.decode import Device, prefill
from pilotfish.engine.state import DecodeState
from tests.conftest import Pair, decode

TOLERANCE = 1e-4


def test_target_logits_and_hidden_states_agree_in_one_pass(pair: Pair):
    ids = mx.array([pair.prompt + pair.greedy[:-1]])
    views = [spec.prefill_view((), 0) for spec in pair.target.specs]

    logits, hidden = pair.target.forward(ids, views)

    assert np.abs(np.array(logits)[:, :48] - pair.golden["logits"]).max() < TOLERANCE
    assert np.abs(np.array(hidden) - pair.golden["hidden"]).max() < TOLERANCE


@pytest.mark.parametrize("chunk", [1, 3, 15, 16, 17, 48])
def test_chunked_prefill_gives_the_same_hidden_state(pair: Pair, chunk: int):
    state = prefill(pair.target, pair.prompt, Device(), chunk=chunk)
    views = [s.decode_view(b, state.length) for s, b in zip(pair.target.specs, state.caches, strict=True)]

    _, hidden = pair.target.forward(state.token, views)

    assert np.abs(np.array(hidden)[0, 0] - pair.golden["hidden"][0, 47]).max() < TOLERANCE


@pytest.mark.parametrize("draft", [0, 1, 2])
def test_drafter_logits_agree_on_every_recorded_draft(pair: Pair, draft: int):
    golden = pair.golden
    prefix = int(golden["draft_prefix"][draft])
    ids = pair.prompt + pair.greedy
    state = prefill(pair.target, ids[: prefix + 1], Device())
    hidden = mx.array(golden[f"draft{draft}_hidden_in"])
    state = DecodeState(state.length, state.token, hidden, state.caches)
    seen: list[np.ndarray] = []

    class Greedy:
        wants_offers = adjusts = False

        def adjusted(self, logits: mx.array, ahead: int, token_ids: mx.array | None) -> mx.array:
            return logits

        def __call__(self, logits: mx.array, ahead: int, token_ids: mx.array | None = None):
            full = mx.full((1, 1, 512), np.nan)
            full = logits if token_ids is None else mx.put_along_axis(full, token_ids, logits, axis=-1)
            seen.append(np.array(full)[0, 0])
            best = mx.argmax(logits, axis=-1, keepdims=True)
            return (best if token_ids is None else mx.take_along_axis(token_ids, best, axis=-1))[..., 0]

    tokens = pair.drafter.draft(state, 4, Greedy()).tokens

    assert np.array(tokens)[0].tolist() == golden[f"draft{draft}_tokens"].tolist()
    for got, want in zip(seen, golden[f"draft{draft}_logits"], strict=True):
        scored = ~np.isnan(got)  # the ordered head scores the tokens of the chosen clusters only
        assert scored.sum() >= 64
        assert np.abs(got - want)[scored].max() < TOLERANCE


@pytest.mark.parametrize("depth", range(9))
def test_greedy_text_is_the_reference_text_at_every_depth(pair: Pair, depth: int):
    row, _ = decode(pair.target, pair.drafter, pair.prompt, 64, depth)

    assert row.tokens == pair.greedy


@pytest.mark.parametrize("depth", [0, 4])
def test_stock_operations_give_the_reference_text_too(stock_pair: Pair, depth: int):
    row, _ = decode(stock_pair.target, stock_pair.drafter, stock_pair.prompt, 64, depth)

    assert row.tokens == stock_pair.greedy


def test_accepted_counts_by_round_are_the_reference_counts(pair: Pair):
    accepted: list[int] = []
    loop_counts: list[tuple[int, int]] = []

    def watch(loop):
        loop_counts.append((loop.counts.rounds, loop.counts.accepted))

    decode(pair.target, pair.drafter, pair.prompt, 64, depth=4, after_round=watch)
    for (_, before), (_, after) in pairwise(loop_counts):
        accepted.append(after - before)

    want = pair.golden["round_accepted"].tolist()
    budget = 63 - sum(n + 1 for n in want[:-1])  # the last round is cut by the token budget
    assert accepted[:-1] == want[:-1]
    assert accepted[-1] == min(want[-1], budget)
