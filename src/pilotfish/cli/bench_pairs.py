"""`pilotfish bench polyglot`: plain against drafted, task by task; can be stopped and taken up again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pilotfish.cli.options import DraftOption
from pilotfish.cli.progress import bar
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
    results: Annotated[
        Path | None, typer.Option("--results", help="JSON Lines to write, and to take up again.")
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", help="Markdown to write, a PNG plot beside it.")] = None,
) -> None:
    """Decode Aider's polyglot exercises plainly and with drafting, in turn, and compare."""
    from pilotfish.bench.pairs import as_markdown, compare, from_json, to_json
    from pilotfish.bench.polyglot import plot, read_exercises, read_tasks
    from pilotfish.runtime.loaded import load

    if (tasks is None) == (exercises is None):
        raise OptionError("give either --tasks FILE or --exercises DIR")
    chosen = read_tasks(tasks, limit, chat) if tasks else read_exercises(exercises, limit, chat)  # type: ignore[arg-type]
    done = []
    if results and results.is_file():
        done = [from_json(json.loads(line)) for line in results.read_text(encoding="utf-8").splitlines()]
    known = {p.task for p in done}
    left = [t for t in chosen if t.name not in known]
    sampling = (
        {"temperature": temperature, "top_k": 64, "top_p": 0.95, "seed": 7} if temperature else {"temperature": 0.0}
    )
    engine = load(model, draft=draft or "auto")
    if left:  # what the controller learns of the machine should not be charged to the first task
        engine.generate(left[0].prompt, max_tokens=max_tokens, acceptance=acceptance, **sampling)
    try:
        with bar("decoding") as update:
            for pair in compare(engine, left, max_tokens, repeats, acceptance=acceptance, **sampling):
                done.append(pair)
                update(len(done), len(chosen))
                if results:
                    with results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(to_json(pair)) + "\n")
    except KeyboardInterrupt:
        typer.echo("stopped; here is what there is" + (f", and {results} goes on from it" if results else ""), err=True)
    if not done:
        raise typer.Exit(130)
    title = f"{model}, {acceptance}, " + (
        f"temperature {temperature:g}, top-k 64, top-p 0.95" if temperature else "greedy"
    )
    text = as_markdown(f"{title}, {max_tokens} tokens", done)
    typer.echo(text)
    if report:
        report.write_text(text, encoding="utf-8")
        try:
            plot(done, str(report.with_suffix(".png")), title)
        except ImportError as error:
            raise OptionError('plots need matplotlib: pip install "pilotfish[bench]"') from error
