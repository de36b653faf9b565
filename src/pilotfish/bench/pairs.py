"""Plain and drafted decoding of the same prompts, in turn, and what that gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

from pilotfish.bench.acceptance import repeated_windows
from pilotfish.bench.report import table
from pilotfish.errors import DraftingUnsupportedError
from pilotfish.runtime.loaded import Engine
from pilotfish.text.prompts import Prompt


@dataclass(frozen=True)
class Task:
    """A prompt with a name and the group (language, workload) that it is summed up in."""

    name: str
    group: str
    prompt: Prompt


Judge = Callable[[Task, str], bool | None]
"""Whether an answer to a task is right, None where that cannot be known."""


@dataclass(frozen=True)
class Pair:
    """One task, decoded plainly and with drafting. Speeds are tokens a second of decoding, prompts left out.

    accepted: by position, share of the rounds that drafted so far and kept it. depths: of the drafted run's rounds.
    repeated: share of repeated 8-token windows; looping text is easy to draft and flatters. plain_passed and
    drafted_passed: whether the task's own tests pass, None where they were not run.
    """

    task: str
    group: str
    tokens: int
    plain_seconds: float
    drafted_seconds: float
    same_text: bool
    accepted: list[float]
    depths: list[int]
    repeated: float
    plain_passed: bool | None = None
    drafted_passed: bool | None = None

    @property
    def speed_up(self) -> float:
        return self.plain_seconds / self.drafted_seconds


def compare(
    engine: Engine, tasks: Iterable[Task], max_tokens: int, repeats: int = 1, judge: Judge | None = None, **options: Any
) -> Iterator[Pair]:
    """Decode each task `repeats` times both ways, in turn, and keep each way's fastest run.

    judge: looks at the answers. options: fields of `Request` but depth.
    Raises DraftingUnsupportedError without a drafter.
    """
    if not engine.model.drafts:
        raise DraftingUnsupportedError(f"{engine.model.name} was loaded without a drafter; there is nothing to compare")
    for number, task in enumerate(tasks):
        runs: dict[int | str, list[Any]] = {0: [], "auto": []}
        for repeat in range(repeats):
            order: list[int | str] = [0, "auto"] if (number + repeat) % 2 == 0 else ["auto", 0]
            for depth in order:
                runs[depth].append(engine.generate(task.prompt, max_tokens=max_tokens, depth=depth, **options))
        plain, drafted = (min(runs[d], key=lambda r: r.stats.decode_seconds) for d in (0, "auto"))
        stats = drafted.stats
        plain_passed = judge(task, plain) if judge else None
        drafted_passed = judge(task, drafted) if judge and drafted != plain else plain_passed
        yield Pair(
            task=task.name,
            group=task.group,
            tokens=stats.tokens,
            plain_seconds=plain.stats.decode_seconds * stats.tokens / plain.stats.tokens,
            drafted_seconds=stats.decode_seconds,
            same_text=all(r.tokens == plain.tokens for r in runs["auto"]),
            accepted=[round(a / d, 3) for a, d in zip(stats.accepted_at, stats.drafted_at, strict=True) if d],
            depths=list(stats.depths),
            repeated=repeated_windows(plain.tokens),
            plain_passed=plain_passed,
            drafted_passed=drafted_passed,
        )


@dataclass(frozen=True)
class Summary:
    """Of a group of pairs. total: all plain seconds over all drafted. worst: the smallest speed-up, and whose."""

    group: str
    tasks: int
    tokens: int
    median: float
    mean: float
    total: float
    worst: float
    worst_task: str
    same_text: int
    repeated: float
    judged: int
    plain_passed: int
    drafted_passed: int


def summarize(pairs: Sequence[Pair]) -> list[Summary]:
    """By group, and over all."""
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.group].append(pair)
    return [*(_summary(name, groups[name]) for name in sorted(groups)), _summary("all", pairs)]


def _summary(group: str, pairs: Sequence[Pair]) -> Summary:
    worst = min(pairs, key=lambda p: p.speed_up)
    ups = [p.speed_up for p in pairs]
    return Summary(
        group=group,
        tasks=len(pairs),
        tokens=sum(p.tokens for p in pairs),
        median=median(ups),
        mean=mean(ups),
        total=sum(p.plain_seconds for p in pairs) / sum(p.drafted_seconds for p in pairs),
        worst=worst.speed_up,
        worst_task=worst.task,
        same_text=sum(p.same_text for p in pairs),
        repeated=mean(p.repeated for p in pairs),
        judged=sum(p.plain_passed is not None for p in pairs),
        plain_passed=sum(bool(p.plain_passed) for p in pairs),
        drafted_passed=sum(bool(p.drafted_passed) for p in pairs),
    )


def as_markdown(title: str, pairs: Sequence[Pair]) -> str:
    """The report's table."""
    found = summarize(pairs)
    head = ["", "tasks", "tokens", "speed-up, median", "mean", "total time", "worst task", "same text",
            "repeated windows"]  # fmt: skip
    cells = [
        [
            s.group, s.tasks, s.tokens, f"{s.median:.2f}", f"{s.mean:.2f}", f"{s.total:.2f}",
            f"{s.worst:.2f} ({s.worst_task})", f"{s.same_text} of {s.tasks}", f"{s.repeated:.2f}",
        ]
        for s in found
    ]  # fmt: skip
    if any(s.judged for s in found):
        head.append("tests passed, plain / drafted")
        for line, s in zip(cells, found, strict=True):
            line.append(f"{s.plain_passed} / {s.drafted_passed} of {s.judged}")
    return f"## {title}\n\n" + table(head, cells)


def from_json(record: dict[str, Any]) -> Pair:
    """A pair as `to_json` wrote it."""
    return Pair(**{k: v for k, v in record.items() if k in Pair.__dataclass_fields__})


def to_json(pair: Pair) -> dict[str, Any]:
    """For JSON Lines, with the speed-up written out."""
    return asdict(pair) | {"speed_up": round(pair.speed_up, 3)}
