"""Names of Gemma 4 as people write them -> repositories of target and assistant on the hub."""

from __future__ import annotations

from typing import NamedTuple

_SIZES = {"e2b": "E2B", "e4b": "E4B", "12b": "12B", "26b": "26B-A4B", "26b-a4b": "26B-A4B", "31b": "31B"}
_FORMS = {"": "4bit", "-4bit": "4bit", "-8bit": "8bit", "-bf16": "bf16"}
DEFAULT_TAG = "e4b"


class Pair(NamedTuple):
    """Repositories of a target and its drafter."""

    target: str
    assistant: str


def known(name: str) -> Pair | None:
    """The pair behind gemma4, gemma4:31b, gemma4:e2b-8bit and the like; None for any other name."""
    family, _, tag = name.lower().partition(":")
    if family != "gemma4":
        return None
    tag = DEFAULT_TAG if tag in ("", "latest") else tag.replace("-it", "")
    for suffix, form in sorted(_FORMS.items(), key=lambda item: -len(item[0])):
        size = _SIZES.get(tag.removesuffix(suffix)) if tag.endswith(suffix) else None
        if size:
            return Pair(f"mlx-community/gemma-4-{size.lower()}-it-{form}", f"google/gemma-4-{size}-it-assistant")
    return None
