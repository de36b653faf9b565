"""`pilotfish bench polyglot`: plain against drafted, task by task; can be stopped and taken up again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pilotfish.cli.options import DraftOption, JsonOption, ReportOption, ResultsOption
from pilotfish.cli.records import gather, read_records, write_report
from pilotfish.errors import OptionError


def polyglot(
    model: Annotated[str, typer.Option("--model", help="nano, a directory, or a downloaded org/name.")] = "nano",
    tasks: Annotated[Path | None, typer.Option("--tasks", help="JSON Lines of tasks.")] = None,
    exercises: Annotated[Path | None, typer.Option("--exercises", help="A checkout of polyglot-benchmark.")] = None,
    draft: DraftOption = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="So many tasks, spread evenly.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=2, help="Tokens of each answer.")] = 256,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each way; the fastest counts.")] = 2,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    acceptance: Annotated[str, typer.Option("--acceptance", help="same-text or rejection.")] = "same-text",
    chat: Annotated[bool, typer.Option("--chat/--raw", help="Through the chat template, or as a text.")] = True,
    run_tests: Annotated[
        bool, typer.Option("--run-tests", help="Run the exercises' tests on the answers; needs --exercises.")
    ] = False,
    results: ResultsOption = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decode Aider's polyglot exercises plainly and with drafting, in turn, and compare."""
    from pilotfish.bench.pairs import as_markdown, compare, from_json, summarize, to_json
    from pilotfish.bench.polyglot import judge_in, plot, read_exercises, read_tasks
    from pilotfish.runtime.loaded import load

    if (tasks is None) == (exercises is None):
        raise OptionError("give either --tasks FILE or --exercises DIR")
    if run_tests and exercises is None:
        raise OptionError("--run-tests needs the tests: give a checkout of polyglot-benchmark with --exercises DIR")
    chosen = read_tasks(tasks, limit, chat) if tasks else read_exercises(exercises, limit, chat)  # type: ignore[arg-type]
    known = read_records(results, from_json)
    left = [t for t in chosen if t.name not in {p.task for p in known}]
    sampling = (
        {"temperature": temperature, "top_k": 64, "top_p": 0.95, "seed": 7} if temperature else {"temperature": 0.0}
    )
    engine = load(model, draft=draft or "auto")
    if left:  # what the controller learns of the machine should not be charged to the first task
        engine.generate(left[0].prompt, max_tokens=max_tokens, acceptance=acceptance, **sampling)
    judge = judge_in(exercises) if run_tests and exercises else None
    pairs = compare(engine, left, max_tokens, repeats, judge, acceptance=acceptance, **sampling)
    done = gather(pairs, known, len(chosen), results, to_json)
    if as_json:
        typer.echo(json.dumps([asdict(s) for s in summarize(done)], indent=1))
        return
    title = f"{model}, {acceptance}, " + (
        f"temperature {temperature:g}, top-k 64, top-p 0.95" if temperature else "greedy"
    )
    text = as_markdown(f"{title}, {max_tokens} tokens", done)
    write_report(text, report, lambda path: plot(done, path, title))
