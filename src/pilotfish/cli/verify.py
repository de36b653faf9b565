"""`pilotfish verify`: prints the proof that drafting does not change the text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from pilotfish.cli.options import DraftOption, DtypeOption, JsonOption, LimitOption, ModelArgument, PromptsOption
from pilotfish.cli.progress import bar

if TYPE_CHECKING:
    from pilotfish.verify import Report


def verify(
    model: ModelArgument = "nano",
    prompts: PromptsOption = None,
    limit: LimitOption = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Tokens to decode of each prompt.")] = 64,
    draft: DraftOption = None,
    dtype: DtypeOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Decode prompts plainly and at depths 1, 2, 3, 5 and 8, greedy and with a seed, and compare texts and logits.

    Exit status 0 only if all texts are the same. Example: `pilotfish verify nano --max-tokens 128`.
    """
    from pilotfish.config import settings
    from pilotfish.runtime.loaded import load
    from pilotfish.store.verdicts import keep_verdict
    from pilotfish.text.prompts import read_prompts
    from pilotfish.verify import DEFAULT_PROMPTS
    from pilotfish.verify import verify as prove

    chosen = list(DEFAULT_PROMPTS)[:limit] if prompts is None else read_prompts(prompts, limit)
    engine = load(model, draft=draft or "auto", dtype=dtype)
    with bar("verifying") as update:
        report = prove(engine, chosen, max_tokens, progress=update)
    keep_verdict(settings().models, engine.model.path, engine.model.verified_drafter, report.as_dict())
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=1))
    else:
        _print_table(report)
    if not report.same_text:
        raise typer.Exit(1)


def _print_table(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{report.model} on {report.device}, against plain decoding")
    for heading in ("mode", "depth", "same text", "logits bitwise equal", "tokens"):
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    for mode, depth in dict.fromkeys((c.mode, c.depth) for c in report.comparisons):
        found = [c for c in report.comparisons if (c.mode, c.depth) == (mode, depth)]
        n = len(found)
        table.add_row(
            mode, str(depth), f"{sum(c.same_text for c in found)} of {n}",
            f"{sum(c.same_logits for c in found)} of {n}", str(sum(c.tokens for c in found)),
        )  # fmt: skip
    console = Console()
    console.print(table)
    for c in report.comparisons:
        if not c.same_text:
            gap = "" if c.gap is None else f", where the two best logits are {c.gap:.3g} apart"
            console.print(f"prompt {c.prompt}, {c.mode}, depth {c.depth}: differs at token {c.first_difference}{gap}")
    console.print(f"all texts the same: {'yes' if report.same_text else 'no'}")
    console.print(f"logits bitwise equal: {'yes' if report.same_logits else 'no'}")
