"""`pilotfish bench ...`: measurements that anyone can repeat."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from pilotfish.cli.options import DraftOption, DtypeOption, JsonOption, LimitOption, ModelArgument, PromptsOption
from pilotfish.cli.progress import bar

app = typer.Typer(help="Measurements that anyone can repeat.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    return None


@app.command()
def acceptance(
    model: ModelArgument = "nano",
    prompts: PromptsOption = None,
    limit: LimitOption = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Tokens to decode of each prompt.")] = 128,
    depth: Annotated[int, typer.Option("--depth", min=1, help="Drafts a round.")] = 4,
    draft: DraftOption = None,
    dtype: DtypeOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Count how many drafts are kept: greedy, and at temperature 1.0 under both acceptance rules."""
    from pilotfish.bench.acceptance import measure
    from pilotfish.runtime.loaded import load
    from pilotfish.text.prompts import read_prompts
    from pilotfish.verify import DEFAULT_PROMPTS

    chosen = list(DEFAULT_PROMPTS)[:limit] if prompts is None else read_prompts(prompts, limit)
    engine = load(model, draft=draft or "auto", dtype=dtype)
    with bar("decoding") as update:
        results = measure(engine, chosen, max_tokens, depth, update)
    if as_json:
        typer.echo(json.dumps([asdict(r) for r in results], indent=1))
        return
    typer.echo(f"| {len(chosen)} prompts x {max_tokens} tokens, depth {depth} | accepted per round | tokens per round |"
               " by position | repeated windows |")  # fmt: skip
    typer.echo("| --- | --- | --- | --- | --- |")
    for r in results:
        shares = " ".join(f"{s:.2f}" for s in r.by_position)
        typer.echo(f"| {r.setting} | {r.accepted_per_round:.2f} | {r.tokens_per_round:.2f} | {shares} |"
                   f" {r.repeated:.2f} |")  # fmt: skip
