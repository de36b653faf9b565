"""Running an exercise's own tests on an answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilotfish.bench.exercise_tests import run_tests
from pilotfish.bench.pairs import Task
from pilotfish.bench.polyglot import judge_in

FILES = {"double.py": "def double(n):\n    pass\n"}
RIGHT = "double.py\n```python\ndef double(n):\n    return 2 * n\n```\n"


@pytest.fixture
def exercise(tmp_path: Path) -> Path:
    folder = tmp_path / "python" / "exercises" / "practice" / "double"
    (folder / ".meta").mkdir(parents=True)
    config = {"files": {"solution": ["double.py"], "test": ["double_test.py"]}}
    (folder / ".meta" / "config.json").write_text(json.dumps(config))
    (folder / "double.py").write_text(FILES["double.py"])
    (folder / "double_test.py").write_text("from double import double\n\n\ndef test_it():\n    assert double(4) == 8\n")
    return folder


def test_a_right_answer_passes_and_the_checkout_stays_as_it_was(exercise: Path):
    assert run_tests("python", exercise, FILES, RIGHT).passed
    assert (exercise / "double.py").read_text() == FILES["double.py"]


@pytest.mark.parametrize(("answer", "why"), [
    (RIGHT.replace("2 * n", "3 * n"), "1 failed"),
    ("I cannot do that.", "holds none of the files"),
])  # fmt: skip
def test_a_wrong_answer_fails_and_says_why(exercise: Path, answer: str, why: str):
    outcome = run_tests("python", exercise, FILES, answer)

    assert outcome.passed is False
    assert why in outcome.why


def test_an_answer_that_never_ends_is_stopped(exercise: Path):
    forever = "double.py\n```\nimport time\ntime.sleep(60)\n```\n"

    outcome = run_tests("python", exercise, FILES, forever, limit=1)

    assert outcome.passed is False
    assert "longer than 1 s" in outcome.why


def test_a_missing_toolchain_is_no_failure(exercise: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")

    outcome = run_tests("go", exercise, {"double.go": ""}, "double.go\n```\n```\n")

    assert outcome.passed is None
    assert "go is not installed" in outcome.why


def test_answers_of_a_checkout_are_judged(exercise: Path):
    judge = judge_in(exercise.parents[3])

    assert judge(Task("python/double", "python", ""), RIGHT) is True
    assert judge(Task("python/double", "python", ""), "nothing") is False
