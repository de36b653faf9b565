"""The controller of draft depth, in a simulator: how far it stays behind the best fixed depth, chosen in hindsight."""

from __future__ import annotations

import logging
from functools import cache

import pytest

from pilotfish.engine.depth import AutoDepth, Costs, DepthMemory, FixedDepth, Kept, Kind, RoundSeen
from pilotfish.testing.depth_simulator import (
    COSTS,
    STEADY,
    SWITCHING,
    TEXTS,
    Cost,
    ExpectedValueRule,
    Machine,
    Run,
    Text,
    simulate,
)

MAX = 16
TOKENS = 24_000
SEEDS = (5, 6)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "pilotfish")


@cache
def best_fixed(cost: str, text: str) -> float:
    """Tokens a second of the best depth: exact where neither text nor cost change, else of the run itself."""
    if text in STEADY and cost != "context":
        return max(expected_tokens(STEADY[text], d) / COSTS[cost](d, 0) for d in range(MAX + 1))
    machine, kind = Machine(COSTS[cost]), TEXTS[text]
    return max(simulate(FixedDepth(d), machine, kind, TOKENS, 5).rate for d in range(MAX + 1))


def expected_tokens(text: Text, depth: int) -> float:
    reached, tokens = 1.0, 1.0
    for i in range(depth):
        reached *= text(0, i)
        tokens += reached
    return tokens


def auto(cost: str, text: str, stall: float = 0.0, seed: int = SEEDS[0]) -> Run:
    return simulate(AutoDepth(DepthMemory(MAX)), Machine(COSTS[cost], stall=stall), TEXTS[text], TOKENS, seed)


@pytest.mark.slow
@pytest.mark.parametrize("stall", [0.0, 0.01])
@pytest.mark.parametrize("text", STEADY)
@pytest.mark.parametrize("cost", COSTS)
def test_steady_text_is_decoded_within_a_few_percent_of_the_best_depth(cost: str, text: str, stall: float):
    rates = [auto(cost, text, stall, seed=seed).rate for seed in SEEDS]

    assert sum(rates) / len(rates) > 0.96 * best_fixed(cost, text)


@pytest.mark.slow
@pytest.mark.parametrize("text", SWITCHING)
@pytest.mark.parametrize("cost", COSTS)
def test_text_that_changes_its_kind_is_decoded_within_a_tenth_of_the_best_depth(cost: str, text: str):
    assert auto(cost, text).rate > 0.90 * best_fixed(cost, text)


@pytest.mark.parametrize("cost", COSTS)
def test_drafts_that_are_never_kept_cost_two_percent_at_most(cost: str):
    run, plain = auto(cost, "p=0.0"), simulate(FixedDepth(0), Machine(COSTS[cost]), STEADY["p=0.0"], TOKENS, 5)

    assert run.rate > 0.98 * plain.rate


@pytest.mark.slow
def test_it_beats_a_fixed_depth_and_the_expected_value_rule_on_average():
    rates: dict[str, list[float]] = {"auto": [], "fixed": [], "rule": []}
    for cost in COSTS:
        for text in TEXTS:
            kind, machine = TEXTS[text], Machine(COSTS[cost], stall=0.005)
            policies = {"auto": AutoDepth(DepthMemory(MAX)), "fixed": FixedDepth(3), "rule": ExpectedValueRule(MAX)}
            run = {name: simulate(p, machine, kind, TOKENS, 5, every_time=True).rate for name, p in policies.items()}
            for name, rate in run.items():
                rates[name].append(rate / max(run.values()))

    mean = {name: sum(r) / len(r) for name, r in rates.items()}
    assert mean["auto"] > mean["rule"] + 0.02
    assert mean["auto"] > mean["fixed"] + 0.05


def settled(text: Text, cost: Cost = COSTS["linear"]) -> tuple[AutoDepth, DepthMemory]:
    """A policy that has seen 3000 tokens."""
    memory = DepthMemory(MAX)
    policy = AutoDepth(memory)
    simulate(policy, Machine(cost, noise=0.02), text, 3000, 3)
    return policy, memory


def test_a_stall_does_not_change_the_choice():
    (stalled, _), (smooth, _) = settled(STEADY["p=0.8"]), settled(STEADY["p=0.8"])
    depth = stalled.best

    for policy, seconds in ((stalled, 10.0), (smooth, 1.0)):
        for _ in range(2):
            policy.observe(RoundSeen(depth, 1, [Kept(depth // 2, True)], seconds * (1 + 0.12 * depth)))

    assert stalled.best == smooth.best


def test_drafting_comes_back_within_64_rounds_when_it_pays_again():
    policy, _ = settled(STEADY["p=0.0"])
    assert policy.parked

    rounds = 0
    while policy.parked and rounds < 200:
        depth = policy.next_depth(1)
        policy.observe(RoundSeen(depth, 1, [Kept(depth, False)], 1 + 0.12 * depth))
        rounds += 1

    assert rounds <= 64


def test_a_cost_that_was_timed_in_a_bad_moment_is_timed_again():
    """A busy machine met every round with one draft; when it is quiet again, drafting must come back."""
    memory = DepthMemory(MAX)
    costs = memory.costs(Kind(1))
    for _ in range(30):
        costs.observe(0, 1.0)
        for depth in (1, 2, 4):
            costs.observe(depth, 2.5 + 0.1 * depth)
    memory.rounds = memory.timed = 1000
    depths: list[int] = []
    for seed in range(12):
        depths += simulate(AutoDepth(memory), Machine(COSTS["linear"]), STEADY["p=0.5"], 200, seed).depths

    assert sum(d > 0 for d in depths[-100:]) > 80


def test_a_round_that_was_cut_short_teaches_nothing_about_the_drafts_it_did_not_reach():
    policy, memory = settled(STEADY["p=0.8"])
    before = memory.acceptance.probabilities()

    for _ in range(50):
        policy.observe(RoundSeen(4, 1, [Kept(0, False)], None))  # the first token ended the text

    assert memory.acceptance.probabilities() == before


def test_what_was_learned_stays_for_the_next_request():
    _, memory = settled(STEADY["p=0.98"], COSTS["flat"])

    assert AutoDepth(memory).best >= 8
    assert AutoDepth(memory, max_depth=3).best == 3
    assert AutoDepth(memory, max_depth=0).next_depth(1) == 0


def test_drafting_that_accepts_nothing_says_so_once(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, "pilotfish")
    memory = DepthMemory(MAX)
    for _ in range(3):
        simulate(AutoDepth(memory), Machine(COSTS["linear"]), STEADY["p=0.0"], 4000, 1)

    assert len([r for r in caplog.records if "none of the drafts" in r.message]) == 1


def test_costs_follow_a_machine_that_becomes_slower_without_moving_the_ratio():
    costs = Costs(MAX)
    for scale in (1.0, 2.5):
        for _ in range(60):
            costs.observe(0, scale)
            costs.observe(4, 1.5 * scale)

    assert 1.4 < costs.relative(4) < 1.6
    assert 2.3 < costs.pace < 2.7


def test_what_was_never_timed_lies_between_what_was():
    costs = Costs(MAX)
    for _ in range(5):
        costs.observe(0, 1.0)
        costs.observe(4, 2.0)

    assert 1.4 < costs.relative(2) < 1.6
    assert 2.8 < costs.relative(8) < 3.2
