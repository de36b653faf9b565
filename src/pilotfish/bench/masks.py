"""What a grammar's masks cost: microseconds a row, by schema, for a model's vocabulary or a large one made here."""

from __future__ import annotations

import json
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from pilotfish.bench.report import table
from pilotfish.text.grammar import GrammarConstraint, GrammarTokenizer

DRAFTS = 3  # a round has a row more

CASES: tuple[tuple[str, dict[str, Any], Any], ...] = (
    (
        "an object with five fields",
        {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "kind": {"enum": ["alpha", "beta", "gamma"]},
                "size": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "notes": {"type": "string"},
            },
            "required": ["name", "kind", "size", "tags", "notes"],
            "additionalProperties": False,
        },
        {
            "name": "Ada Lovelace", "kind": "beta", "size": 1842, "tags": ["mathematics", "engines", "programmer"],
            "notes": "She wrote the first algorithm that was meant for a machine, long before there was one.",
        },
    ),
    (
        "any object",
        {"type": "object"},
        {"answer": [1, 2, 3.5, "a long string with many words, and then some more"], "nested": {"k": None, "t": True}},
    ),
    (
        "strings of at most 20 characters, dates",
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "x": {"type": "number"},
                    "label": {"type": "string", "maxLength": 20},
                    "date": {"type": "string", "format": "date"},
                },
                "required": ["x", "label"],
            },
        },
        [{"x": 1.25, "label": "first of them", "date": "2024-05-06"}, {"x": -7000, "label": "second"}],
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """Of one schema: rows of one value, and microseconds of each on average, the fastest of the runs."""

    schema: str
    rows: int
    microseconds: float


def large_tokenizer(vocab: int) -> Tokenizer:
    """A byte-level BPE of so many tokens, trained on the Python standard library; a minute for 262144."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=["<pad>", "<eos>"], min_frequency=1, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    tokenizer.train_from_iterator((f.read_text(encoding="utf-8", errors="ignore") for f in files), trainer)
    return tokenizer


def measure(grammars: GrammarTokenizer, tokenizer: Tokenizer, repeats: int) -> Iterator[Cost]:
    """Walk a value of every schema in rounds of DRAFTS right drafts, as decoding does."""
    for name, schema, value in CASES:
        ids = tokenizer.encode(json.dumps(value, separators=(",", ":")), add_special_tokens=False).ids
        matcher, runs = grammars.of_schema(schema), []
        for _ in range(repeats):
            constraint = GrammarConstraint(matcher.deep_copy(), grammars.vocab, grammars.eos, None, None, False)
            costs = []
            for at in range(0, len(ids), DRAFTS):
                drafts = ids[at : at + DRAFTS]
                started = time.perf_counter()
                rows = constraint.masks(drafts)
                costs += [(time.perf_counter() - started) / len(rows)] * len(rows)
                constraint.commit(drafts)
            runs.append(costs)
        yield Cost(name, len(runs[0]), 1e6 * min(map(mean, runs)))


def as_markdown(vocab: int, costs: list[Cost]) -> str:
    """The report's table."""
    rows = [(c.schema, c.rows, f"{c.microseconds:.0f}") for c in costs]
    return table((f"masks of {vocab} tokens", "rows", "µs a row"), rows)
