"""`pilotfish bench requests` and `pilotfish bench masks`: what a request's wishes cost."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from pilotfish.cli.options import DraftOption, JsonOption, ReportOption, ResultsOption
from pilotfish.cli.records import gather, read_records
from pilotfish.errors import OptionError

ModelOption = Annotated[str, typer.Option("--model", help="nano, a directory, or a downloaded org/name.")]


def requests(
    model: ModelOption = "nano",
    draft: DraftOption = None,
    wish: Annotated[list[str] | None, typer.Option("--wish", help="A row of the table; may be repeated.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=2, help="Tokens of each text.")] = 200,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Texts of each prompt.")] = 2,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each; the fastest counts.")] = 3,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 1.0,
    results: ResultsOption = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decode with schemas, tools, thinking, penalties and log probabilities, and without, in turn."""
    from pilotfish.bench.requests import PROMPTS, SAMPLED, WISHES, Measured, as_markdown, measure, summarize
    from pilotfish.runtime.loaded import load

    names = list(dict.fromkeys([next(iter(WISHES)), *(wish or WISHES)]))
    if unknown := [n for n in names if n not in WISHES]:
        raise OptionError(f"--wish is {unknown[0]!r}; it must be one of: {'; '.join(WISHES)}")
    known = read_records(results, lambda record: [Measured(**m) for m in record["measured"]])
    engine = load(model, draft=draft or "auto")
    texts = measure(engine, names, max_tokens, repeats, seeds, {**SAMPLED, "temperature": temperature}, len(known))
    found = gather(texts, known, len(PROMPTS) * seeds, results, lambda ms: {"measured": [asdict(m) for m in ms]})
    rows = summarize([m for ms in found for m in ms])
    if as_json:
        typer.echo(json.dumps([asdict(r) for r in rows], indent=1))
        return
    text = as_markdown(f"{model}, {max_tokens} tokens, temperature {temperature:g}", rows)
    typer.echo(text)
    if report:
        report.write_text(text, encoding="utf-8")


def masks(
    model: ModelOption = "nano",
    vocab: Annotated[int | None, typer.Option("--vocab", min=512, help="Train a tokenizer of so many tokens.")] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each; the fastest counts.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Time the masks of JSON schemas, for a model's vocabulary or a large one."""
    from pilotfish.bench.masks import as_markdown, large_tokenizer, measure
    from pilotfish.runtime.loaded import load
    from pilotfish.text.grammar import GrammarTokenizer

    if vocab is None:
        loaded = load(model, draft=None).model
        tokenizer, grammars = loaded.backend_tokenizer, loaded.grammar_tokenizer
    else:
        tokenizer = large_tokenizer(vocab)
        end = tokenizer.token_to_id("<eos>")
        assert end is not None
        grammars = GrammarTokenizer(tokenizer, tokenizer.get_vocab_size(), frozenset({end}))
    costs = list(measure(grammars, tokenizer, repeats))
    typer.echo(json.dumps([asdict(c) for c in costs], indent=1) if as_json else as_markdown(grammars.vocab, costs))
