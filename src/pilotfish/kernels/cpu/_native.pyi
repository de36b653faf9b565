"""Signatures of the compiled module; shapes as in project.h and attend.h."""

from collections.abc import Sequence

import mlx.core as mx

class Weights:
    def __init__(
        self, w: mx.array, scales: mx.array | None, biases: mx.array | None, group_size: int, bits: int, mode: str,
        global_scale: mx.array | None,
    ) -> None: ...  # fmt: skip

def project(
    x: mx.array, matrices: Sequence[Weights], norm: mx.array | None = None, eps: float = 0.0, gated: bool = False,
    times: mx.array | None = None, part: int = 0, residual: mx.array | None = None, after: mx.array | None = None,
    scale: mx.array | None = None, cap: float = 0.0,
) -> mx.array: ...  # fmt: skip
def gather(x: mx.array, indices: mx.array, stack: Weights) -> mx.array: ...
def lookup(ids: mx.array, table: Weights, k: int, scale: float, dtype: mx.Dtype) -> mx.array: ...
def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array: ...
def heads(
    x: mx.array, q_weight: mx.array, k_weight: mx.array | None, offset: mx.array, frequencies: mx.array, dim: int,
    kv_heads: int, shared: bool, eps: float,
) -> list[mx.array]: ...  # fmt: skip
def write(
    keys: mx.array, values: mx.array, new_keys: mx.array, new_values: mx.array, length: mx.array,
    start: mx.array | None = None, ring: int = 0,
) -> list[mx.array]: ...  # fmt: skip
def attention(
    q: mx.array, keys: Sequence[mx.array], values: Sequence[mx.array], length: mx.array, start: mx.array | None,
    first: int, window: int, ring: bool, scale: float,
) -> mx.array: ...  # fmt: skip
def blend(
    projected: mx.array, own: mx.array, weight: mx.array, eps: float, scale: float, factor: float
) -> mx.array: ...
def concatenate(parts: Sequence[mx.array]) -> mx.array: ...
def fuse(outputs: Sequence[mx.array]) -> list[mx.array]: ...

class Adjustments:
    def __init__(
        self,
        rows: Sequence[tuple[float, float, float, int, Sequence[tuple[int, float]], Sequence[int], int, int, int, int]],
    ) -> None: ...

def adjust(
    logits: mx.array, tokens: mx.array, is_open: mx.array, drafts: mx.array, first: int, length: mx.array,
    ids: mx.array | None, adjustments: Adjustments, vocabulary: int,
) -> mx.array: ...  # fmt: skip
def advance(
    tokens: mx.array, is_open: mx.array, drafts: mx.array, accepted: mx.array, adjustments: Adjustments
) -> list[mx.array]: ...
def mask(logits: mx.array, bits: mx.array, ids: mx.array | None) -> mx.array: ...
def logprobs(logits: mx.array, tokens: mx.array, k: int) -> list[mx.array]: ...

class Choices:
    def __init__(self, rows: Sequence[tuple[float, float, float, int, int, int]], suppress: Sequence[int]) -> None: ...

def choose(logits: mx.array, length: mx.array, shift: int, ids: mx.array | None, choices: Choices) -> mx.array: ...
def reject(
    logits: mx.array, length: mx.array, drafts: mx.array, offered: Sequence[mx.array], ids: Sequence[mx.array],
    text: Choices, accept: Choices,
) -> list[mx.array]: ...  # fmt: skip
def take_copied_bytes() -> int: ...
def set_profiling(on: bool) -> None: ...
def take_profile() -> dict[str, tuple[int, float]]: ...
def read_bytes(a: mx.array) -> int: ...
def form() -> str: ...
def forms() -> list[str]: ...
def use_form(name: str) -> None: ...
def threads() -> int: ...
