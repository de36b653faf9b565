"""The proof of the same text, as data: each prompt decoded plainly and at several depths, and compared.

Texts are compared by token, logits bit by bit: a fingerprint of every row's logits is taken on the device, so that
nothing the size of a vocabulary is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from pilotfish.engine.acceptance import SameText
from pilotfish.engine.decode import DecodeLoop, Device, prefill
from pilotfish.engine.depth import FixedDepth, FixedLookup
from pilotfish.engine.drafters.lookup import PromptLookup
from pilotfish.engine.round import RoundParts
from pilotfish.engine.rows import Row
from pilotfish.engine.sampling import Sampler, SamplingParams, mix
from pilotfish.engine.state import DecodeState
from pilotfish.engine.target import Target, TargetOutput
from pilotfish.errors import DraftingUnsupportedError
from pilotfish.runtime.loaded import Engine, LoadedModel
from pilotfish.runtime.request import Prepared, Request
from pilotfish.text.prompts import Prompt

DEPTHS = (1, 2, 3, 5, 8)
MODES = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=1.0, top_k=64, top_p=0.95, seed=7),
}
DEFAULT_PROMPTS: tuple[str, ...] = (
    "def fib(n):\n",
    "class Stack:\n    def push(self, item):\n",
    "package main\n\nimport (\n",
    "fn main() {\n    let mut total = 0;\n",
    "function debounce(callback, delay) {\n",
    "#include <vector>\n\nnamespace util {\n",
    "public class Account {\n    private int balance;\n",
    "The following options are supported:\n",
)


@dataclass(frozen=True)
class Trace:
    """What one decode left: by token, its id, a fingerprint of the logits it came from, their best two's distance."""

    tokens: list[int]
    fingerprints: list[int]
    gaps: list[float]


@dataclass(frozen=True)
class Comparison:
    """One prompt at one depth in one mode, against plain decoding.

    first_difference: index of the first token that differs, None where the texts are the same.
    gap: distance between plain decoding's two best logits there.
    same_logits: whether every token up to the first difference came from bitwise equal logits.
    """

    prompt: int
    mode: str
    depth: int
    tokens: int
    same_text: bool
    same_logits: bool
    first_difference: int | None = None
    gap: float | None = None


@dataclass(frozen=True)
class Report:
    """The verdict for one model on this machine."""

    model: str
    device: str
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def same_text(self) -> bool:
        return all(c.same_text for c in self.comparisons)

    @property
    def same_logits(self) -> bool:
        return all(c.same_logits for c in self.comparisons)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"same_text": self.same_text, "same_logits": self.same_logits, **asdict(self)}


class RecordingTarget:
    """A target that also keeps, for every row of every pass, a fingerprint of its logits and its top-two gap."""

    def __init__(self, inner: Target) -> None:
        self._inner = inner
        self.specs, self.max_depth, self.vocab_size = inner.specs, inner.max_depth, inner.vocab_size
        self.can_roll_back, self.operations = inner.can_roll_back, inner.operations
        self.passes: list[tuple[mx.array, mx.array]] = []

    def forward(self, tokens: mx.array, views: Sequence[Any]) -> TargetOutput:
        """As the inner target does."""
        out = self._inner.forward(tokens, views)
        best = mx.topk(out.logits.astype(mx.float32), 2, axis=-1)
        self.passes.append((fingerprint(out.logits), mx.abs(best[..., 1] - best[..., 0])))
        return out


def fingerprint(logits: mx.array) -> mx.array:
    """(B, N, V) -> (B, N) uint32 that changes, but for a chance of 2**-32, with any bit of a row."""
    bits = logits.view(mx.uint16 if logits.dtype.size == 2 else mx.uint32).astype(mx.uint32)
    place = mx.arange(bits.shape[-1], dtype=mx.uint32) * mx.array(0x9E3779B9, mx.uint32)
    return mx.sum(mix(mix(bits) ^ place), axis=-1)  # integer sums wrap and do not depend on order


def trace(model: LoadedModel, request: Prepared, prefilled: DecodeState, depth: int, params: SamplingParams) -> Trace:
    """Decode one prompt from its prefilled state, which is left as it is, and keep what `Trace` holds."""
    recording = RecordingTarget(model.target)
    row = Row(len(request.prompt), request.max_tokens, model.eos)
    drafter = model.drafter if depth else None
    lookup = PromptLookup([request.prompt], FixedLookup(depth)) if depth and drafter is None else None
    parts = RoundParts(recording, drafter, SameText(), Sampler([params], model.suppress, model.target.operations))
    loop = DecodeLoop(parts, FixedDepth(depth), prefilled, [row], Device(), lookup=lookup)
    fingerprints: list[int] = []
    gaps: list[float] = []
    for [committed] in loop.steps():
        prints, gap = recording.passes.pop(0)
        taken = len(committed.tokens)
        fingerprints += map(int, np.array(prints)[0, :taken])
        gaps += map(float, np.array(gap)[0, :taken])
    return Trace(row.tokens, fingerprints, gaps)


def compare(plain: Trace, drafted: Trace, prompt: int, mode: str, depth: int) -> Comparison:
    """Where, if anywhere, the drafted decode leaves the plain one."""
    pairs = zip(plain.tokens, drafted.tokens, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if first is None and len(plain.tokens) != len(drafted.tokens):
        first = min(len(plain.tokens), len(drafted.tokens))
    upto = len(plain.tokens) if first is None else first
    return Comparison(
        prompt=prompt,
        mode=mode,
        depth=depth,
        tokens=len(plain.tokens),
        same_text=first is None,
        same_logits=plain.fingerprints[:upto] == drafted.fingerprints[:upto],
        first_difference=first,
        gap=None if first is None or first >= len(plain.gaps) else plain.gaps[first],
    )


def verify(engine: Engine, prompts: Sequence[Prompt], max_tokens: int, depths: Sequence[int] = DEPTHS,
           progress: Callable[[int, int], None] | None = None) -> Report:  # fmt: skip
    """Decode each prompt plainly and at each depth, greedy and sampled with a seed, and compare.

    Raises DraftingUnsupportedError if the engine has no drafter, OptionError for a prompt it cannot take.
    """
    model = engine.model
    if not model.drafts:
        raise DraftingUnsupportedError(f"{model.name} was loaded without a drafter; there is nothing to compare")
    usable = [d for d in depths if d <= model.target.max_depth]
    prepared = [engine.prepare(p, Request(max_tokens=max_tokens)) for p in prompts]
    report = Report(model.name, str(mx.default_device().type).rsplit(".", 1)[-1])
    total, done = len(prepared) * len(MODES) * (len(usable) + 1), 0
    for number, request in enumerate(prepared):
        prefilled = prefill(model.target, request.prompt, Device())
        for mode, params in MODES.items():
            plain: Trace | None = None
            for depth in (0, *usable):
                found = trace(model, request, prefilled, depth, params)
                if plain is None:
                    plain = found
                else:
                    report.comparisons.append(compare(plain, found, number, mode, depth))
                done += 1
                if progress is not None:
                    progress(done, total)
    return report
