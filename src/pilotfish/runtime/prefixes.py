"""Sequences that have ended, kept for requests that begin as they did, within a budget of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pilotfish.engine.reuse import Kept, Start, joined, start_at, usable

if TYPE_CHECKING:
    from pilotfish.runtime.loaded import LoadedModel

SHORT = 64  # tokens that are computed again sooner than kept apart


class _Entry(NamedTuple):
    model: LoadedModel
    kept: Kept
    nbytes: int


class PrefixCache:
    """Least recently used goes first. Used by the thread that owns the device only."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: list[_Entry] = []  # the most recently used last
        self.hits = self.misses = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(e.nbytes for e in self._entries)

    def start(self, model: LoadedModel, prompt: Sequence[int]) -> Start | None:
        """The longest beginning of `prompt` that is kept, to prefill from; None where there is none."""
        specs = model.target.specs
        found = [(usable(specs, e.kept, prompt), i) for i, e in enumerate(self._entries) if e.model is model]
        length, at = max(found, default=(0, 0))
        if not length:
            self.misses += 1
            return None
        self.hits += 1
        entry = self._entries.pop(at)
        self._entries.append(entry)
        return start_at(specs, entry.kept, length)

    def add(self, model: LoadedModel, kept: Kept) -> None:
        """Keep a sequence, joined with those of which it is the continuation or the beginning."""
        specs, others = model.target.specs, []
        for entry in self._entries:
            mine, theirs = kept.tokens, entry.kept.tokens
            if entry.model is model and mine[: len(theirs)] == theirs:
                kept = joined(specs, kept, entry.kept)
            elif entry.model is model and theirs[: len(mine)] == mine:
                kept = joined(specs, entry.kept, kept)
            else:
                others.append(entry)
        self._entries = [*others, _Entry(model, kept, kept.nbytes)]
        while self._entries and self.nbytes > self.limit:
            self._entries.pop(0)

    def forget(self, model: LoadedModel) -> None:
        """Drop all of a model that leaves memory."""
        self._entries = [e for e in self._entries if e.model is not model]

    def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()


def marks_of(model: LoadedModel, prompt: Sequence[int]) -> list[int]:
    """Where later prompts may leave this one: after the first turn, before the answer's turn, at the end.

    A template may write an answer otherwise into the next prompt than the model did (without its thinking), so the end
    of the conversation before the answer matters most.
    """
    turns = [i for i, token in enumerate(prompt) if token == model.turn_token and i]
    marks = {*turns[:2], *turns[-1:]}
    end = len(prompt) - 1
    if not marks or end - max(marks) > SHORT:
        marks.add(end)
    return sorted(m for m in marks if m >= SHORT)
