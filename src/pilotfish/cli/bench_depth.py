"""`pilotfish bench depth`: depth chosen at run time against every fixed depth."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from pilotfish.cli.options import DraftOption, JsonOption, ReportOption, ResultsOption
from pilotfish.cli.records import gather, read_records, write_report
from pilotfish.errors import OptionError


def depth(
    model: Annotated[str, typer.Option("--model", help="nano, a directory, or a downloaded org/name.")] = "nano",
    draft: DraftOption = None,
    workload: Annotated[
        list[str] | None, typer.Option("--workload", help="code, prose, edit, hostile; may be repeated.")
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=2, help="Tokens of each text.")] = 256,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Texts of each prompt.")] = 2,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each depth; the fastest counts.")] = 3,
    results: ResultsOption = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decode code, prose, an edit and text that nobody can predict at depths 0 to 8 and at the depth chosen at run
    time, in turn."""
    from pilotfish.bench.depth import Texts, as_markdown, measure, plot, summarize
    from pilotfish.bench.workloads import WORKLOADS
    from pilotfish.runtime.loaded import load

    names = workload or [w.name for w in WORKLOADS]
    if unknown := set(names) - {w.name for w in WORKLOADS}:
        raise OptionError(
            f"--workload is {sorted(unknown)[0]!r}; it must be one of {', '.join(w.name for w in WORKLOADS)}"
        )
    chosen = [w for w in WORKLOADS if w.name in names]
    known = read_records(results, lambda record: Texts(**record))
    engine = load(model, draft=draft or "auto")
    engine.generate(chosen[0].prompts[0], max_tokens=max_tokens, **chosen[0].sampling)
    texts = measure(engine, chosen, max_tokens, repeats, seeds, known)
    rows = summarize(gather(texts, known, seeds * sum(len(w.prompts) for w in chosen), results, asdict))
    if as_json:
        typer.echo(json.dumps([asdict(r) for r in rows], indent=1))
        return
    title = f"{model}, {max_tokens} tokens a text"
    write_report(as_markdown(title, rows), report, lambda path: plot(rows, path, title))
