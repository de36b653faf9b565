"""`pilotfish bench ...`: measurements that anyone can repeat."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pilotfish.cli import bench_against, bench_depth, bench_load, bench_polyglot, bench_requests
from pilotfish.cli.options import DraftOption, DtypeOption, JsonOption, LimitOption, ModelArgument, PromptsOption
from pilotfish.cli.progress import bar
from pilotfish.errors import OptionError

app = typer.Typer(help="Measurements that anyone can repeat.", no_args_is_help=True)


app.command(name="polyglot")(bench_polyglot.polyglot)
app.command(name="depth")(bench_depth.depth)
app.command(name="against")(bench_against.against)
app.command(name="load")(bench_load.load)
app.command(name="requests")(bench_requests.requests)
app.command(name="masks")(bench_requests.masks)


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
    from pilotfish.bench.report import table
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
    head = (f"{len(chosen)} prompts x {max_tokens} tokens, depth {depth}", "accepted per round", "tokens per round",
            "by position", "repeated windows")  # fmt: skip
    rows = [
        (
            r.setting, f"{r.accepted_per_round:.2f}", f"{r.tokens_per_round:.2f}",
            " ".join(f"{s:.2f}" for s in r.by_position), f"{r.repeated:.2f}",
        )
        for r in results
    ]  # fmt: skip
    typer.echo(table(head, rows), nl=False)


@app.command()
def kernels(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the measurements here as JSON.")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Draw time by rows here, as PNG.")] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=3, help="Timed calls of each kernel.")] = 15,
    shape: Annotated[list[str] | None, typer.Option("--shape", help="Matrix KxN instead of the three usual.")] = None,
) -> None:
    """Time the kernels against MLX's own operations, by number of rows, on cold weights."""
    from pilotfish.bench.kernels import ROWS, SHAPES, measure, plot

    shapes = [_shape(text) for text in shape] if shape else SHAPES
    with bar("timing") as update:
        report = measure(shapes, repeats, update)
    if json_file:
        json_file.write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    if plot_file:
        _needs_matplotlib(lambda: plot(report, str(plot_file)))
    typer.echo(f"{report.operations} ({report.form}), {report.threads} threads; a plain read reaches "
               f"{report.read_gigabytes:.1f} GB/s\n")  # fmt: skip
    typer.echo("| K x N | format | ms, 1 row | times faster than MLX, 1 / 4 / 8 rows | time(rows) / time(1) for "
               f"{', '.join(map(str, ROWS[1:]))} | share of plain read | error, mean / largest |")  # fmt: skip
    typer.echo("| --- | --- | --- | --- | --- | --- | --- |")
    for p in report.products:
        faster = " / ".join(f"{p.faster[r]:.0f}" for r in ("1", "4", "8"))
        growth = ", ".join(f"{p.growth[str(r)]:.2f}" for r in ROWS[1:])
        typer.echo(f"| {p.shape[0]} x {p.shape[1]} | {p.format} | {p.milliseconds['1']:.2f} | {faster} | {growth} | "
                   f"{p.bandwidth:.0%} | {p.error['mean']:.2%} / {p.error['largest']:.2%} |")  # fmt: skip
    if report.attention:
        a = report.attention
        typer.echo(f"\nattention, 8 heads on 2, D 256, 4096 keys, bfloat16: 1 row {a.milliseconds['1']:.2f} ms, "
                   f"{a.faster['1']:.0f} times faster than MLX; 8 rows {a.milliseconds['8']:.2f} ms, "
                   f"{a.faster['8']:.0f} times")  # fmt: skip


def _shape(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(p.isdigit() and int(p) > 0 and int(p) % 128 == 0 for p in parts):
        raise OptionError(f"--shape is {text!r}; it must be KxN, both multiples of 128, such as 2560x10240")
    return int(parts[0]), int(parts[1])


def _needs_matplotlib(draw: Callable[[], None]) -> None:
    try:
        draw()
    except ImportError as error:
        raise OptionError('plots need matplotlib: pip install "pilotfish[bench]"') from error


@app.command()
def profile(
    model: Annotated[str, typer.Argument(help="A Gemma 4 model, or e2b-shape: random weights of E2B's size.")] = "nano",
    rows: Annotated[list[int] | None, typer.Option("--rows", min=1, help="Rows of a pass; may be repeated.")] = None,
    context: Annotated[int, typer.Option("--context", min=1, help="Tokens before the pass.")] = 256,
    passes: Annotated[int, typer.Option("--passes", min=1, help="Passes to average.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show where the time of a decode step goes, by operation."""
    from pilotfish.bench.profile import profile as measure

    found = [measure(model, r, context, passes) for r in (rows or [1, 5])]
    if as_json:
        typer.echo(json.dumps([asdict(p) for p in found], indent=1))
        return
    typer.echo(f"| {model}, {context} tokens before | " + " | ".join(f"{p.rows} rows, ms" for p in found) + " |")
    typer.echo("| --- |" + " --- |" * len(found))
    names = sorted({n for p in found for n in p.parts}, key=lambda n: -found[0].parts.get(n, 0.0))
    for name in names:
        typer.echo(f"| {name} | " + " | ".join(f"{p.parts.get(name, 0.0):.2f}" for p in found) + " |")
    typer.echo("| graph, in Python | " + " | ".join(f"{p.python:.2f}" for p in found) + " |")
    other = [p.total - p.python - sum(p.parts.values()) for p in found]
    typer.echo("| graph, in MLX, and waiting | " + " | ".join(f"{o:.2f}" for o in other) + " |")
    typer.echo("| all, one after the other | " + " | ".join(f"{p.total:.2f}" for p in found) + " |")
