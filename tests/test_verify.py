"""The proof itself: it must see what is there, and fail when something is wrong."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest

from pilotfish.engine.target import TargetOutput
from pilotfish.runtime.loaded import Engine
from pilotfish.verify import RecordingTarget, Trace, compare, fingerprint, verify

PROMPTS = ["hello", "def f():"]


def test_texts_and_logits_are_the_same_at_every_depth(engine: Engine):
    report = verify(engine, PROMPTS, 16)

    assert len(report.comparisons) == 2 * 2 * 5
    assert report.same_text
    assert report.same_logits


class Unsteady(RecordingTarget):
    """A target whose rows depend on how many there are, as kernels that were not made for this do."""

    def __init__(self, inner, error: float):
        super().__init__(inner)
        self.error = error
        self.config, self.embed, self.donor = inner.config, inner.embed, inner.donor

    def forward(self, tokens, views):
        logits, hidden = super().forward(tokens, views)
        if tokens.shape[1] > 1:
            logits = logits + self.error * mx.random.normal(logits.shape, key=mx.random.key(tokens.shape[1]))
        return TargetOutput(logits, hidden)


@pytest.mark.parametrize(("error", "same_text"), [(1e-6, True), (3.0, False)])
def test_rows_that_depend_on_their_number_are_found_out(engine: Engine, error: float, same_text: bool):
    unsteady = Engine(replace(engine.model, target=Unsteady(engine.model.target, error)))

    report = verify(unsteady, PROMPTS, 24, depths=[3])

    assert report.same_text is same_text
    assert not report.same_logits
    different = [c for c in report.comparisons if not c.same_text]
    assert bool(different) is not same_text
    assert all(c.first_difference is not None and c.gap is not None for c in different)


def test_a_difference_is_placed_and_its_gap_reported():
    plain = Trace([1, 2, 3], [10, 20, 30], [0.5, 0.25, 0.125])

    found = compare(plain, Trace([1, 9, 3], [10, 21, 30], [0, 0, 0]), prompt=0, mode="greedy", depth=2)
    assert (found.same_text, found.first_difference, found.gap, found.same_logits) == (False, 1, 0.25, True)
    shorter = compare(plain, Trace([1, 2], [10, 20], [0, 0]), prompt=0, mode="greedy", depth=2)
    assert (shorter.same_text, shorter.first_difference) == (False, 2)
    bits = compare(plain, Trace([1, 2, 3], [10, 20, 31], [0, 0, 0]), prompt=0, mode="greedy", depth=2)
    assert (bits.same_text, bits.same_logits) == (True, False)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
def test_a_fingerprint_changes_with_any_bit_and_any_place(dtype: mx.Dtype):
    x = mx.random.normal((1, 1, 300), key=mx.random.key(0)).astype(dtype)
    seen = {fingerprint(x).item()}
    for i in range(0, 300, 7):
        y = mx.array(x)
        y[0, 0, i] = y[0, 0, i] + mx.array(0.5, dtype)
        seen.add(fingerprint(y).item())
    seen.add(fingerprint(x[..., ::-1]).item())

    assert len(seen) == 1 + 43 + 1
