"""Penalties and biases: every row sees the history that plain decoding would have had."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from pilotfish.engine.logprobs import Logprobs
from pilotfish.engine.processors import NOTHING, Adjustments, Processors
from pilotfish.engine.state import Past
from pilotfish.errors import OptionError
from pilotfish.kernels import best_operations
from pilotfish.kernels.operations import Operations
from pilotfish.kernels.stock import StockOperations

VOCAB = 40


def by_hand(logits: np.ndarray, seen: list[int], a: Adjustments, position: int, prompt_length: int) -> np.ndarray:
    out = logits.astype(np.float64).copy()
    window = [t for t in seen[len(seen) - a.window :] if t >= 0] if a.window else []
    for token in set(window):
        out[token] = out[token] / a.repetition if out[token] > 0 else out[token] * a.repetition
        out[token] -= a.presence + a.frequency * window.count(token)
    for token, bias in a.bias.items():
        out[token] += bias
    if position < prompt_length + a.min_tokens:
        out[list(a.eos)] = -math.inf
    return out


ROWS = [
    Adjustments(1.3, 0.5, 0.2, window=8, of_prompt=True),
    Adjustments(window=5),
    Adjustments(0.8, -0.5, 0.7, window=3, bias={3: 2.0, 7: -100.0}, min_tokens=6, eos=frozenset({1, 2})),
    Adjustments(budget=(30, 31, 2)),
    Adjustments(frequency=0.4, window=4, budget=(5, 6, 0), min_tokens=2, eos=frozenset({3})),
]
KINDS = [None, best_operations()]  # made of MLX's operations, and as the device does it in one piece


def closed_by_hand(out: np.ndarray, text: list[int], a: Adjustments, position: int, prompt_length: int) -> np.ndarray:
    opens, closes, most = a.budget or (-1, -1, 0)
    last = next((t for t in reversed(text) if t in (opens, closes)), closes)
    if a.budget and last == opens and position >= prompt_length + most:
        return np.where(np.arange(len(out)) == closes, out, -math.inf)
    return out


@pytest.mark.parametrize("operations", KINDS, ids=["in pieces", "fused"])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("first", [0, 2])
def test_rows_are_changed_as_by_hand(operations: Operations | None, named: bool, first: int):
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, VOCAB, 12).tolist() for _ in ROWS]
    prompts[3][9], prompts[3][10:], prompts[4][11] = 30, [0, 0], 5
    lengths = [len(p) for p in prompts]
    processors = Processors(ROWS, VOCAB, lengths, operations)
    logits = rng.normal(0, 3, (len(ROWS), 5, VOCAB)).astype(np.float32)
    drafts = rng.integers(0, VOCAB, (len(ROWS), 4 + first))
    drafts[3, 2 + first], drafts[4, 1] = 31, 6
    order = rng.permutation(VOCAB) if named else np.arange(VOCAB)
    ids = mx.broadcast_to(mx.array(order.astype(np.int32)), (len(ROWS), 5, VOCAB)) if named else None

    got = np.array(processors.apply(mx.array(logits[..., order]), processors.begin(prompts), mx.array(drafts, mx.int32),
                                    mx.array([n - 1 for n in lengths]), first, ids))  # fmt: skip

    for b, a in enumerate(ROWS):
        for i in range(5):
            before = list(drafts[b, : first + i])
            seen = (prompts[b] if a.of_prompt else [NOTHING] * 12) + before
            position = lengths[b] + first + i
            want = by_hand(logits[b, i], seen, a, position, lengths[b])
            want = closed_by_hand(want, prompts[b] + before, a, position, lengths[b])[order]
            np.testing.assert_allclose(got[b, i], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("operations", KINDS, ids=["in pieces", "fused"])
def test_a_row_is_the_same_alone_and_among_others(operations: Operations | None):
    processors = Processors(
        [Adjustments(1.3, 0.5, 0.2, window=8, of_prompt=True, budget=(9, 8, 1))], VOCAB, [6], operations
    )
    past = processors.begin([[1, 2, 3, 4, 5, 5]])
    drafts = mx.array([[5, 9, 9, 2]])
    logits = mx.random.normal((1, 5, VOCAB), key=mx.random.key(0))
    together = processors.apply(logits, past, drafts, mx.array([5]))
    for i in range(5):
        moved = processors.advance(past, drafts[:, :i], mx.array([i - 1])) if i else past
        alone = processors.apply(logits[:, i : i + 1], moved, drafts[:, :0], mx.array([5 + i]))
        assert mx.array_equal(alone[:, 0], together[:, i]).item()
        drafted = processors.apply(logits[:, i : i + 1], past, drafts[:, :i], mx.array([5]), first=i)
        assert mx.array_equal(drafted[:, 0], together[:, i]).item()


@pytest.mark.parametrize("operations", KINDS, ids=["in pieces", "fused"])
def test_an_end_may_come_early_where_nothing_else_may(operations: Operations | None):
    processors = Processors([Adjustments(min_tokens=9, eos=frozenset({3, 5}))], VOCAB, [4], operations)
    some = mx.where(mx.arange(VOCAB) < 6, 1.0, -math.inf)[None, None]
    ends = mx.where((mx.arange(VOCAB) == 3) | (mx.arange(VOCAB) == 5), 1.0, -math.inf)[None, None]
    logits, drafts = mx.concatenate([some, ends], axis=1), mx.array([[0]])

    got = processors.apply(logits, processors.begin([[1, 2, 3, 4]]), drafts, mx.array([3]))

    assert np.flatnonzero(np.isfinite(np.array(got[0, 0]))).tolist() == [0, 1, 2, 4]
    assert np.flatnonzero(np.isfinite(np.array(got[0, 1]))).tolist() == [3, 5]


@pytest.mark.parametrize("operations", KINDS, ids=["in pieces", "fused"])
def test_the_past_moves_by_what_was_committed(operations: Operations | None):
    row = Adjustments(presence=1.0, window=8, of_prompt=True, budget=(6, 11, 0))
    processors = Processors([row] * 2, VOCAB, [3, 3], operations)
    past = processors.begin([[1, 2, 3], [4, 5, 6]])
    assert past.tokens.tolist() == [[-1] * 5 + [1, 2, 3], [-1] * 5 + [4, 5, 6]]
    assert past.open.tolist() == [0, 1]
    moved = processors.advance(past, mx.array([[6, 8, 9], [10, 11, 12]]), mx.array([0, 2]))
    assert moved.tokens.tolist() == [[-1] * 4 + [1, 2, 3, 6], [-1, -1, 4, 5, 6, 10, 11, 12]]
    assert moved.open.tolist() == [1, 0]
    assert processors.advance(past, mx.array([[0, 6], [0, 11]]), mx.array([0, 0])).open.tolist() == [0, 1]
    many = processors.advance(past, mx.array([list(range(20, 32))] * 2), mx.array([10, 11]))  # more than the window
    assert many.tokens.tolist() == [list(range(23, 31)), list(range(24, 32))]


def test_rows_that_are_left_see_the_same():
    processors = Processors(ROWS, VOCAB, [6] * len(ROWS))
    prompts = [[b, 2, 3, 4, 5, b] for b in range(len(ROWS))]
    logits = mx.random.normal((len(ROWS), 2, VOCAB), key=mx.random.key(1))
    drafts, lengths = mx.array([[7]] * len(ROWS)), mx.array([5] * len(ROWS))
    past, index = processors.begin(prompts), mx.array([4, 2])
    everything = processors.apply(logits, past, drafts, lengths)
    left = processors.select([4, 2]).apply(logits[index], Past(past.tokens[index], past.open[index]), drafts[index],
                                           lengths[index])  # fmt: skip
    assert mx.array_equal(left, everything[index]).item()


@pytest.mark.parametrize(("values", "why"), [
    ({"repetition": 0.0}, "repetition penalty is 0"), ({"repetition": math.nan}, "repetition penalty"),
    ({"presence": 1e9}, "presence penalty"), ({"frequency": -math.inf}, "frequency penalty"),
    ({"window": -1}, "window"), ({"bias": {1: math.inf}}, "finite"),
])  # fmt: skip
def test_values_out_of_range_are_refused(values: dict, why: str):
    with pytest.raises(OptionError, match=why):
        Adjustments(**values)


@pytest.mark.parametrize("operations", [StockOperations(), best_operations()], ids=["stock", "fused"])
def test_log_probabilities_are_of_the_raw_distribution_best_first(operations: Operations):
    logits = mx.random.normal((2, 3, VOCAB), key=mx.random.key(1)) * 4
    tokens = mx.array([[1, 2, 3], [4, 5, 6]])
    found = Logprobs(*operations.logprobs(logits, tokens, 4))
    want = np.array(logits).astype(np.float64)
    want = want - np.log(np.exp(want).sum(-1, keepdims=True))
    np.testing.assert_allclose(np.array(found.top), -np.sort(-want, axis=-1)[..., :4], rtol=1e-5)
    np.testing.assert_allclose(found.chosen[1, 2].item(), want[1, 2, 6], rtol=1e-5)
    assert found.top_ids[0, 0, 0].item() == want[0, 0].argmax()
    assert operations.logprobs(logits, tokens, 0)[2].shape == (2, 3, 0)


@pytest.mark.parametrize("operations", [StockOperations(), best_operations()], ids=["stock", "fused"])
def test_masks_hide_what_their_bits_do_not_name(operations: Operations):
    rng = np.random.default_rng(5)
    words = rng.integers(-(2**31), 2**31, (2, 3, 2), dtype=np.int64).astype(np.int32)
    allowed = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")[..., :VOCAB].astype(bool)
    logits = rng.normal(size=(2, 3, VOCAB)).astype(np.float32)
    ids = rng.permutation(VOCAB).astype(np.int32)

    got = np.array(operations.mask(mx.array(logits), mx.array(words)))
    named = operations.mask(mx.array(logits[..., ids]), mx.array(words), mx.broadcast_to(mx.array(ids), (2, 3, VOCAB)))

    np.testing.assert_array_equal(got, np.where(allowed, logits, -np.inf))
    np.testing.assert_array_equal(np.array(named), got[..., ids])
