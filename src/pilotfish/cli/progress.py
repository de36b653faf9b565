"""A progress bar on standard error for work that takes minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


class PromptBar:
    """Shows how far a long prompt has been read; gone before the first token is printed. Only on a terminal."""

    SHORTEST = 1024  # tokens; shorter prompts are read before a bar could be

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._update: Callable[[int, int], None] | None = None

    def __call__(self, done: int, total: int) -> None:
        if total < self.SHORTEST:
            return
        if self._update is None:
            self._update = self._stack.enter_context(bar("reading the prompt"))
        self._update(done, total)
        if done == total:
            self._stack.close()


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yields `update(done, total)`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield update
