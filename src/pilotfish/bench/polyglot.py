"""Aider's polyglot exercises: what the speed claims are measured on.

Read either from a file of tasks (JSON Lines: language, exercise, instructions, files) or from a checkout of
Aider-AI/polyglot-benchmark. A prompt is the conversation that aider's whole-file format makes of the exercise.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pilotfish.bench import whole_format
from pilotfish.bench.exercise_tests import run_tests
from pilotfish.bench.pairs import Judge, Pair, Task
from pilotfish.bench.report import canvas
from pilotfish.errors import OptionError
from pilotfish.text.prompts import Prompt, task_messages

log = logging.getLogger("pilotfish")

LANGUAGES = ("cpp", "go", "java", "javascript", "python", "rust")
NOT_SHOWN = ("CMakeLists.txt", "Cargo.toml")


def read_tasks(file: Path, limit: int | None = None, chat: bool = True) -> list[Task]:
    """Tasks of a JSON Lines file, spread evenly where limited. Raises OptionError naming the file and line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read tasks from {file}: {error}") from error
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise OptionError(f"{file}:{number} is not valid JSON: {error}") from error
        if not isinstance(record, dict) or not {"language", "exercise", "instructions", "files"} <= record.keys():
            raise OptionError(f"{file}:{number} is no task; it needs language, exercise, instructions and files")
        records.append(record)
    return _tasks(records, limit, chat, str(file))


def read_exercises(folder: Path, limit: int | None = None, chat: bool = True) -> list[Task]:
    """Exercises of a checkout, in the original repository's layout. Raises OptionError where there are none."""
    records = []
    for language in LANGUAGES:
        for exercise in sorted((folder / language / "exercises" / "practice").glob("*")):
            if (exercise / ".meta" / "config.json").is_file():
                records.append(_exercise(language, exercise))
    return _tasks(records, limit, chat, str(folder))


def _exercise(language: str, folder: Path) -> dict[str, Any]:
    config = json.loads((folder / ".meta" / "config.json").read_text(encoding="utf-8"))
    docs = [folder / ".docs" / name for name in ("introduction.md", "instructions.md", "instructions.append.md")]
    files = [name for name in config["files"]["solution"] if Path(name).name not in NOT_SHOWN]
    return {
        "language": language,
        "exercise": folder.name,
        "instructions": "\n\n".join(d.read_text(encoding="utf-8").rstrip() for d in docs if d.is_file()),
        "files": {name: (folder / name).read_text(encoding="utf-8") for name in files if (folder / name).is_file()},
    }


def judge_in(folder: Path) -> Judge:
    """Runs an exercise's own tests, from the checkout in `folder`, on an answer."""

    def judge(task: Task, answer: str) -> bool | None:
        language, exercise = task.name.split("/")
        where = folder / language / "exercises" / "practice" / exercise
        outcome = run_tests(language, where, _exercise(language, where)["files"], answer)
        log.info("%s: %s (%s)", task.name, outcome.passed, outcome.why)
        return outcome.passed

    return judge


def _tasks(records: list[dict[str, Any]], limit: int | None, chat: bool, source: str) -> list[Task]:
    if not records:
        raise OptionError(f"{source} holds no exercises")
    if limit is not None and limit < len(records):
        records = [records[i * len(records) // limit] for i in range(limit)]
    tasks = []
    for r in records:
        conversation = whole_format.messages(r["instructions"], r["files"])
        prompt: Prompt = conversation if chat else str(task_messages(r)[0]["content"])
        tasks.append(Task(f"{r['language']}/{r['exercise']}", r["language"], prompt))
    return tasks


def plot(pairs: Sequence[Pair], path: str, title: str) -> None:
    """Speed-up of every task by language, as a PNG. Raises ImportError without matplotlib."""
    groups = sorted({p.group for p in pairs})
    with canvas(path, title) as axis:
        for i, group in enumerate(groups):
            ups = sorted(p.speed_up for p in pairs if p.group == group)
            axis.scatter([i + (j / max(1, len(ups) - 1) - 0.5) * 0.7 for j in range(len(ups))], ups, s=9)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xticks(range(len(groups)), groups)
        axis.set_ylabel("times as fast as plain decoding")
