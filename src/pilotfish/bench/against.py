"""The same checkpoint and prompts through other engines, each in a process of its own, in turn.

Greedy; tokens are counted from ids (from the usage figures of a server), seconds from the first token on, so prompts
are left out on all sides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from pilotfish.bench.contenders import Contender, TooSlowError
from pilotfish.bench.report import canvas, table
from pilotfish.runtime.loaded import Engine
from pilotfish.text.prompts import Prompt

log = logging.getLogger("pilotfish")


@dataclass(frozen=True)
class Answer:
    """One prompt. rates: tokens a second by way of decoding; same_text: by contender, None where ids are not given."""

    prompt: int
    tokens: int
    rates: dict[str, float]
    same_text: dict[str, bool | None]


PLAIN, DRAFTED = "pilotfish, plain", "pilotfish, drafted"


def compare(
    engine: Engine, contenders: Sequence[Contender], prompts: Sequence[Prompt], max_tokens: int, repeats: int,
    done: int = 0,
) -> Iterator[Answer]:  # fmt: skip
    """Decode every prompt but the first `done` with pilotfish, plainly and drafted, and with every contender, in turn.

    Each decodes a prompt `repeats` times in a row, and its fastest run counts: the first one finds caches cold that
    another process has used, and threads still spinning. A contender that is slower than its time limit is left out
    from then on.
    """
    left = list(contenders)
    for number, prompt in enumerate(prompts[done:], done):
        ids = engine.prompt_ids(prompt)
        rates: dict[str, float] = {}
        same: dict[str, bool | None] = {}
        tokens: tuple[int, ...] = ()
        for name, depth in ((PLAIN, 0), (DRAFTED, "auto")):
            texts = [
                engine.generate(prompt, max_tokens=max_tokens, temperature=0.0, depth=depth) for _ in range(repeats)
            ]
            tokens = texts[0].tokens
            rates[name] = max(t.stats.tokens_per_second for t in texts)
        for contender in list(left):
            try:
                answers = [contender.decode(ids, len(tokens)) for _ in range(repeats)]
            except TooSlowError as error:
                log.warning("%s: left out from now on", error)
                left.remove(contender)
                continue
            rates[contender.name] = max(a.rate for a in answers)
            same[contender.name] = None if answers[0].tokens is None else tuple(answers[0].tokens) == tokens
        yield Answer(number, len(tokens), rates, same)


@dataclass(frozen=True)
class AgainstRow:
    """One way of decoding. drafted_faster, plain_faster: medians over prompts of pilotfish's rate over its own."""

    name: str
    prompts: int
    rate: float
    plain_faster: float
    drafted_faster: float
    same_text: int


def summarize(answers: Sequence[Answer]) -> list[AgainstRow]:
    """By way of decoding, fastest first."""
    rows = []
    for name in {name for a in answers for name in a.rates}:
        own = [a for a in answers if name in a.rates]
        rows.append(
            AgainstRow(
                name=name,
                prompts=len(own),
                rate=median(a.rates[name] for a in own),
                plain_faster=median(a.rates[PLAIN] / a.rates[name] for a in own),
                drafted_faster=median(a.rates[DRAFTED] / a.rates[name] for a in own),
                same_text=sum(bool(a.same_text.get(name)) for a in own),
            )
        )
    return sorted(rows, key=lambda r: -r.rate)


def as_markdown(title: str, rows: Sequence[AgainstRow]) -> str:
    """The report's table."""
    head = ("engine, form of the weights", "tokens/s", "drafted is faster", "plain is faster", "same text")
    cells = [
        (
            r.name, f"{r.rate:.1f}", f"{r.drafted_faster:.1f} times", f"{r.plain_faster:.1f} times",
            "" if r.name in (PLAIN, DRAFTED) else f"{r.same_text} of {r.prompts}",
        )
        for r in rows
    ]  # fmt: skip
    return f"## {title}\n\n" + table(head, cells)


def plot(rows: Sequence[AgainstRow], path: str, title: str) -> None:
    """Tokens a second as bars, as a PNG. Raises ImportError without matplotlib."""
    with canvas(path, title, (8, 0.8 + 0.4 * len(rows))) as axis:
        bars = axis.barh([r.name for r in rows], [r.rate for r in rows])
        axis.bar_label(bars, fmt="%.0f", padding=3)
        axis.invert_yaxis()
        axis.set_xlabel("tokens/s")
