"""Options that several commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelArgument = Annotated[str, typer.Argument(help="nano, a directory, or a downloaded Hugging Face org/name.")]
DraftOption = Annotated[
    str | None, typer.Option("--draft", help="auto, assistant, lookup, none, or where an assistant is.")
]
DtypeOption = Annotated[str, typer.Option("--dtype", help="Compute in float32, bfloat16 or float16 instead.")]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="Take so many prompts, spread evenly.")]
PromptsOption = Annotated[Path | None, typer.Option("--prompts", help="Text or JSON Lines, one prompt a line.")]
ResultsOption = Annotated[
    Path | None, typer.Option("--results", help="JSON Lines to write as they come, and to take up again.")
]
ReportOption = Annotated[Path | None, typer.Option("--report", help="Markdown to write, a PNG plot beside it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def depth_of(text: str) -> int | str:
    """The value of a --depth option; Request refuses what is neither a number nor auto."""
    return int(text) if text.removeprefix("-").isdigit() else text
