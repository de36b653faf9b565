"""`pilotfish run`: one prompt, or a chat, with drafted tokens in colour."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilotfish.cli.options import DraftOption, DtypeOption, JsonOption, ModelArgument, depth_of
from pilotfish.cli.progress import PromptBar
from pilotfish.errors import OptionError

if TYPE_CHECKING:
    from pilotfish.runtime.loaded import Engine
    from pilotfish.runtime.request import Event, Prepared, Stats

DRAFTED_STYLE = {"fg": "green"}
PromptArgument = Annotated[str | None, typer.Argument(help="What to ask; without it, standard input or a chat.")]


def run(
    model: ModelArgument = "nano",
    prompt: PromptArgument = None,
    file: Annotated[Path | None, typer.Option("--file", help="Read the prompt from a file.")] = None,
    draft: DraftOption = None,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Decode plainly; load no drafter.")] = False,
    depth: Annotated[str, typer.Option("--depth", help="Drafts a round, or auto; 0 is plain decoding.")] = "auto",
    max_depth: Annotated[int | None, typer.Option("--max-depth", help="With --depth auto: at most so many.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", help="Stop after so many tokens.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", help="0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Keep the k likeliest tokens; 0 keeps all.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="Keep the likeliest tokens up to this sum.")] = None,
    min_p: Annotated[float | None, typer.Option("--min-p", help="Drop tokens below this share of the best.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Same seed, same text, at any depth.")] = None,
    acceptance: Annotated[str, typer.Option("--acceptance", help="same-text or rejection.")] = "same-text",
    stop: Annotated[list[str] | None, typer.Option("--stop", help="End before this string; repeatable.")] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="json, or a file with a JSON schema that the answer must satisfy.")
    ] = None,
    think: Annotated[bool, typer.Option("--think", help="Let the model think first; goes to standard error.")] = False,
    thinking_budget: Annotated[int | None, typer.Option("--thinking-budget", help="Tokens to think at most.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option("--repetition-penalty", help="1 changes nothing.")] = None,
    presence_penalty: Annotated[float | None, typer.Option("--presence-penalty", help="0 changes nothing.")] = None,
    frequency_penalty: Annotated[float | None, typer.Option("--frequency-penalty", help="0 changes nothing.")] = None,
    min_tokens: Annotated[int, typer.Option("--min-tokens", help="No end before so many tokens.")] = 0,
    logprobs: Annotated[
        int | None, typer.Option("--logprobs", help="With --json: log probabilities, and of so many alternatives.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text; use no chat template.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print counts and speeds at the end.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Decode plainly as well and compare the texts.")] = False,
    dtype: DtypeOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Answer a prompt, or chat. Sampling defaults come from the checkpoint.

    Examples: `pilotfish run nano "def fib(n):"`, `pilotfish run ~/models/gemma4-31b --file task.md --stats`,
    `cat notes.txt | pilotfish run nano --raw --max-tokens 50`.
    """
    if draft is not None and no_draft:
        raise OptionError("--draft and --no-draft contradict each other; give one of them")
    if check and acceptance == "rejection":
        raise OptionError("--check compares with plain text, which --acceptance rejection does not keep; use same-text")
    if raw and think:
        raise OptionError("--raw and --think contradict each other; give one of them")
    if logprobs is not None and not as_json:
        raise OptionError("--logprobs needs --json, which has a place for them")
    text = _prompt(prompt, file)  # before loading, so that a bad prompt fails at once
    if text is None and (raw or check or as_json):
        raise OptionError("a chat takes none of --raw, --check and --json; give a prompt, --file or standard input")
    options: dict[str, Any] = {
        "max_tokens": max_tokens, "depth": depth_of(depth), "max_depth": max_depth, "temperature": temperature,
        "top_k": top_k, "top_p": top_p,
        "min_p": min_p, "seed": seed, "acceptance": acceptance, "stop": tuple(stop or ()), "format": _format(form),
        "thinking_budget": thinking_budget, "repetition_penalty": repetition_penalty, "min_tokens": min_tokens,
        "presence_penalty": presence_penalty, "frequency_penalty": frequency_penalty, "logprobs": logprobs,
    }  # fmt: skip
    from pilotfish.config import free_memory
    from pilotfish.runtime.defaults import completed
    from pilotfish.runtime.loaded import find_manifest, load
    from pilotfish.runtime.prefixes import PrefixCache
    from pilotfish.runtime.request import Chat, Request
    from pilotfish.store.library import Manifest

    request = Request(**options)
    prefixes = PrefixCache(free_memory() // 4) if text is None else None
    engine = load(model, draft=None if no_draft else draft or "auto", dtype=dtype, prefixes=prefixes)
    manifest = find_manifest(model) or Manifest(model, model)
    if text is None:
        _chat(engine, request, manifest, stats, think)
        return
    whole = text if raw else Chat(({"role": "user", "content": text},), thinking=think)
    prepared = engine.prepare(*completed(whole, request, manifest))
    events = (_print_json if as_json else _print_text)(engine.decode(prepared, progress=PromptBar()))
    last = events[-1].stats
    assert last is not None, "the last event of a generation carries its stats"
    same = _same_as_plain(engine, prepared, events) if check else None
    if not as_json and (stats or check):
        typer.echo(closing_line(last, same), err=True)
    if not as_json and stats:
        typer.echo(details(last), err=True)
    if same is False:
        raise typer.Exit(1)


def _format(form: str | None) -> Any:
    """`json`, or the schema in a file. Raises OptionError."""
    if form is None or form == "json":
        return form
    try:
        schema = json.loads(Path(form).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(
            f"--format is json or a file with a JSON schema; cannot read {form}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise OptionError(f"--format: {form} holds no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise OptionError(f"--format: the schema in {form} must be a JSON object")
    return schema


def closing_line(stats: Stats, same: bool | None) -> str:
    """The one line that says what drafting did."""
    line = f"{stats.tokens} tokens, {stats.rounds} rounds, {stats.accepted_per_round:.1f} accepted per round"
    return line if same is None else f"{line}, same text as plain: {'yes' if same else 'no'}"


def details(stats: Stats) -> str:
    """Counts and speeds, a line each."""
    shares = [f"{a / d:.2f}" for a, d in zip(stats.accepted_at, stats.drafted_at, strict=True) if d]
    prefill = stats.prompt_tokens / stats.prefill_seconds if stats.prefill_seconds else 0.0
    kept = f"{stats.accepted} ({stats.looked_up} by look-up)"
    rows = {
        "speed": f"{stats.tokens_per_second:.1f} tokens/s, prompt {prefill:.0f} tokens/s",
        "drafter": f"{stats.drafter}, {stats.acceptance}"
        if stats.drafted
        else f"none: {stats.no_drafting or 'parked'}",
        "depth": f"0: {stats.no_drafting}" if stats.no_drafting else depth_line(stats),
        "drafted": f"{stats.drafted}, accepted {kept}, by position {' '.join(shares) or '-'}",
        "sampling": f"temperature {stats.temperature:g}, seed {stats.seed}",
        "ended": f"{stats.finish_reason}, {stats.prompt_tokens} + {stats.tokens} tokens",
    }
    return "\n".join(f"{name:>9}  {value}" for name, value in rows.items())


def depth_line(stats: Stats) -> str:
    """What was asked for and how it went over time: means of up to ten stretches of rounds."""
    depths = stats.depths[1:] or (0,)  # an assistant cannot draft in the first round
    count = min(10, len(depths))
    bounds = [i * len(depths) // count for i in range(count + 1)]
    means = [sum(depths[a:b]) / (b - a) for a, b in pairwise(bounds)]
    over_time = " ".join(f"{m:.1f}" for m in means)
    parked = f"; {stats.parked_seconds:.1f} s without drafts" if stats.parked_seconds >= 0.1 else ""
    return f"{stats.depth}; over time {over_time}{parked}"


def _prompt(prompt: str | None, file: Path | None) -> str | None:
    """The prompt's text; None means a chat. Raises OptionError."""
    if prompt is not None and file is not None:
        raise OptionError("give the prompt as an argument or with --file, not both")
    if prompt is None and file is None and sys.stdin.isatty():
        return None
    source = "standard input" if file is None else str(file)
    if prompt is None:
        try:
            prompt = (sys.stdin.buffer.read() if file is None else file.read_bytes()).decode("utf-8")
        except UnicodeDecodeError as error:
            raise OptionError(f"{source} is not UTF-8 (byte {error.start}); convert it first") from error
        except OSError as error:
            raise OptionError(f"cannot read the prompt from {file}: {error.strerror}") from error
    if not prompt:
        raise OptionError(f"the prompt is empty{'' if file is None else f' ({file})'}; give some text")
    return prompt


def _print_text(events: Iterator[Event]) -> list[Event]:
    """Print pieces as they come, drafted tokens that were right in colour, thinking on standard error."""
    seen = []
    try:
        for event in events:
            thought = "".join(p.text for p in event.parts if p.kind == "thinking")
            if thought:
                typer.echo(typer.style(thought, dim=True), nl=False, err=True)
            for piece, drafted in zip(event.pieces, event.drafted, strict=True):
                typer.echo(typer.style(piece, **DRAFTED_STYLE) if drafted and piece else piece, nl=False)  # type: ignore[arg-type]
            sys.stdout.flush()
            seen.append(event)
    finally:
        typer.echo()
    return seen


def _print_json(events: Iterator[Event]) -> list[Event]:
    """One JSON object a line and event; the last one carries the stats."""
    seen = []
    for event in events:
        record = asdict(event) | {"logprobs": [p._asdict() for p in event.logprobs]}
        typer.echo(json.dumps({k: v for k, v in record.items() if v is not None}, ensure_ascii=False))
        seen.append(event)
    return seen


def _same_as_plain(engine: Engine, prepared: Prepared, events: list[Event]) -> bool:
    """Decode the same request plainly and compare the tokens."""
    from dataclasses import replace

    plain = engine.decode(replace(prepared, depth=0))
    return [t for e in plain for t in e.tokens] == [t for e in events for t in e.tokens]


def _chat(engine: Engine, request: Any, manifest: Any, stats: bool, think: bool) -> None:
    """A conversation on the terminal until end of input; Ctrl-C stops an answer, not the chat."""
    from pilotfish.runtime.defaults import completed
    from pilotfish.runtime.request import Chat

    typer.echo(f"{engine.model.name}: type a message, Ctrl-D ends.", err=True)
    messages: list[dict[str, str]] = []
    while True:
        try:
            line = input(">>> ")
        except EOFError:
            typer.echo()
            return
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line})
        answer: list[Event] = []
        try:
            prepared = engine.prepare(*completed(Chat(tuple(messages), thinking=think), request, manifest))
            answer = _print_text(_keep(engine.decode(prepared, progress=PromptBar()), answer))
        except KeyboardInterrupt:
            typer.echo("(stopped)", err=True)
        except OptionError as error:
            messages.pop()
            typer.echo(f"pilotfish: {error}", err=True)
            continue
        messages.append({"role": "assistant", "content": "".join(e.text for e in answer)})
        if stats and answer and answer[-1].stats:
            typer.echo(closing_line(answer[-1].stats, None), err=True)


def _keep(events: Iterator[Event], into: list[Event]) -> Iterator[Event]:
    for event in events:
        into.append(event)
        yield event
