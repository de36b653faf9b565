"""Sequences that begin alike: keys and values of one that has ended, as the start of another.

Full attention can be cut at any length. A ring forgets what left its window, so it serves the length it stands at, and
those at which its buffers were kept (arrays never change, so keeping them is holding them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pilotfish.engine.caches import CacheSpec
from pilotfish.engine.state import Buffers, DecodeState

Caches = tuple[Buffers, ...]


class Start(NamedTuple):
    """Where a prefill goes on: `length` tokens whose keys and values are in `caches`."""

    length: int
    caches: Caches


class Marks:
    """Lengths of a prompt at which a prefill keeps what cannot be cut later, and then what it kept."""

    def __init__(self, at: Iterable[int] = ()) -> None:
        self.at = sorted(set(at))
        self.kept: dict[int, Caches] = {}

    def end_of_chunk(self, start: int, end: int) -> int:
        """`end`, or the first mark between `start` and `end`."""
        return next((m for m in self.at if start < m < end), end)

    def note(self, specs: Sequence[CacheSpec], caches: Caches, length: int) -> None:
        """Keep the caches of `length` tokens if that is a mark."""
        if length in self.at:
            self.kept[length] = _uncuttable(specs, caches)


@dataclass(frozen=True)
class Kept:
    """A sequence that has ended. `caches` hold all of `tokens`; `earlier`, by length, those that cannot be cut."""

    tokens: tuple[int, ...]
    caches: Caches
    earlier: Mapping[int, Caches] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, each counted once."""
        sets = (self.caches, *self.earlier.values())
        return sum({id(b): b.nbytes for caches in sets for buffers in caches for b in buffers}.values())


def keep(specs: Sequence[CacheSpec], tokens: Sequence[int], state: DecodeState, marks: Marks) -> Kept:
    """What is held of a sequence of one row; `tokens` are those with keys and values, in order."""
    length = len(tokens)
    caches = tuple(spec.as_prefilled(b, length) for spec, b in zip(specs, state.caches, strict=True))
    return Kept(tuple(tokens), caches, {m: c for m, c in marks.kept.items() if m < length})


def joined(specs: Sequence[CacheSpec], longer: Kept, shorter: Kept) -> Kept:
    """`longer`, which begins with all of `shorter`, able to serve the lengths of both."""
    earlier = {**shorter.earlier, len(shorter.tokens): _uncuttable(specs, shorter.caches), **longer.earlier}
    return Kept(longer.tokens, longer.caches, {m: c for m, c in earlier.items() if m < len(longer.tokens)})


def usable(specs: Sequence[CacheSpec], kept: Kept, prompt: Sequence[int]) -> int:
    """The most tokens of `prompt` whose keys and values `kept` can give; its last token is never among them."""
    common = 0
    for ours, theirs in zip(kept.tokens, prompt[:-1], strict=False):
        if ours != theirs:
            break
        common += 1
    if all(spec.can_cut for spec in specs):
        return common
    return max((n for n in (*kept.earlier, len(kept.tokens)) if n <= common), default=0)


def start_at(specs: Sequence[CacheSpec], kept: Kept, length: int) -> Start:
    """The caches of the first `length` tokens; a length that `usable` gave, or any if all caches can be cut."""
    held = kept.earlier.get(length, kept.caches)
    caches = tuple(
        whole if spec.can_cut else marked for spec, whole, marked in zip(specs, kept.caches, held, strict=True)
    )
    return Start(length, caches)


def _uncuttable(specs: Sequence[CacheSpec], caches: Caches) -> Caches:
    return tuple(() if spec.can_cut else buffers for spec, buffers in zip(specs, caches, strict=True))
