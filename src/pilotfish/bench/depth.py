"""Draft depth chosen at run time against every fixed depth, by kind of text, in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.bench.report import canvas, table
from pilotfish.bench.workloads import Workload
from pilotfish.errors import DraftingUnsupportedError
from pilotfish.runtime.loaded import Engine
from pilotfish.runtime.request import AUTO

DEEPEST = 8
LOOKUP = "auto and look-up"
DEPTHS: tuple[int | str, ...] = (*range(DEEPEST + 1), AUTO, LOOKUP)  # all but the last by the assistant alone


@dataclass(frozen=True)
class Texts:
    """One prompt of a workload at every depth. seconds: of the fastest of its runs, by depth; same: in text."""

    workload: str
    prompt: int
    seed: int
    tokens: int
    seconds: dict[str, float]
    same: bool


def measure(
    engine: Engine, workloads: Sequence[Workload], max_tokens: int, repeats: int, seeds: int,
    known: Sequence[Texts] = (),
) -> Iterator[Texts]:  # fmt: skip
    """Decode every prompt with every seed at every depth, in turn. Raises DraftingUnsupportedError."""
    if not engine.model.drafts:
        raise DraftingUnsupportedError(f"{engine.model.name} was loaded without a drafter; there is no depth to choose")
    done = {(t.workload, t.prompt, t.seed) for t in known}
    for workload in workloads:
        for number, prompt in enumerate(workload.prompts):
            for seed in range(1, seeds + 1):
                if (workload.name, number, seed) not in done:
                    options = {**workload.sampling, "seed": seed, "max_tokens": max_tokens}
                    tokens, seconds, same = _timed(engine, prompt, repeats, options)
                    yield Texts(workload.name, number, seed, tokens, seconds, same)


def _timed(engine: Engine, prompt: Any, repeats: int, options: dict[str, Any]) -> tuple[int, dict[str, float], bool]:
    seconds: dict[str, float] = {}
    texts = set()
    tokens = 0
    for repeat in range(repeats):
        order = DEPTHS if repeat % 2 == 0 else tuple(reversed(DEPTHS))
        for depth in order:
            text = engine.generate(prompt, depth=AUTO if depth == LOOKUP else depth, lookup=depth == LOOKUP, **options)
            texts.add(text.tokens)
            tokens = text.stats.tokens
            key = str(depth)
            seconds[key] = min(seconds.get(key, float("inf")), text.stats.decode_seconds)
    return tokens, seconds, len(texts) == 1


@dataclass(frozen=True)
class DepthRow:
    """One workload. rates: tokens a second by depth; best: the best fixed depth."""

    workload: str
    texts: int
    rates: dict[str, float]
    best: str
    auto_over_best: float
    auto_over_plain: float
    lookup_over_auto: float
    same_text: int


def summarize(found: Sequence[Texts]) -> list[DepthRow]:
    """By workload, in the order of their first text."""
    rows = []
    for name in dict.fromkeys(t.workload for t in found):
        texts = [t for t in found if t.workload == name]
        tokens = sum(t.tokens for t in texts)
        rates = {str(d): tokens / sum(t.seconds[str(d)] for t in texts) for d in DEPTHS}
        best = max((str(d) for d in DEPTHS if isinstance(d, int)), key=lambda d: rates[d])
        auto, lookup = rates[AUTO], rates[LOOKUP]
        same = sum(t.same for t in texts)
        rows.append(DepthRow(name, len(texts), rates, best, auto / rates[best], auto / rates["0"], lookup / auto, same))
    return rows


def as_markdown(title: str, rows: Sequence[DepthRow]) -> str:
    """The report's table."""
    head = ("tokens/s", *map(str, DEPTHS), "auto / best fixed", "auto / plain", "with look-up / auto", "same text")
    cells = [
        (
            r.workload, *(f"{r.rates[str(d)]:.0f}" for d in DEPTHS), f"{r.auto_over_best:.2f} (depth {r.best})",
            f"{r.auto_over_plain:.2f}", f"{r.lookup_over_auto:.2f}", f"{r.same_text} of {r.texts}",
        )
        for r in rows
    ]  # fmt: skip
    return f"## {title}\n\n" + table(head, cells)


def plot(rows: Sequence[DepthRow], path: str, title: str) -> None:
    """Tokens a second by fixed depth, auto and look-up as lines of their own, as a PNG. Raises ImportError without
    matplotlib."""
    fixed = range(DEEPEST + 1)
    with canvas(path, title) as axis:
        for r in rows:
            (line,) = axis.plot(fixed, [r.rates[str(d)] for d in fixed], marker="o", ms=3, label=r.workload)
            axis.axhline(r.rates[AUTO], color=line.get_color(), linewidth=0.9, linestyle="--")
            axis.axhline(r.rates[LOOKUP], color=line.get_color(), linewidth=0.9, linestyle=":")
        axis.set_xlabel("fixed depth; dashed: chosen at run time; dotted: with look-up as well")
        axis.set_ylabel("tokens/s")
        axis.set_ylim(bottom=0)
        axis.legend()
