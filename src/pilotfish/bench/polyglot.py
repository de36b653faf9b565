"""Aider's polyglot exercises: what the speed claims are measured on.

Read either from a file of tasks (JSON Lines: language, exercise, instructions, files) or from a checkout of
Aider-AI/polyglot-benchmark. A prompt is one user turn: the instructions, then the files as they stand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pilotfish.bench.pairs import Pair, Task
from pilotfish.errors import OptionError
from pilotfish.text.prompts import task_messages

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


def _tasks(records: list[dict[str, Any]], limit: int | None, chat: bool, source: str) -> list[Task]:
    if not records:
        raise OptionError(f"{source} holds no exercises")
    if limit is not None and limit < len(records):
        records = [records[i * len(records) // limit] for i in range(limit)]
    tasks = []
    for r in records:
        messages = task_messages(r)
        prompt = messages if chat else messages[0]["content"]
        tasks.append(Task(f"{r['language']}/{r['exercise']}", r["language"], prompt))
    return tasks


def plot(pairs: Sequence[Pair], path: str, title: str) -> None:
    """Speed-up of every task by language, as a PNG. Raises ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    groups = sorted({p.group for p in pairs})
    figure, axis = pyplot.subplots(figsize=(8, 3.6))
    for i, group in enumerate(groups):
        ups = sorted(p.speed_up for p in pairs if p.group == group)
        axis.scatter([i + (j / max(1, len(ups) - 1) - 0.5) * 0.7 for j in range(len(ups))], ups, s=9)
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(groups)), groups)
    axis.set_ylabel("times as fast as plain decoding")
    axis.set_title(title, fontsize=10)
    axis.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
