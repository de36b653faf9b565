"""How much to think, as the dialects say it, in tokens: after so many, thinking is ended and the answer begins."""

from __future__ import annotations

from typing import NamedTuple

from pilotfish.errors import OptionError

# Gemma 4 thinks or does not; levels of effort are limits. None: as long as it likes.
BUDGETS: dict[str, int | None] = {
    "none": 0, "minimal": 512, "low": 1024, "medium": 4096, "high": 16384, "xhigh": None, "ultra": None, "max": None,
}  # fmt: skip


class Thinking(NamedTuple):
    """wanted: None leaves it to the model, which thinks if it can. budget: tokens, or None for no limit."""

    wanted: bool | None
    budget: int | None


def thinking_of(effort: bool | str | None, what: str) -> Thinking:
    """What a level of effort asks for, or yes or no. Raises OptionError, naming the field, for one nobody knows."""
    if effort is None or isinstance(effort, bool):
        return Thinking(effort, None)
    if effort not in BUDGETS:
        raise OptionError(f"{what} is {effort!r}; it must be one of {', '.join(BUDGETS)}")
    return Thinking(False, None) if effort == "none" else Thinking(None, BUDGETS[effort])
