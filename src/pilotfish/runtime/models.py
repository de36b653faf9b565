"""Models in memory: loaded when first asked for, unloaded when they are idle for long or others need the room."""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from pilotfish.config import Settings, free_memory
from pilotfish.errors import OptionError
from pilotfish.runtime.loaded import Engine, load
from pilotfish.runtime.prefixes import PrefixCache
from pilotfish.store.library import Library, Manifest, canonical

log = logging.getLogger("pilotfish")

FOR_EVER = math.inf


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest.source, manifest.draft


@dataclass
class Resident:
    """A model in memory. expires: by the clock, or FOR_EVER."""

    manifest: Manifest
    engine: Engine
    expires: float
    used: float
    loaded: float


class Models:
    """All of this runs on the device's thread; other threads may read `residents`."""

    def __init__(self, library: Library, settings: Settings, clock: Callable[[], float] = time.time,
                 loader: Callable[..., Engine] = load) -> None:  # fmt: skip
        self.library, self.settings, self._clock, self._loader = library, settings, clock, loader
        free = free_memory()
        self.prefixes = PrefixCache(free // 4 if settings.cache_bytes is None else settings.cache_bytes)
        self._memory = free * 4 // 5 if settings.memory_bytes is None else settings.memory_bytes
        self._residents: dict[tuple[str, str], Resident] = {}

    @property
    def residents(self) -> list[Resident]:
        """Models in memory, the most recently used first."""
        return sorted(self._residents.copy().values(), key=lambda r: -r.used)

    def get(self, name: str, keep_alive: float | None = None) -> Resident:
        """The model of that name, loaded if it is not. Raises ModelNotFoundError and what `load` raises."""
        manifest = self.library.get(name)
        key = _key(manifest)
        resident = self._residents.get(key)
        if resident is None:
            self._make_room(manifest)
            engine = self._loader(manifest.source, draft=manifest.draft, name=name, prefixes=self.prefixes)
            resident = Resident(manifest, engine, 0.0, 0.0, self._clock())
            self._residents[key] = resident
            log.info("loaded %s with drafter %s", manifest.name, engine.model.drafter_name)
        resident.manifest = manifest  # names of the same weights share them
        self.touch(resident, keep_alive)
        return resident

    def touch(self, resident: Resident, keep_alive: float | None = None) -> None:
        """Start the time that an idle model stays, in seconds; negative is for ever."""
        seconds = self.settings.keep_alive if keep_alive is None else keep_alive
        resident.used = self._clock()
        resident.expires = FOR_EVER if seconds < 0 else resident.used + seconds

    def unload(self, name: str) -> bool:
        """Drop a model from memory; whether it was there. Raises OptionError for what is no name."""
        manifest = self.library.find(name)
        wanted = canonical(name).lower()
        found = [k for k, r in self._residents.items() if r.manifest.name.lower() == wanted]
        if manifest is not None and _key(manifest) in self._residents:
            found = [_key(manifest)]
        for key in found:
            self._drop(key)
        return bool(found)

    def expire(self) -> float | None:
        """Drop what has been idle for too long; seconds until the next one is due."""
        now = self._clock()
        for key, resident in list(self._residents.items()):
            if resident.expires <= now:
                self._drop(key)
        due = min((r.expires for r in self._residents.values()), default=FOR_EVER)
        return None if due == FOR_EVER else max(0.01, due - now)

    def _make_room(self, manifest: Manifest) -> None:
        """Drop least recently used models until one more fits by number and, as far as is known, by size."""
        from pilotfish.store.names import resolve

        size = sum(f.stat().st_size for f in resolve(manifest.source).rglob("*.safetensors"))
        if size > self._memory:
            raise OptionError(
                f"{manifest.name} needs {size >> 20} MiB, and {self._memory >> 20} MiB may be used; "
                "set PILOTFISH_MEMORY_BYTES or take a smaller quantization"
            )
        while self._residents:
            total = size + sum(r.engine.model.nbytes for r in self._residents.values())
            if len(self._residents) < self.settings.max_models and total <= self._memory:
                return
            self._drop(min(self._residents, key=lambda k: self._residents[k].used))

    def _drop(self, key: tuple[str, str]) -> None:
        resident = self._residents.pop(key)
        self.prefixes.forget(resident.engine.model)
        log.info("unloaded %s", resident.manifest.name)
        del resident
        gc.collect()
        mx.clear_cache()
