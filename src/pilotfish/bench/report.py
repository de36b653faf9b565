"""How measurements are shown: Markdown tables and PNG plots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


@contextmanager
def canvas(path: str, title: str, size: tuple[float, float] = (8, 3.6)) -> Iterator[Any]:
    """Axes to draw on; the picture is written to `path` afterwards. Raises ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=size)
    axis.set_title(title, fontsize=10)
    axis.grid(alpha=0.3)
    yield axis
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
