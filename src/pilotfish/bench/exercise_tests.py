"""An exercise's own tests on an answer, in a scratch copy with a time limit.

Runs code that a model wrote: use a container or a throw-away machine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pilotfish.bench.whole_format import answered_files

TIME_LIMIT = 180.0  # seconds, as in aider's harness

COMMANDS: dict[str, list[str]] = {
    "python": [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"],
    "go": ["go", "test", "./..."],
    "rust": ["cargo", "test", "--offline", "--", "--include-ignored"],
    "javascript": ["npm", "test"],
    "cpp": ["sh", "-c", "cmake -DEXERCISM_RUN_ALL_TESTS=1 -S . -B build && cmake --build build"],
    "java": ["./gradlew", "--offline", "test"],
}


@dataclass(frozen=True)
class Outcome:
    """passed: None where the tests could not be run; why: the reason, or the last line of what they said."""

    passed: bool | None
    why: str


def run_tests(
    language: str, exercise: Path, files: Mapping[str, str], answer: str, limit: float = TIME_LIMIT
) -> Outcome:
    """Whether `answer`, written into a copy of the folder `exercise`, passes its tests."""
    command = COMMANDS[language]
    if shutil.which(command[0]) is None and not (exercise / command[0]).is_file():
        return Outcome(None, f"{command[0]} is not installed")
    solved = answered_files(answer, files)
    if not solved:
        return Outcome(False, "the answer holds none of the files")
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / exercise.name
        shutil.copytree(exercise, copy)
        for name, content in solved.items():
            (copy / name).write_text(content, encoding="utf-8")
        _enable_all(language, copy)
        return _run(command, copy, limit)


def _enable_all(language: str, folder: Path) -> None:
    """Exercises ship with all tests but the first switched off."""
    switches = {"java": ("@Disabled", "//"), "javascript": ("xtest(", "test(")}
    if language not in switches:
        return
    config = json.loads((folder / ".meta" / "config.json").read_text(encoding="utf-8"))
    for name in config["files"]["test"]:
        file = folder / name
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(*switches[language]), encoding="utf-8")


def _run(command: list[str], folder: Path, limit: float) -> Outcome:
    environment = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "JAVA_HOME", "TMPDIR")}
    with subprocess.Popen(  # noqa: S603 - running what the model wrote is what was asked for
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # whatever it started as well
            return Outcome(False, f"took longer than {limit:g} s")
    lines = said.strip().splitlines()
    return Outcome(process.returncode == 0, lines[-1] if lines else "")
