"""Key/value caches whose length lives on the device.

A `CacheSpec` describes one layer's cache and holds no arrays. Its buffers are part of the decode state. For one
forward pass a spec opens a *view* over buffers and length; afterwards `collect` gives the new buffers. A rollback is a
smaller `length` and nothing else.

Gemma 4 writes and reads through `update` and `attend`; other families take a view for an mlx-lm cache (`offset`,
`make_mask`, `update_and_fetch`).
"""

from pilotfish.engine.caches.base import CacheSpec, View
from pilotfish.engine.caches.full import FullSpec
from pilotfish.engine.caches.recurrent import RecurrentSpec
from pilotfish.engine.caches.sliding import SlidingSpec
from pilotfish.engine.caches.specs import specs_for
from pilotfish.engine.caches.tailed import TAIL, TailedSpec

__all__ = [
    "TAIL",
    "CacheSpec",
    "FullSpec",
    "RecurrentSpec",
    "SlidingSpec",
    "TailedSpec",
    "View",
    "specs_for",
]
