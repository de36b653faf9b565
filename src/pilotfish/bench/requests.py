"""What a request may ask for, against the same request without it: speed with drafting on, and the same text as off."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any, NamedTuple

from pilotfish.bench.report import table
from pilotfish.errors import DraftingUnsupportedError
from pilotfish.runtime.loaded import Engine
from pilotfish.runtime.request import AUTO, REQUIRED, Chat, Stats

DEPTH = 2  # at which rounds are compared: the same number of rows in all
SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_k": 64, "top_p": 0.95}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["module", "class", "function"]},
        "size": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 4},
        "notes": {"type": "string"},
    },
    "required": ["name", "kind", "size", "tags", "notes"],
    "additionalProperties": False,
}
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": SCHEMA}}
    for name in ("read", "write", "search", "run")
)
# For checkpoints whose own template knows neither tools nor thinking, as nano's.
TEMPLATE = """<bos>{% if tools or enable_thinking %}<|turn>system
{% if enable_thinking %}<|think|>
{% endif %}{% for t in tools or [] %}<|tool>declaration:{{ t.function.name }}{{ t.function.parameters | tojson }}<tool|>
{%- endfor %}<turn|>
{% endif %}{% for m in messages %}<|turn>{{ m.role }}
{{ m.content }}<turn|>
{% endfor %}<|turn>model
"""
PROMPTS = (
    "Write a class Stack in Python with push, pop and peek.",
    "Describe the file queue.go of a small library.",
    "Why do rivers meander? Explain it to a child.",
    "Write a function that merges two sorted lists.",
    "Name the parts of a sailing boat.",
    "Write a parser for key=value lines.",
)


class Wish(NamedTuple):
    """What is asked for: fields of the conversation, and of the request."""

    chat: Mapping[str, Any]
    options: Mapping[str, Any]


WISHES: dict[str, Wish] = {
    "nothing": Wish({}, {}),
    "log probabilities, 5 alternatives": Wish({}, {"logprobs": 5}),
    # So small that the text stays what it is: only the work is compared.
    "penalties": Wish({}, {"repetition_penalty": 1.0001, "presence_penalty": 1e-4, "frequency_penalty": 1e-4}),
    "logit bias, min_tokens": Wish({}, {"logit_bias": {300: -1e-4, 301: 1e-4}, "min_tokens": 2}),
    "stop strings": Wish({}, {"stop": ("\n\n\n\n", "THE END")}),
    "tools": Wish({"tools": TOOLS}, {}),
    "thinking, 60 tokens at most": Wish({"thinking": True}, {"thinking_budget": 60}),
    "JSON schema": Wish({}, {"format": SCHEMA}),
    "forced tool call": Wish({"tools": TOOLS, "choice": REQUIRED, "one_call": True}, {}),
}


@dataclass(frozen=True)
class Measured:
    """One prompt with one wish, under one way of drafting. seconds: of decoding, its fastest run."""

    wish: str
    way: str
    tokens: int
    rounds: int
    seconds: float
    same: bool


def measure(
    engine: Engine,
    wishes: Sequence[str],
    max_tokens: int,
    repeats: int,
    seeds: int,
    options: Mapping[str, Any],
    skip: int = 0,
) -> Iterator[list[Measured]]:
    """Decode every prompt with every wish, drafted, plainly and at a fixed depth, in turn; a list for each prompt.

    skip: prompts that are measured already. Raises DraftingUnsupportedError.
    """
    if not engine.model.drafts:
        raise DraftingUnsupportedError(f"{engine.model.name} was loaded without a drafter; there is nothing to compare")
    own = engine.model.can_call_tools and engine.model.can_think
    ways: dict[str, int | str] = {AUTO: AUTO, "plain": 0, "fixed": min(DEPTH, engine.model.target.max_depth)}
    for prompt, seed in list(product(PROMPTS, range(1, seeds + 1)))[skip:]:
        best: dict[tuple[str, str], Stats] = {}
        texts: dict[str, set[tuple[int, ...]]] = {}
        for _, name, (way, depth) in product(range(repeats), wishes, ways.items()):
            wish = WISHES[name]
            # Without tools their declarations are read as text: prompts are about equally long.
            system = [] if "tools" in wish.chat else [{"role": "system", "content": json.dumps(TOOLS)}]
            messages = (*system, {"role": "user", "content": prompt})
            chat = Chat(messages, template="" if own else TEMPLATE, **wish.chat)
            text = engine.generate(chat, depth=depth, seed=seed, max_tokens=max_tokens, **options, **wish.options)
            texts.setdefault(name, set()).add(text.tokens)
            if (name, way) not in best or text.stats.decode_seconds < best[name, way].decode_seconds:
                best[name, way] = text.stats
        yield [
            Measured(name, way, s.tokens, s.rounds, s.decode_seconds, len(texts[name]) == 1)
            for (name, way), s in best.items()
        ]


@dataclass(frozen=True)
class Row:
    """A wish. speed: tokens a second, drafted; over_plain: against itself without drafting. The others: that speed, and
    that of a round at a fixed depth, against those of a request that asks for nothing; above 1 is faster."""

    wish: str
    speed: float
    over_plain: float
    speed_over_nothing: float
    round_over_nothing: float
    same_text: int
    texts: int


def summarize(found: Sequence[Measured]) -> list[Row]:
    """By wish; the first one asks for nothing."""

    def of(wish: str, way: str) -> list[Measured]:
        return [m for m in found if m.wish == wish and m.way == way]

    def rate(wish: str, way: str) -> float:
        return sum(m.tokens for m in of(wish, way)) / sum(m.seconds for m in of(wish, way))

    def a_round(wish: str) -> float:
        return median(m.seconds / m.rounds for m in of(wish, "fixed"))

    nothing, *_ = names = list(dict.fromkeys(m.wish for m in found))
    return [
        Row(name, rate(name, AUTO), rate(name, AUTO) / rate(name, "plain"), rate(name, AUTO) / rate(nothing, AUTO),
            a_round(nothing) / a_round(name), sum(m.same for m in of(name, AUTO)), len(of(name, AUTO)))
        for name in names
    ]  # fmt: skip


def as_markdown(title: str, rows: Sequence[Row]) -> str:
    """The report's table."""
    head = ("asked for", "tokens/s", "drafting on / off", "speed / nothing asked", "speed of a round / nothing asked",
            "same text on as off")  # fmt: skip
    cells = [
        (r.wish, f"{r.speed:.0f}", f"{r.over_plain:.2f}", f"{r.speed_over_nothing:.2f}", f"{r.round_over_nothing:.2f}",
         f"{r.same_text} of {r.texts}") for r in rows
    ]  # fmt: skip
    return f"## {title}\n\n" + table(head, cells)
