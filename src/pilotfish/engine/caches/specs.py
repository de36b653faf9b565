"""Which cache each layer gets."""

from __future__ import annotations

from typing import Any

from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from pilotfish.engine.caches.base import CacheSpec
from pilotfish.engine.caches.full import FullSpec
from pilotfish.engine.caches.recurrent import RecurrentSpec
from pilotfish.engine.caches.sliding import SlidingSpec
from pilotfish.engine.caches.tailed import TAIL, TailedSpec
from pilotfish.errors import UnsupportedModelError
from pilotfish.kernels.operations import Operations


def specs_for(mlx_caches: list[Any], slack: int, operations: Operations, own: bool) -> tuple[CacheSpec, ...]:
    """Specs for the caches that mlx-lm would make for a model.

    `own`: the model writes and reads through `View.update` and `View.attend`, so a cache may have a tail.

    Raises UnsupportedModelError for a cache class that the engine cannot hold on the device.
    """
    specs: list[CacheSpec] = []
    for cache in mlx_caches:
        if isinstance(cache, KVCache):
            if own and operations.reads_tails:
                specs.append(TailedSpec(operations, max(TAIL, 4 * slack)))
            else:
                specs.append(FullSpec(operations))
        elif isinstance(cache, RotatingKVCache) and cache.keep == 0:
            specs.append(SlidingSpec(operations, cache.max_size, slack))
        elif isinstance(cache, ArraysCache):
            specs.append(RecurrentSpec(cache))
        else:
            raise UnsupportedModelError(
                f"this model keeps a {type(cache).__name__}, which pilotfish cannot hold; "
                "supported are mlx-lm's KVCache, RotatingKVCache (keep=0) and ArraysCache"
            )
    return tuple(specs)
