"""pilotfish: Gemma 4 with multi-token prediction on MLX; the same text, sooner.

>>> import pilotfish
>>> engine = pilotfish.load("nano")  # doctest: +SKIP
>>> text = engine.generate("def fib(n):", max_tokens=200)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pilotfish.runtime.loaded import Engine as Engine
    from pilotfish.runtime.loaded import load as load
    from pilotfish.runtime.request import Completion as Completion
    from pilotfish.runtime.request import Event as Event
    from pilotfish.runtime.request import Stats as Stats

_HOMES = {
    "Completion": "pilotfish.runtime.request",
    "Engine": "pilotfish.runtime.loaded",
    "Event": "pilotfish.runtime.request",
    "Stats": "pilotfish.runtime.request",
    "load": "pilotfish.runtime.loaded",
}
__all__ = ["Completion", "Engine", "Event", "Stats", "load"]


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that `import pilotfish` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pilotfish' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
