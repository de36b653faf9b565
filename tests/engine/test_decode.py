"""The decode loop: what is dispatched and read when, where a text ends, and batches."""

from __future__ import annotations

from itertools import pairwise

import mlx.core as mx
import pytest

from pilotfish.engine import batch
from pilotfish.engine.acceptance import RULES, SameText
from pilotfish.engine.decode import DecodeLoop, Device, prefill
from pilotfish.engine.depth import FixedDepth
from pilotfish.engine.round import RoundParts, run_round
from pilotfish.engine.rows import Row
from pilotfish.engine.sampling import Sampler, SamplingParams
from pilotfish.engine.state import DecodeState, RoundResult
from pilotfish.testing import CountingDevice, ScriptedDrafter
from tests.conftest import Pair, decode, load_pair

SAMPLED = SamplingParams(temperature=1.0, top_k=64, top_p=0.95, seed=3)


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_each_round_is_one_dispatch_and_one_read_that_comes_a_round_late(e2b: Pair, depth: int):
    device = CountingDevice()

    row, loop = decode(e2b.target, e2b.drafter, e2b.prompt, 30, depth, device=device)

    log = [entry for entry in device.log if entry != "W"]
    assert len(row.tokens) == 30
    assert log.count("R") == loop.counts.rounds
    assert log.count("R") <= log.count("D") <= log.count("R") + 1
    assert log[:3] == ["D", "D", "R"]
    while len(log) > 2 and log[-2:] == ["R", "R"]:  # the last rounds are read with nothing left to dispatch
        log.pop()
    for before, after in pairwise(log[2:]):
        assert before != after


def test_no_round_is_dispatched_that_the_budget_cannot_use(e2b: Pair):
    device = CountingDevice()

    decode(e2b.target, None, e2b.prompt, 10, device=device)

    assert device.log.count("D") == 10


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_a_round_evaluates_nothing(e2b: Pair, rule: str, params: SamplingParams):
    """Tracing for compilation forbids evaluation, so a round that can be traced reads nothing back."""
    parts = RoundParts(e2b.target, e2b.drafter, RULES[rule], Sampler([params]))
    state = run_round(parts, prefill(e2b.target, e2b.prompt, Device()), 0).state
    mx.eval(state.length)

    shapes = []

    def traced(length, token, hidden, *flat):
        arrays = iter(flat)
        caches = tuple(tuple(next(arrays) for _ in buffers) for buffers in state.caches)
        result = run_round(parts, DecodeState(length, token, hidden, caches), 3)
        shapes.extend([result.tokens.shape, result.accepted.shape])
        return length

    inputs = (*state[:3], *(b for buffers in state.caches for b in buffers))
    mx.compile(traced)(*inputs)
    assert shapes == [(1, 4), (1,)]

    with pytest.raises(ValueError, match="eval"):  # the control: what reads a value cannot be traced
        mx.compile(lambda length: mx.array(length.item()))(state.length)


@pytest.mark.parametrize("depth", [0, 2, 5])
@pytest.mark.parametrize("right", [0, 2, 5])
@pytest.mark.parametrize("end", range(1, 14))
def test_end_of_text_anywhere_in_an_accepted_run_ends_as_plain_decoding_does(
    e2b: Pair, end: int, right: int, depth: int
):
    text = e2b.greedy
    eos = text[end]
    first = text.index(eos)
    drafter = ScriptedDrafter([e2b.prompt + text], lambda _: right, 512)

    row, _ = decode(e2b.target, drafter, e2b.prompt, 40, depth, eos=frozenset([eos]))

    assert (row.tokens, row.finish_reason) == (text[: first + 1], "stop")
    assert row.final_state.length.item() == row.length == len(e2b.prompt) + first


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("budget", range(1, 10))
def test_the_token_budget_may_fall_on_any_draft(e2b: Pair, budget: int, depth: int):
    drafter = ScriptedDrafter([e2b.prompt + e2b.greedy], lambda _: 3, 512)

    row, _ = decode(e2b.target, drafter, e2b.prompt, budget, depth)

    assert (row.tokens, row.finish_reason) == (e2b.greedy[:budget], "length")
    assert row.final_state.length.item() == len(e2b.prompt) + budget - 1


