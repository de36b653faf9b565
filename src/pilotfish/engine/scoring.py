"""Log probabilities of a prompt's own tokens: what the model would have said to each."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from pilotfish.engine.decode import Device, Progress
from pilotfish.engine.logprobs import Logprobs, TokenLogprob
from pilotfish.engine.target import Target

CHUNK = 64  # rows of one pass: each has a logit for every token of the vocabulary


def score(
    target: Target, prompt: Sequence[int], device: Device, k: int, progress: Progress | None = None
) -> list[TokenLogprob]:
    """Of every token but the first, given those before it, with the `k` likeliest in its place.

    The whole prompt is computed, whatever is kept of earlier ones: kept caches hold no logits.
    """
    out: list[TokenLogprob] = []
    caches: tuple[tuple[mx.array, ...], ...] = ((),) * len(target.specs)
    for at in range(0, len(prompt) - 1, CHUNK):
        rows = prompt[at : min(at + CHUNK, len(prompt) - 1)]
        following = prompt[at + 1 : at + 1 + len(rows)]
        views = [spec.prefill_view(b, at) for spec, b in zip(target.specs, caches, strict=True)]
        logits, _ = target.forward(mx.array([rows], dtype=mx.int32), views)
        caches = tuple(spec.collect(view) for spec, view in zip(target.specs, views, strict=True))
        found = target.operations.logprobs(logits, mx.array([following], dtype=mx.int32), k)
        device.wait([*caches, found])
        (said,) = device.read_logprobs(Logprobs(*found))
        out += [p._replace(token=token) for p, token in zip(said, following, strict=True)]
        if progress is not None:
            progress(len(out), len(prompt) - 1)
    return out
