"""The sampler draws from the distribution it says, by position, whatever the shape of the pass."""

from __future__ import annotations

import itertools
import math

import mlx.core as mx
import numpy as np
import pytest

from pilotfish.engine.acceptance import Rejection
from pilotfish.engine.sampling import MAX_SEED, Sampler, SamplingParams
from pilotfish.engine.state import Draft, Offer
from pilotfish.errors import OptionError
from pilotfish.kernels import best_operations
from pilotfish.kernels.operations import Operations

VOCAB, DRAWS = 16, 100_000
LOGITS = np.random.default_rng(5).normal(0, 1, VOCAB).astype(np.float32)
LOGITS[3] = LOGITS[7]  # a tie
GRID = list(itertools.product([0.3, 1.0, 1.7], [0, 5], [1.0, 0.8], [0.0, 0.1]))
# Chi-square above this happens by chance once in a million (Wilson-Hilferty approximation).
Z = 4.75


def reference(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """The filtered distribution, written the plain way in float64."""
    x = logits.astype(np.float64) / temperature
    keep = np.ones(len(x), bool)
    if top_k:
        keep &= x >= np.sort(x)[-top_k]
    p = np.where(keep, np.exp(x - x.max()), 0)
    p /= p.sum()
    if top_p < 1:
        above = np.array([p[x > v].sum() for v in x])  # mass of strictly likelier tokens
        keep &= above < top_p
        p = np.where(keep, p, 0)
        p /= p.sum()
    p = np.where(p >= min_p * p.max(), p, 0)
    return p / p.sum()


def chi_square_is_plausible(counts: np.ndarray, p: np.ndarray) -> bool:
    """Whether counts may come from p: none where p is 0, and chi-square within Z standard deviations."""
    if counts[p == 0].any():
        return False
    expected = p[p > 0] * counts.sum()
    degrees = max(1, len(expected) - 1)
    chi = ((counts[p > 0] - expected) ** 2 / expected).sum()
    z = ((chi / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    return z < Z


@pytest.fixture(params=[None, best_operations()], ids=["in pieces", "in one piece"])
def operations(request: pytest.FixtureRequest) -> Operations | None:
    """Both ways to choose: of MLX's own operations, and as one operation where this device has it."""
    return request.param


def draws(params: SamplingParams, operations: Operations | None = None) -> np.ndarray:
    rows = mx.broadcast_to(mx.array(LOGITS), (1, DRAWS, VOCAB))
    tokens = Sampler([params], operations=operations).choose(rows, mx.array([0]), 0)
    return np.bincount(np.array(tokens)[0], minlength=VOCAB)


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), GRID)
def test_tokens_are_drawn_from_the_filtered_distribution(temperature, top_k, top_p, min_p, operations):
    counts = draws(SamplingParams(temperature, top_k, top_p, min_p, seed=11), operations)

    assert chi_square_is_plausible(counts, reference(LOGITS, temperature, top_k, top_p, min_p))


def test_the_distribution_test_can_fail():
    counts = draws(SamplingParams(1.0, 5, 0.8, 0.0, seed=11))

    assert not chi_square_is_plausible(counts, reference(LOGITS, 1.2, 5, 0.8, 0.0))
    assert not chi_square_is_plausible(counts, reference(LOGITS, 1.0, 3, 0.8, 0.0))
    assert not chi_square_is_plausible(counts, reference(LOGITS, 1.0, 5, 0.6, 0.0))


OTHER = (LOGITS + np.random.default_rng(6).normal(0, 0.5, VOCAB)).astype(np.float32)


MOST_OF_GRID = [pytest.param(*p, marks=[] if i % 5 == 0 else [pytest.mark.slow]) for i, p in enumerate(GRID)]


@pytest.mark.parametrize("named", [False, True], ids=["whole vocabulary", "some tokens"])
@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), MOST_OF_GRID)
def test_rejection_emits_the_targets_distribution(temperature, top_k, top_p, min_p, named, operations):
    """One draft from another model's distribution: the first emitted token and, where kept, the second follow p."""
    params = SamplingParams(temperature, top_k, top_p, min_p, seed=23)
    first, second = rejection_rounds(params, Rejection(), operations, named)
    p = reference(LOGITS, temperature, top_k, top_p, min_p)

    assert chi_square_is_plausible(first, p)
    assert not second.any() or chi_square_is_plausible(second, p)  # hardly anything is kept where few overlap