@pytest.mark.parametrize("kept", range(1, 9))
def test_stopping_at_a_token_forgets_the_rest_and_the_state_can_go_on(e2b: Pair, kept: int):
    drafter = ScriptedDrafter([e2b.prompt + e2b.greedy], lambda _: 4, 512)
    row = Row(len(e2b.prompt), 40)
    parts = RoundParts(e2b.target, drafter, SameText(), Sampler([SamplingParams()]))
    loop = DecodeLoop(parts, FixedDepth(4), prefill(e2b.target, e2b.prompt, Device()), [row], Device())
    for _ in loop.steps():
        if len(row.tokens) >= kept:
            loop.stop(row, kept)

    assert (row.tokens, row.finish_reason) == (e2b.greedy[:kept], "stop")
    again = Row(len(e2b.prompt) + kept, 20)
    for _ in DecodeLoop(parts, FixedDepth(4), row.final_state, [again], Device()).steps():
        pass
    assert again.tokens == e2b.greedy[kept : kept + 20]


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("variant", ["e2b", "26b-a4b"])
def test_ragged_rows_of_a_batch_equal_their_solo_runs(variant: str, params: SamplingParams):
    pair = load_pair(variant)
    prompts = [pair.prompt[:5], pair.prompt[:17], pair.prompt]
    budgets = [12, 30, 21]
    solo = [decode(pair.target, None, p, n, params=params)[0].tokens for p, n in zip(prompts, budgets, strict=True)]
    answers = [p + s for p, s in zip(prompts, solo, strict=True)]
    ragged = RaggedDrafter(answers, 512)
    parts = RoundParts(pair.target, ragged, SameText(), Sampler([params] * 3))
    rows = [Row(len(p), n) for p, n in zip(prompts, budgets, strict=True)]
    state = batch.join(pair.target.specs, [prefill(pair.target, p, Device()) for p in prompts])

    for _ in DecodeLoop(parts, FixedDepth(4), state, rows, Device()).steps():
        pass

    assert [row.tokens for row in rows] == solo
    assert [row.final_state.length.item() for row in rows] == [len(a) - 1 for a in answers]


class RaggedDrafter(ScriptedDrafter):
    """Row b keeps b * 2 drafts of every round, so rows drift apart."""

    def __init__(self, answers, vocab_size):
        super().__init__(answers, lambda _: 0, vocab_size)
        self.by_length = {len(a): a for a in answers}

    def draft(self, state, depth, propose):
        from pilotfish.engine.state import Draft

        positions = mx.minimum(state.length[:, None] + 1 + mx.arange(depth), self._answers.shape[1] - 1)
        rows = state.token.shape[0]
        answers = mx.take_along_axis(self._answers[-rows:], positions, axis=1)  # rows that finish leave from the front
        right = mx.arange(depth) < 2 * mx.arange(3 - rows, 3)[:, None]
        return Draft(mx.where(right, answers, (answers + 1) % self._vocab), None)


def test_a_prompt_of_one_token_decodes_the_same_at_every_depth(pair: Pair):
    texts = [decode(pair.target, pair.drafter, pair.prompt[:1], 30, depth)[0].tokens for depth in (0, 3, 8)]

    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("depth", [1, 3, 8])
def test_sampled_text_is_the_same_at_every_depth(pair: Pair, depth: int):
    plain, _ = decode(pair.target, None, pair.prompt, 48, params=SAMPLED)
    drafted, loop = decode(pair.target, pair.drafter, pair.prompt, 48, depth, params=SAMPLED)

    assert drafted.tokens == plain.tokens
    assert loop.counts.drafted > 0


def test_an_always_wrong_drafter_changes_nothing_but_the_work(e2b: Pair):
    drafter = ScriptedDrafter([e2b.prompt + e2b.greedy], lambda _: 0, 512)

    row, loop = decode(e2b.target, drafter, e2b.prompt, 40, depth=8)

    assert row.tokens == e2b.greedy[:40]
    assert loop.counts.accepted == 0
    assert loop.counts.rounds == 40


def test_dispatch_returns_without_reading(e2b: Pair):
    result = RoundResult(DecodeState(mx.array([1]), mx.array([[1]]), mx.zeros((1, 1, 1)), ()), mx.array([[1]]),
                         mx.array([0]))  # fmt: skip

    assert Device().dispatch(result, mx.array([[0, 1]])) is None
