"""Plain against drafted: what is read, what is summed up, and that a run can be taken up again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilotfish.bench.pairs import Pair, Task, as_markdown, compare, from_json, summarize, to_json
from pilotfish.bench.polyglot import read_exercises, read_tasks
from pilotfish.errors import DraftingUnsupportedError, OptionError
from pilotfish.runtime.loaded import load
from tests.conftest import POLYGLOT


def pair(task: str, group: str, plain: float, drafted: float, same: bool = True) -> Pair:
    return Pair(task, group, 100, plain, drafted, same, [0.5], [0, 3], 0.1)


def test_speed_ups_are_summed_up_by_group_and_over_all():
    pairs = [pair("go/a", "go", 2, 1), pair("go/b", "go", 3, 2, same=False), pair("rust/c", "rust", 1, 2)]

    go, rust, everything = summarize(pairs)

    assert (go.median, go.mean, go.same_text) == (1.75, 1.75, 1)
    assert (rust.worst, rust.worst_task) == (0.5, "rust/c")
    assert everything.total == 6 / 5
    assert everything.tasks == 3
    assert "| go | 2 | 200 | 1.75 | 1.75 | 1.67 | 1.50 (go/b) | 1 of 2 | 0.10 |" in as_markdown("t", pairs)
    assert from_json(to_json(pairs[0])) == pairs[0]


def test_both_ways_give_the_same_text(engine):
    (result,) = compare(engine, [Task("t", "g", "hello there")], 20, repeats=2, temperature=1.0, seed=3)

    assert result.same_text
    assert result.tokens == 20
    assert result.plain_seconds > 0
    assert result.drafted_seconds > 0


def test_without_a_drafter_there_is_nothing_to_compare(tiny: Path):
    plain = load(tiny, draft=None)

    with pytest.raises(DraftingUnsupportedError, match="without a drafter"):
        list(compare(plain, [Task("t", "g", "hello")], 4))


def test_tasks_are_read_from_a_file_spread_over_its_languages():
    tasks = read_tasks(POLYGLOT, limit=12)

    assert len({t.group for t in tasks}) == 6
    assert tasks[0].name == "cpp/all-your-base"
    assert [m["role"] for m in tasks[0].prompt][:2] == ["system", "user"]
    assert isinstance(read_tasks(POLYGLOT, limit=1, chat=False)[0].prompt, str)


def test_exercises_are_read_from_a_checkout(tmp_path: Path):
    exercise = tmp_path / "rust" / "exercises" / "practice" / "knapsack"
    for folder in (".meta", ".docs", "src"):
        (exercise / folder).mkdir(parents=True)
    files = {"solution": ["src/lib.rs", "Cargo.toml"], "test": ["tests/knapsack.rs"]}
    (exercise / ".meta" / "config.json").write_text(json.dumps({"files": files}))
    (exercise / ".docs" / "instructions.md").write_text("# Instructions\n\nPack.")
    (exercise / ".docs" / "instructions.append.md").write_text("No floats.")
    (exercise / "src" / "lib.rs").write_text("pub fn maximum_value() {}\n")
    (exercise / "Cargo.toml").write_text("[package]")

    (task,) = read_exercises(tmp_path)

    content = "".join(m["content"] for m in task.prompt)
    assert (task.name, task.group) == ("rust/knapsack", "rust")
    assert "Pack." in content
    assert "No floats." in content
    assert "src/lib.rs\n```\npub fn maximum_value() {}\n```" in content
    assert "Cargo.toml" not in content


def test_a_folder_without_exercises_and_a_broken_file_are_named(tmp_path: Path):
    broken = tmp_path / "tasks.jsonl"
    broken.write_text('{"language": "go"}\n')

    with pytest.raises(OptionError, match="holds no exercises"):
        read_exercises(tmp_path)
    with pytest.raises(OptionError, match=r"tasks\.jsonl:1 is no task"):
        read_tasks(broken)


def test_a_run_is_taken_up_where_it_was_stopped(pilotfish, tiny: Path, tmp_path: Path):
    results, report = tmp_path / "r.jsonl", tmp_path / "report.md"
    options = ["bench", "polyglot", "--model", tiny, "--tasks", POLYGLOT, "--raw", "--max-tokens", 4,
               "--repeats", 1, "--results", results, "--report", report]  # fmt: skip

    assert pilotfish(*options, "--limit", 1)[0] == 0
    first = results.read_text()
    code, out, _ = pilotfish(*options, "--limit", 2)

    assert code == 0
    assert results.read_text().startswith(first)
    assert len(results.read_text().splitlines()) == 2
    assert "| all | 2 |" in out
    assert report.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_the_source_of_tasks_must_be_given_once(pilotfish):
    code, _, err = pilotfish("bench", "polyglot")

    assert code == 1
    assert "either --tasks FILE or --exercises DIR" in err


def test_tests_need_a_checkout(pilotfish):
    code, _, err = pilotfish("bench", "polyglot", "--tasks", POLYGLOT, "--run-tests")

    assert code == 1
    assert "--exercises DIR" in err
