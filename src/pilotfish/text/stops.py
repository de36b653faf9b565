"""Stop strings over a stream of text pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text through until one of `stops` appears in it; what may be the start of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    @property
    def stopped(self) -> bool:
        """A stop string is complete."""
        return self.found is not None

    def add(self, text: str) -> str:
        """Text that is safe to show. Sets `found` when a stop string is complete; it and what follows is dropped."""
        text = self._held + text
        found = [(at, s) for s in self._stops if (at := text.find(s)) >= 0]
        if found:
            at, self.found = min(found, key=lambda pair: pair[0])
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, s) for s in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back and turned out to be ordinary text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - size :]):
            return size
    return 0
