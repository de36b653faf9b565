"""`bench depth`: what is measured, and how it is summed up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilotfish.bench.depth import DEPTHS, Texts, as_markdown, measure, summarize
from pilotfish.bench.workloads import Workload

SMALL = Workload("code", ("def f(", "class A:"), {"temperature": 1.0})


def texts(workload: str, auto: float, best: int) -> Texts:
    seconds = {str(d): 2.0 for d in DEPTHS} | {str(best): 1.0, "auto": auto}
    return Texts(workload, 0, 1, 100, seconds, True)


def test_auto_is_compared_with_the_best_fixed_depth_and_with_plain_decoding():
    code, hostile = summarize([texts("code", 1.25, 3), texts("hostile", 1.0, 0)])

    assert (code.best, code.auto_over_best, code.auto_over_plain) == ("3", 0.8, 1.6)
    assert (hostile.best, hostile.auto_over_plain) == ("0", 1.0)
    assert "| 0.80 (depth 3) | 1.60 | 0.62 | 1 of 1 |" in as_markdown("t", [code])


def test_every_depth_gives_the_same_text(engine):
    found = list(measure(engine, [SMALL], 6, repeats=1, seeds=1))

    assert [f.same for f in found] == [True, True]
    assert all(set(f.seconds) == {str(d) for d in DEPTHS} for f in found)
    assert [f.prompt for f in measure(engine, [SMALL], 6, 1, 1, known=found[:1])] == [1]


def test_a_run_can_be_taken_up_and_printed_as_json(pilotfish, tiny: Path, tmp_path: Path):
    results = tmp_path / "r.jsonl"
    options = ["bench", "depth", "--model", tiny, "--workload", "edit", "--max-tokens", 4, "--repeats", 1, "--seeds", 1]

    code, out, _ = pilotfish(*options, "--results", results, "--json")
    lines = results.read_text().splitlines()
    again = pilotfish(*options, "--results", results, "--report", tmp_path / "r.md")

    assert (code, again[0]) == (0, 0)
    assert json.loads(out)[0]["texts"] == len(lines) == len(results.read_text().splitlines()) == 3
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("line", "options", "why"), [
    ("{}", [], "r.jsonl:1 is not a result of this benchmark"),
    (None, ["--workload", "poetry"], "it must be one of code, prose, edit, hostile"),
])  # fmt: skip
def test_bad_input_is_named(pilotfish, tiny: Path, tmp_path: Path, line, options, why):
    results = tmp_path / "r.jsonl"
    if line:
        results.write_text(line + "\n")

    code, _, err = pilotfish("bench", "depth", "--model", tiny, "--results", results, *options)

    assert code == 1
    assert why in err
