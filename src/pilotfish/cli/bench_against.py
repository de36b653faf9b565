"""`pilotfish bench against`: the same checkpoint and prompts through other engines."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from pilotfish.cli.options import JsonOption, LimitOption, PromptsOption, ReportOption, ResultsOption
from pilotfish.cli.records import gather, read_records, write_report


def against(
    engines: Annotated[
        list[str],
        typer.Argument(help="mlx-lm, mlx-vlm (each with =PYTHON of its environment), or a URL that ends in /v1."),
    ],
    model: Annotated[str, typer.Option("--model", help="nano, a directory, or a downloaded org/name.")] = "nano",
    served_as: Annotated[str | None, typer.Option("--served-as", help="The model's name on a server.")] = None,
    prompts: PromptsOption = None,
    limit: LimitOption = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=2, help="Tokens of each answer.")] = 100,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each; the fastest counts.")] = 3,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=1, help="Seconds of an answer; what is slower is left out.")
    ] = 120,
    results: ResultsOption = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decode the same prompts greedily with other engines, in turn, and compare speeds."""
    from pilotfish.bench.against import Answer, as_markdown, compare, plot, summarize
    from pilotfish.bench.contenders import start
    from pilotfish.runtime.loaded import load
    from pilotfish.text.prompts import read_prompts
    from pilotfish.verify import DEFAULT_PROMPTS

    chosen = list(DEFAULT_PROMPTS)[:limit] if prompts is None else read_prompts(prompts, limit)
    known = read_records(results, lambda record: Answer(**record))
    engine = load(model)
    contenders = start(engines, engine.model.path, served_as or model, engine.model.tokenizer.decode, time_limit)
    try:
        engine.generate(chosen[0], max_tokens=max_tokens, temperature=0.0)
        answers = compare(engine, contenders, chosen, max_tokens, repeats, len(known))
        rows = summarize(gather(answers, known, len(chosen), results, asdict))
    finally:
        for contender in contenders:
            contender.close()
    if as_json:
        typer.echo(json.dumps([asdict(r) for r in rows], indent=1))
        return
    title = f"{model}, greedy, {max_tokens} tokens"
    write_report(as_markdown(title, rows), report, lambda path: plot(rows, path, title))
