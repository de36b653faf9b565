"""Prompt files for `verify` and `bench`: one prompt a line, plain or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pilotfish.errors import OptionError
from pilotfish.text.template import Message

Prompt = str | list[Message]


def read_prompts(file: Path, limit: int | None = None) -> list[Prompt]:
    """Prompts of a file, in order; `limit` takes so many, spread evenly over the file.

    A `.jsonl` file holds one JSON value a line: a string to continue, `{"prompt": ...}`, `{"messages": [...]}`, or a
    task of the Aider polyglot benchmark (`language`, `instructions`, `files`). Any other file holds a text to continue
    on each line that is not empty. Raises OptionError naming the file and line.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read prompts from {file}: {error}") from error
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise OptionError(f"{file} holds no prompts")
    if limit is not None and limit < len(numbered):
        numbered = [numbered[i * len(numbered) // limit] for i in range(limit)]
    if file.suffix != ".jsonl":
        return [line for _, line in numbered]
    return [_from_json(line, f"{file}:{n}") for n, line in numbered]


def task_messages(task: dict[str, Any]) -> list[Message]:
    """One user turn: the instructions, then every file to edit as it stands."""
    parts = [task["instructions"].rstrip()]
    for name, content in task["files"].items():
        parts.append(f"Finish this {task['language']} file: {name}\n```{task['language']}\n{content.rstrip()}\n```")
    return [{"role": "user", "content": "\n\n".join(parts)}]


def _from_json(line: str, where: str) -> Prompt:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise OptionError(f"{where} is not valid JSON: {error}") from error
    if isinstance(value, str) and value:
        return value
    if isinstance(value, dict):
        if isinstance(value.get("prompt"), str) and value["prompt"]:
            return str(value["prompt"])
        if isinstance(value.get("messages"), list) and value["messages"]:
            return list(value["messages"])
        if {"language", "instructions", "files"} <= value.keys():
            return task_messages(value)
    raise OptionError(f'{where} is no prompt; expected a string, {{"prompt"}}, {{"messages"}} or a polyglot task')
