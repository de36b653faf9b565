"""Penalties and biases: every row sees the history that plain decoding would have had."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from pilotfish.engine.logprobs import logprobs
from pilotfish.engine.processors import NOTHING, Adjustments, Processors
from pilotfish.errors import OptionError

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
]


@pytest.mark.parametrize("named", [False, True])
def test_rows_are_changed_as_by_hand(named: bool):
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, VOCAB, 12).tolist() for _ in ROWS]
    lengths = [len(p) for p in prompts]
    processors = Processors(ROWS, VOCAB, lengths)
    logits = rng.normal(0, 3, (3, 5, VOCAB)).astype(np.float32)
    drafts = rng.integers(0, VOCAB, (3, 4))
    order = rng.permutation(VOCAB) if named else np.arange(VOCAB)
    ids = mx.broadcast_to(mx.array(order.astype(np.int32)), (3, 5, VOCAB)) if named else None
    history = processors.begin(prompts)

    got = np.array(processors.apply(mx.array(logits[..., order]), history, mx.array(drafts.astype(np.int32)),
                                    mx.array([n - 1 for n in lengths]), ids))  # fmt: skip

    for b, a in enumerate(ROWS):
        for i in range(5):
            seen = (prompts[b] if a.of_prompt else [NOTHING] * 12) + list(drafts[b, :i])
            want = by_hand(logits[b, i], seen, a, lengths[b] + i, lengths[b])[order]
            np.testing.assert_allclose(got[b, i], want, rtol=1e-5, atol=1e-5)


def test_a_row_is_the_same_alone_and_among_others():
    a = ROWS[0]
    processors = Processors([a], VOCAB, [6])
    history = processors.begin([[1, 2, 3, 4, 5, 5]])
    drafts = mx.array([[5, 9, 9, 2]])
    logits = mx.random.normal((1, 5, VOCAB), key=mx.random.key(0))
    together = processors.apply(logits, history, drafts, mx.array([5]))
    for i in range(5):
        longer = mx.concatenate([history, drafts[:, :i]], axis=1)
        alone = processors.apply(logits[:, i : i + 1], longer[:, i:], drafts[:, :0], mx.array([5 + i]))
        assert mx.array_equal(alone[:, 0], together[:, i]).item()


def test_the_history_moves_by_what_was_committed():
    processors = Processors(ROWS[:1] * 2, VOCAB, [3, 3])
    history = processors.begin([[1, 2, 3], [4, 5, 6]])
    assert history.tolist() == [[-1] * 5 + [1, 2, 3], [-1] * 5 + [4, 5, 6]]
    moved = processors.advance(history, mx.array([[7, 8, 9], [10, 11, 12]]), mx.array([0, 2]))
    assert moved.tolist() == [[-1] * 4 + [1, 2, 3, 7], [-1, -1, 4, 5, 6, 10, 11, 12]]


@pytest.mark.parametrize(("values", "why"), [
    ({"repetition": 0.0}, "repetition penalty is 0"), ({"repetition": math.nan}, "repetition penalty"),
    ({"presence": 1e9}, "presence penalty"), ({"frequency": -math.inf}, "frequency penalty"),
    ({"window": -1}, "window"), ({"bias": {1: math.inf}}, "finite"),
])  # fmt: skip
def test_values_out_of_range_are_refused(values: dict, why: str):
    with pytest.raises(OptionError, match=why):
        Adjustments(**values)


def test_log_probabilities_are_of_the_raw_distribution_best_first():
    logits = mx.random.normal((2, 3, VOCAB), key=mx.random.key(1)) * 4
    tokens = mx.array([[1, 2, 3], [4, 5, 6]])
    found = logprobs(logits, tokens, 4)
    want = np.array(logits).astype(np.float64)
    want = want - np.log(np.exp(want).sum(-1, keepdims=True))
    np.testing.assert_allclose(np.array(found.top), -np.sort(-want, axis=-1)[..., :4], rtol=1e-5)
    np.testing.assert_allclose(found.chosen[1, 2].item(), want[1, 2, 6], rtol=1e-5)
    assert found.top_ids[0, 0, 0].item() == want[0, 0].argmax()
    assert logprobs(logits, tokens, 0).top.shape == (2, 3, 0)
