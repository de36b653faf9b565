"""Results of long measurements: one JSON line each, written as they come, so that a stopped run can be taken up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import typer

from pilotfish.cli.progress import bar
from pilotfish.errors import OptionError

T = TypeVar("T")


def read_records(file: Path | None, from_json: Callable[[dict[str, Any]], T]) -> list[T]:
    """What an earlier run left in `file`. Raises OptionError naming the line that is no such record."""
    if file is None or not file.is_file():
        return []
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(from_json(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OptionError(
                f"{file}:{number} is not a result of this benchmark ({error}); name another file with --results"
            ) from error
    return found


def gather(
    results: Iterable[T], known: list[T], total: int, file: Path | None, to_json: Callable[[T], dict[str, Any]]
) -> list[T]:
    """All results, known ones first; Ctrl-C ends the run with what there is. Exits with 130 where there is nothing."""
    found = list(known)
    try:
        with bar("decoding") as update:
            update(len(found), total)
            for result in results:
                found.append(result)
                update(len(found), total)
                if file:
                    with file.open("a", encoding="utf-8") as stream:
                        stream.write(json.dumps(to_json(result)) + "\n")
    except KeyboardInterrupt:
        typer.echo("stopped; here is what there is" + (f", and {file} goes on from it" if file else ""), err=True)
    if not found:
        raise typer.Exit(130)
    return found


def write_report(text: str, file: Path | None, draw: Callable[[str], None]) -> None:
    """Print a report and, where asked for, write it with a PNG beside it. Raises OptionError without matplotlib."""
    typer.echo(text)
    if file is None:
        return
    file.write_text(text, encoding="utf-8")
    try:
        draw(str(file.with_suffix(".png")))
    except ImportError as error:
        raise OptionError('plots need matplotlib: pip install "pilotfish[bench]"') from error
