"""Draft depth in the simulator: every policy on every machine and text, as docs/depth.md and docs/depth.png.

make_depth_report.py [TOKENS]; regret is how far a policy stays behind the best fixed depth, chosen in hindsight.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from rich.progress import track

from pilotfish.bench.report import canvas, table
from pilotfish.engine.depth import AutoDepth, DepthMemory, DepthPolicy, FixedDepth
from pilotfish.testing.depth_simulator import COSTS, TEXTS, ExpectedValueRule, Machine, simulate

MAX, SEED, STALL = 16, 5, 0.005
POLICIES: dict[str, Callable[[], DepthPolicy]] = {
    "pilotfish": lambda: AutoDepth(DepthMemory(MAX)),
    "fixed depth 3": lambda: FixedDepth(3),
    "expected value": lambda: ExpectedValueRule(MAX),
}


def regrets(cost: str, text: str, tokens: int) -> tuple[list[float], float]:
    """Of each policy, and of plain decoding."""
    machine = Machine(COSTS[cost], stall=STALL)
    fixed = [simulate(FixedDepth(d), machine, TEXTS[text], tokens, SEED).rate for d in range(MAX + 1)]
    best = max(fixed)
    runs = [simulate(make(), machine, TEXTS[text], tokens, SEED, every_time=True) for make in POLICIES.values()]
    return [1 - run.rate / best for run in runs], 1 - fixed[0] / best


def main() -> None:
    """Simulate, then write both files."""
    logging.getLogger("pilotfish").setLevel(logging.ERROR)
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 24_000
    cases = [(cost, text) for text in TEXTS for cost in COSTS]
    found = {case: regrets(*case, tokens) for case in track(cases, "simulating")}

    rows = [(text, cost, *(f"{r:+.1%}" for r in own), f"{plain:+.1%}") for (cost, text), (own, plain) in found.items()]
    means = [sum(own[i] for own, _ in found.values()) / len(found) for i in range(len(POLICIES))]
    rows.append(("mean", "", *(f"{m:+.1%}" for m in means), ""))
    here = Path(__file__).parent
    head = ("text", "cost of a round", *POLICIES, "plain decoding")
    (here / "depth.md").write_text(
        f"# Draft depth in the simulator\n\nRegret against the best fixed depth from 0 to {MAX}, chosen in hindsight; "
        f"{tokens} tokens a case, {STALL:.1%} of the rounds stalled tenfold. Costs and texts: "
        "`pilotfish.testing.depth_simulator`. Made by `python docs/make_depth_report.py`.\n\n"
        "![regret](depth.png)\n\n" + table(head, rows),
        encoding="utf-8",
    )  # fmt: skip
    with canvas(str(here / "depth.png"), "regret against the best fixed depth, by text and cost", (10, 4)) as axis:
        for i, name in enumerate(POLICIES):
            axis.plot([100 * own[i] for own, _ in found.values()], marker="o", ms=3, linewidth=0.8, label=name)
        axis.set_xticks(range(len(cases)), [f"{text}, {cost}" for cost, text in cases], rotation=90, fontsize=6)
        axis.set_ylabel("regret, %")
        axis.legend()


if __name__ == "__main__":
    main()
