"""Whatever is drafted, rejected and rolled back, the keys that can be seen are those of plain decoding."""

from __future__ import annotations

from functools import cache

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pilotfish
from pilotfish.engine.acceptance import SameText
from pilotfish.engine.caches import TAIL, FullSpec, RecurrentSpec, SlidingSpec, TailedSpec, specs_for
from pilotfish.engine.decode import DecodeLoop, Device, prefill
from pilotfish.engine.depth import FixedDepth
from pilotfish.engine.round import RoundParts, run_round
from pilotfish.engine.rows import Row
from pilotfish.engine.sampling import Sampler, SamplingParams
from pilotfish.engine.state import DecodeState
from pilotfish.errors import DraftingUnsupportedError, UnsupportedModelError
from pilotfish.kernels import best_operations
from pilotfish.kernels.cpu import native
from pilotfish.kernels.stock import StockOperations
from pilotfish.testing import ScriptedDrafter
from tests.conftest import Pair, decode, load_pair

WINDOW, STEPS = 16, 40
PROMPT_LENGTHS = (WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW)


@cache
def plain_run(variant: str, length: int) -> tuple[list[int], list[dict[int, np.ndarray]]]:
    """The plain text after a prompt of `length`, and by layer the keys and values of every position, bit for bit."""
    pair = load_pair(variant)
    prompt = pair.prompt[:length]
    keys: list[dict[int, np.ndarray]] = [{} for _ in pair.target.specs]

    def record(loop):
        for position, layer, value in visible(pair, loop._state):
            keys[layer].setdefault(position, value)

    row, _ = decode(pair.target, None, prompt, STEPS, after_round=record)
    return prompt + row.tokens, keys


def visible(pair: Pair, state: DecodeState):
    """Yield (position, layer, keys and values) for what the next row, or a drafter, can see."""
    length = state.length.item()
    for layer, (spec, buffers) in enumerate(zip(pair.target.specs, state.caches, strict=True)):
        arrays = [np.array(b) for b in buffers]
        first = max(0, length - spec.window) if isinstance(spec, SlidingSpec) else 0
        for position in range(first, length):
            if len(arrays) == 5 and position >= arrays[4][0]:
                pair_at, slot = arrays[2:4], position - arrays[4][0]
            else:
                pair_at, slot = arrays[:2], position % spec.capacity if isinstance(spec, SlidingSpec) else position
            yield position, layer, np.concatenate([a[0, :, slot] for a in pair_at], axis=-1)


def assert_keys_are_plain(pair: Pair, state: DecodeState, keys: list[dict[int, np.ndarray]]) -> None:
    checked = 0
    for position, layer, value in visible(pair, state):
        if position in keys[layer]:
            np.testing.assert_array_equal(value, keys[layer][position], err_msg=f"layer {layer}, position {position}")
            checked += 1
    assert checked > 0


@pytest.mark.parametrize("right", [0, 1, 3, 5], ids=lambda n: f"right{n}")
@pytest.mark.parametrize("length", PROMPT_LENGTHS)
@pytest.mark.parametrize("variant", ["e2b", "31b"])
def test_visible_keys_equal_those_of_a_plain_run_after_every_round(variant: str, length: int, right: int):
    text, keys = plain_run(variant, length)
    pair = load_pair(variant)
    drafter = ScriptedDrafter([text], lambda _: right, 512)

    row, _ = decode(
        pair.target, drafter, text[:length], STEPS, depth=5,
        after_round=lambda loop: assert_keys_are_plain(pair, loop._state, keys),
    )  # fmt: skip

    assert row.tokens == text[length:]


