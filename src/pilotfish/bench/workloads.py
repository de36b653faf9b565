"""Kinds of text that are easy or hard to draft: what `bench depth` decodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pilotfish.text.prompts import Prompt

SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_k": 64, "top_p": 0.95}

FILES = (
    '''class Stack:
    """A last-in, first-out container."""

    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

    def __len__(self):
        return len(self.items)
''',
    """import csv


def read_prices(path):
    prices = {}
    with open(path, newline="") as file:
        for row in csv.reader(file):
            name, price = row[0], float(row[1])
            prices[name] = price
    return prices


def total(prices, names):
    return sum(prices[name] for name in names)
""",
    """def is_prime(n):
    if n < 2:
        return False
    for i in range(2, int(n**0.5) + 1):
        if n % i == 0:
            return False
    return True


def primes(limit):
    return [n for n in range(limit) if is_prime(n)]
""",
)


@dataclass(frozen=True)
class Workload:
    """Prompts of one kind, and how their texts are sampled (fields of `Request`)."""

    name: str
    prompts: tuple[Prompt, ...]
    sampling: dict[str, Any]


def _edit(file: str, change: str) -> Prompt:
    content = f"Here is a file:\n\n```python\n{file}```\n\n{change} Answer with the whole file and nothing else."
    return [{"role": "user", "content": content}]


_CODE: tuple[Prompt, ...] = (
    "import os\nimport sys\n\n\nclass Reader:\n    def __init__(self, path):\n",
    "def merge_sort(items):\n    if len(items) <= 1:\n        return items\n",
    'from dataclasses import dataclass\n\n\n@dataclass\nclass Order:\n    """An order of a customer."""\n\n',
)

WORKLOADS = (
    Workload("code", _CODE, SAMPLED),
    Workload(
        "prose",
        (
            [{"role": "user", "content": "Tell me how a lighthouse keeper spends a winter night."}],
            [{"role": "user", "content": "Why do rivers meander? Explain it to a child."}],
            "The train left the station at dawn, and nobody in the compartment",
        ),
        SAMPLED,
    ),
    Workload(
        "edit",
        (
            _edit(FILES[0], "Rename the method `push` to `add`."),
            _edit(FILES[1], "Skip empty rows."),
            _edit(FILES[2], "Give every function a docstring."),
        ),
        SAMPLED,
    ),
    # Flattened so far that no drafter can know what comes next.
    Workload("hostile", _CODE, {"temperature": 2.0, "top_k": 0, "top_p": 1.0}),
)
