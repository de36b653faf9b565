"""How many drafts are kept: greedy, and sampled under both acceptance rules. Counts only; nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.errors import DraftingUnsupportedError
from pilotfish.runtime.loaded import Engine
from pilotfish.text.prompts import Prompt

SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_k": 64, "top_p": 0.95, "seed": 7}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled, same-text": SAMPLED,
    "sampled, rejection": {**SAMPLED, "acceptance": "rejection"},
}
LOOP_WINDOW = 8  # a window of so many tokens that occurred before counts as looping


@dataclass(frozen=True)
class Acceptance:
    """One setting over all prompts.

    by_position[i]: of the rounds that kept drafts 0..i-1, the share that kept draft i.
    repeated: share of repeated 8-token windows in the texts; looping text is easy to draft and flatters.
    """

    setting: str
    depth: int
    tokens: int
    rounds: int
    accepted_per_round: float
    tokens_per_round: float
    by_position: list[float]
    repeated: float


def repeated_windows(tokens: Sequence[int]) -> float:
    """Share of LOOP_WINDOW-token windows that occurred before in the same text; 0 where there are none."""
    windows = [tuple(tokens[i : i + LOOP_WINDOW]) for i in range(len(tokens) - LOOP_WINDOW + 1)]
    return 1 - len(set(windows)) / len(windows) if windows else 0.0


def measure(engine: Engine, prompts: Sequence[Prompt], max_tokens: int, depth: int,
            progress: Callable[[int, int], None] | None = None) -> list[Acceptance]:  # fmt: skip
    """Decode every prompt under every setting. Raises DraftingUnsupportedError without a drafter."""
    if not engine.model.drafts:
        raise DraftingUnsupportedError(f"{engine.model.name} was loaded without a drafter; there is nothing to count")
    out, done = [], 0
    for setting, options in SETTINGS.items():
        kept, made = [0] * depth, [0] * depth
        tokens = rounds = 0
        repeated = []
        for prompt in prompts:
            text = engine.generate(prompt, max_tokens=max_tokens, depth=depth, **options)
            stats = text.stats
            tokens, rounds = tokens + stats.tokens, rounds + stats.rounds
            repeated.append(repeated_windows(text.tokens))
            for i in range(len(stats.drafted_at)):
                kept[i] += stats.accepted_at[i]
                made[i] += stats.drafted_at[i]
            done += 1
            if progress is not None:
                progress(done, len(SETTINGS) * len(prompts))
        reached = [made[0], *kept[:-1]]  # rounds in which draft i was looked at
        out.append(
            Acceptance(
                setting=setting,
                depth=depth,
                tokens=tokens,
                rounds=rounds,
                accepted_per_round=sum(kept) / max(1, made[0]),
                tokens_per_round=tokens / max(1, rounds),
                by_position=[k / r if r else 0.0 for k, r in zip(kept, reached, strict=True)],
                repeated=sum(repeated) / len(repeated),
            )
        )
    return out