moves = st.lists(
    st.one_of(
        st.tuples(st.just("round"), st.integers(0, 8), st.integers(0, 8)),
        st.tuples(st.just("back"), st.integers(1, 8), st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


@given(length=st.sampled_from([2, *PROMPT_LENGTHS]), chunk=st.sampled_from([1, 3, 16, 512]), moves=moves)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_interleaving_of_rounds_and_rollbacks_leaves_the_keys_of_a_plain_run(length, chunk, moves):
    pair = load_pair("e2b")
    text, keys = plain_run("e2b", length)
    right = 0
    drafter = ScriptedDrafter([text], lambda _: right, 512)
    parts = RoundParts(pair.target, drafter, SameText(), Sampler([SamplingParams()]))
    state, at = prefill(pair.target, text[:length], Device(), chunk), length - 1
    furthest = settled = at
    for kind, amount, right in moves:  # noqa: B007 - the drafter's script reads `right`
        if kind == "back":
            at = max(length - 1, at - amount, furthest - 8)  # a rollback never goes further than the ring's slack
            state = state._replace(length=mx.array([at]), token=mx.array([[text[at]]]))
            continue
        if at + amount + 1 >= len(text):
            break
        if at + amount + 1 - settled > TAIL:
            settled = at
            caches = (s.settle(b, [at]) for s, b in zip(pair.target.specs, state.caches, strict=True))
            state = state._replace(caches=tuple(caches))
        caches = tuple(
            s.with_capacity(b, at + amount + 1) for s, b in zip(pair.target.specs, state.caches, strict=True)
        )
        result = run_round(parts, state._replace(caches=caches), amount)
        state = result.state
        got = result.tokens[0, : result.accepted.item() + 1].tolist()
        assert got == text[at + 1 : at + 1 + len(got)]
        at += len(got)
        furthest = max(furthest, at)
    if chunk == 512:  # other chunk sizes may round differently within the prompt
        assert_keys_are_plain(pair, state, keys)


def test_a_ring_shows_each_row_exactly_its_window():
    spec = SlidingSpec(StockOperations(), window=4, slack=4)
    lengths = mx.array([0, 3, 21], dtype=mx.int32)

    mask = np.array(spec.decode_view((), lengths).make_mask(3))

    for row, length in enumerate([0, 3, 21]):
        for i in range(3):
            query = length + i
            want = {p % 8 for p in range(max(0, query - 3), query + 1)}
            assert set(np.flatnonzero(mask[row, 0, i])) == want


def test_full_buffers_grow_in_steps_and_keep_what_they_hold():
    spec = FullSpec(StockOperations())
    buffers = (mx.ones((1, 1, 256, 2)), mx.ones((1, 1, 256, 2)))

    assert spec.with_capacity(buffers, 256)[0] is buffers[0]
    grown = spec.with_capacity(buffers, 300)
    assert grown[0].shape == (1, 1, 512, 2)
    assert mx.sum(grown[0]).item() == 512
    large = (mx.ones((1, 1, 8192, 2)), mx.ones((1, 1, 8192, 2)))
    assert spec.with_capacity(large, 8193)[0].shape == (1, 1, 10240, 2)  # by a quarter: few copies of much


def test_attention_rollback_returns_the_very_same_buffers():
    buffers = (mx.zeros((1, 1, 8, 2)), mx.zeros((1, 1, 8, 2)))
    stock = StockOperations()

    for spec in (FullSpec(stock), SlidingSpec(stock, 4, 4), TailedSpec(stock)):
        back = spec.rollback(buffers, spec.checkpoint(buffers), mx.array([0]))
        assert back is buffers  # nothing is moved: zero bytes


def test_settling_moves_the_tail_into_the_history_and_changes_nothing_that_is_seen():
    spec, rows, dim = TailedSpec(best_operations()), 5, 16
    keys = mx.random.normal((2, 1, 300 + rows, dim), key=mx.random.key(0))
    length = mx.array([300, 120], dtype=mx.int32)
    buffers = spec.with_tail((keys[:, :, :300], keys[:, :, :300]), length)
    view = spec.decode_view(buffers, length)
    view.update(keys[:, :, 300:], keys[:, :, 300:])
    queries = mx.random.normal((2, 1, 2, dim), key=mx.random.key(1))

    def seen(buffers):
        return spec.decode_view(buffers, length + rows - 1).attend(queries, 1.0)

    before = seen(view.buffers)
    settled = spec.settle(view.buffers, [300 + rows, 120 + rows])

    assert settled[4].tolist() == [305, 125]
    assert mx.array_equal(seen(settled), before)
    assert settled[0].shape[2] >= 305


@pytest.mark.skipif(native() is None, reason="the CPU kernels are not built here")
def test_bytes_copied_per_round_do_not_grow_with_the_context():
    """Rounds in flight hold what they read, so each write copies its buffer: that must be the small tail."""
    copied = {}
    for length in (600, 6000):
        target = pilotfish.load("nano").model.target
        row, device = Row(length, TAIL), Device()
        state = prefill(target, [7 + i % 900 for i in range(length)], device)
        loop = DecodeLoop(
            RoundParts(target, None, SameText(), Sampler([SamplingParams()])), FixedDepth(0), state, [row], device
        )
        native().take_copied_bytes()
        for _ in loop.steps():
            pass
        copied[length] = native().take_copied_bytes() / len(row.tokens)

    assert copied[6000] < 2e6
    assert copied[6000] < 1.5 * copied[600]


def test_running_state_cannot_be_rolled_back():
    from mlx_lm.models.cache import ArraysCache

    spec = RecurrentSpec(ArraysCache(2))

    with pytest.raises(DraftingUnsupportedError, match="ArraysCache"):
        spec.rollback((), (), mx.array([0]))


def test_a_cache_class_that_cannot_be_held_is_refused_by_name():
    from mlx_lm.models.cache import RotatingKVCache

    with pytest.raises(UnsupportedModelError, match="RotatingKVCache"):
        specs_for([RotatingKVCache(max_size=8, keep=4)], 4, StockOperations(), False)