def rejection_rounds(
    params: SamplingParams, rule: Rejection, operations: Operations | None, named: bool = False,
    check_share: bool = True,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Counts of the token at the draft's place, and of the token after a kept draft, over many rounds at once."""
    # Every round is a row of its own: the positions are far apart, so no noise is shared.
    length = 2 * mx.arange(DRAWS, dtype=mx.int32) - 1
    rows = Sampler([params] * DRAWS, operations=operations)
    order = np.random.default_rng(7).permutation(VOCAB)[: VOCAB // 2] if named else np.arange(VOCAB)
    offer = Offer(
        mx.broadcast_to(mx.array(OTHER[order])[None, None], (DRAWS, 1, len(order))),
        mx.broadcast_to(mx.array(order.astype(np.int32))[None, None], (DRAWS, 1, len(order))) if named else None,
    )
    drafts = rows.choose(offer.logits, length, 1, offer.ids, rule.draft_stream(rows))
    logits = mx.broadcast_to(mx.array(LOGITS), (DRAWS, 2, VOCAB))

    tokens, accepted = rule.judge(rows, Draft(drafts, (offer,)), logits, length)

    tokens, accepted = np.array(tokens), np.array(accepted)
    q = np.zeros(VOCAB)
    q[order] = reference(OTHER[order], params.temperature, params.top_k, params.top_p, params.min_p)
    share = np.minimum(reference(LOGITS, params.temperature, params.top_k, params.top_p, params.min_p), q).sum()
    assert not check_share or abs(accepted.mean() - share) < 0.02  # acceptance is the overlap of the two distributions
    return (np.bincount(tokens[:, 0], minlength=VOCAB),
            np.bincount(tokens[accepted == 1, 1], minlength=VOCAB))  # fmt: skip


def test_the_rejection_test_can_fail(operations):
    class KeepTooMuch(Rejection):
        def judge(self, sampler, draft, logits, length):
            flat = tuple(Offer(o.logits * 0.5, o.ids) for o in draft.offers)
            return super().judge(sampler, Draft(draft.tokens, flat), logits, length)

    first, _ = rejection_rounds(SamplingParams(1.0, seed=23), KeepTooMuch(), operations, check_share=False)
    assert not chi_square_is_plausible(first, reference(LOGITS, 1.0, 0, 1.0, 0.0))


def offered(logits: np.ndarray, rows: int = 1) -> tuple[Offer, ...]:
    return (Offer(mx.broadcast_to(mx.array(logits)[None, None], (rows, 1, VOCAB)), None),)


def test_rejection_when_both_distributions_are_equal_keeps_everything(operations):
    rows = Sampler([SamplingParams(1.0, seed=4)] * 500, operations=operations)
    length = 2 * mx.arange(500, dtype=mx.int32) - 1
    offers = offered(LOGITS, 500)
    drafts = rows.choose(offers[0].logits, length, 1, None, 1)
    logits = mx.broadcast_to(mx.array(LOGITS), (500, 2, VOCAB))

    _, accepted = Rejection().judge(rows, Draft(drafts, offers), logits, length)

    assert mx.all(accepted == 1).item()


def test_a_draft_the_target_forbids_is_never_kept(operations):
    wrong = (int(LOGITS.argmax()) + 1) % VOCAB
    sure = np.where(np.arange(VOCAB) == wrong, 100, 0).astype(np.float32)
    logits = mx.broadcast_to(mx.array(LOGITS), (1, 2, VOCAB))
    sampler = Sampler([SamplingParams(1.0, top_k=1, seed=4)], operations=operations)

    tokens, accepted = Rejection().judge(sampler, Draft(mx.array([[wrong]]), offered(sure)), logits, mx.array([4]))

    assert accepted.item() == 0
    assert tokens[0, 0].item() == LOGITS.argmax()


def test_both_ways_to_reject_decide_the_same():
    rows = [SamplingParams(1.0, 20, 0.95, seed=1), SamplingParams(), SamplingParams(0.7, 0, 1.0, 0.05, seed=2)]
    keys = mx.random.split(mx.random.key(9), 60)
    for i in range(20):
        logits = mx.random.normal((3, 5, 500), key=keys[3 * i]) * 3
        close = logits[:, :4] + mx.random.normal((3, 4, 500), key=keys[3 * i + 1])
        ids = mx.broadcast_to(mx.random.permutation(500, key=keys[3 * i + 2])[:400].astype(mx.int32), (3, 1, 400))
        length = mx.array([0, 900, 5])
        found = []
        for operations in (None, best_operations()):
            sampler = Sampler(rows, [3], operations)
            offers = tuple(Offer(mx.take_along_axis(close[:, j : j + 1], ids, axis=-1), ids) for j in range(4))
            chosen = [sampler.choose(o.logits, length, 1 + j, o.ids, 1) for j, o in enumerate(offers)]
            tokens, accepted = sampler.reject(Draft(mx.concatenate(chosen, axis=1), offers), logits, length)
            counts: list[int] = accepted.tolist()
            found.append([(n, row[: n + 1]) for n, row in zip(counts, tokens.tolist(), strict=True)])
        assert found[0] == found[1]


@pytest.mark.parametrize("params", [
    SamplingParams(1.0, seed=1), SamplingParams(1.0, top_k=8, top_p=0.9, seed=1), SamplingParams(0.7, min_p=0.05),
    SamplingParams(),
], ids=str)  # fmt: skip
def test_a_row_is_chosen_the_same_alone_and_among_others(params: SamplingParams, operations):
    logits = mx.random.normal((3, 9, 400), key=mx.random.key(1))
    length = mx.array([0, 40, 7])
    others = [SamplingParams(1.3, top_k=30, seed=9), params, SamplingParams()]

    together = np.array(Sampler(others, operations=operations).choose(logits, length, 1))[1]
    one = Sampler([params], operations=operations)
    alone = [one.choose(logits[1:2, i : i + 1], length[1:2], 1 + i).item() for i in range(9)]

    assert together.tolist() == alone


def test_ids_rename_logits_without_changing_the_choice(operations):
    logits = mx.random.normal((1, 5, 200), key=mx.random.key(2))
    length = mx.array([0])
    order = mx.random.permutation(200, key=mx.random.key(3))
    shuffled = mx.take_along_axis(logits, mx.broadcast_to(order, (1, 5, 200)), axis=-1)
    sampler = Sampler([SamplingParams(1.0, top_k=20, top_p=0.9, seed=8)], operations=operations)

    by_place = sampler.choose(logits, length, 0)
    by_name = sampler.choose(shuffled, length, 0, mx.broadcast_to(order.astype(mx.int32), (1, 5, 200)))

    assert by_place.tolist() == by_name.tolist()


def test_seeds_and_positions_both_matter(operations):
    logits = mx.zeros((1, 200, 64))

    def texts(seed: int) -> list[list[int]]:
        return (
            Sampler([SamplingParams(1.0, seed=seed)], operations=operations).choose(logits, mx.array([0]), 0).tolist()
        )

    a, b, again = (texts(seed) for seed in (1, 2, 1))

    assert a == again
    assert sum(x == y for x, y in zip(a[0], b[0], strict=True)) < 20
    assert len(set(a[0])) > 40


def test_suppressed_tokens_are_never_chosen_or_probable(operations):
    logits = mx.broadcast_to(mx.array(LOGITS), (1, 50, VOCAB))
    best = int(LOGITS.argmax())
    for params in (SamplingParams(), SamplingParams(1.0, seed=1)):
        sampler = Sampler([params], [best], operations)
        assert best not in sampler.choose(logits, mx.array([0]), 0).tolist()[0]
        assert sampler.probabilities(logits)[0, 0, best].item() == 0


def test_noise_reaches_the_far_tail_without_infinities():
    sampler = Sampler([SamplingParams(1.0, seed=1)])

    noise = np.array(sampler._gumbel(mx.arange(200)[None], mx.arange(5000), 0))

    assert np.isfinite(noise).all()
    assert abs(noise.mean() - 0.5772) < 0.01
    assert noise.max() > 11


@pytest.mark.parametrize(("field", "value"), [
    ("temperature", -1.0), ("temperature", math.nan), ("temperature", math.inf), ("top_k", -1), ("top_p", 0.0),
    ("top_p", 1.5), ("min_p", -0.1), ("min_p", 1.1), ("seed", -1), ("seed", MAX_SEED + 1),
])  # fmt: skip
def test_values_out_of_range_are_refused_by_name(field: str, value: float):
    with pytest.raises(OptionError, match=field):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), GRID)
def test_both_ways_to_choose_give_the_same_tokens(temperature, top_k, top_p, min_p):
    logits = mx.random.normal((2, 200, 500), key=mx.random.key(4)) * 3
    rows = [SamplingParams(temperature, top_k, top_p, min_p, seed=s) for s in (1, 2)]

    pieces, whole = (
        Sampler(rows, operations=o).choose(logits, mx.array([0, 900]), 1) for o in (None, best_operations())
    )

    assert mx.sum(pieces != whole).item() <= 1  # a logarithm may round differently where two scores all but tie
