"""Models by name: a folder of manifests, one small JSON file each, written whole or not at all.

A manifest says where a model's checkpoint and drafter lie and what its Modelfile set. Checkpoints themselves stay where
they are: in the hub's cache, in the blobs of the store, or in a directory of the user's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pilotfish.errors import ModelNotFoundError, OptionError
from pilotfish.store import names

PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
NO_DRAFTER = "none"
KINDS_OF_DRAFT = ("auto", "assistant", "lookup", NO_DRAFTER)  # what a manifest's draft may be that names no folder
DAY = 86_400.0


@dataclass(frozen=True)
class Manifest:
    """A model by name. source: a directory, `nano`, or org/name on the hub; draft the same, "auto" or "none".

    parameters: Modelfile options by Ollama's names. template: jinja, not the checkpoint's. parent: the model that
    it was made from.
    """

    name: str
    source: str
    draft: str = "auto"
    system: str = ""
    template: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)
    license: str = ""
    created: str = ""
    parent: str = ""

    @property
    def digest(self) -> str:
        """64 hexadecimal digits that change with anything in the manifest."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def canonical(name: str) -> str:
    """A name with its tag, as listings show it: gemma4 -> gemma4:latest. Raises OptionError for what is no name."""
    text = name.removeprefix("registry.ollama.ai/library/").removeprefix("library/")
    path, colon, tag = text.rpartition(":")
    if not colon or "/" in tag:
        path, tag = text, "latest"
    parts = path.split("/")
    if len(parts) > 3 or not all(PART.fullmatch(p) and not p.endswith(".") for p in (*parts, tag)):
        raise OptionError(f"invalid model name {name!r}; write name, name:tag or org/name")
    return f"{path}:{tag}"


class Library:
    """The manifests in a folder, with `nano`, which is always there."""

    def __init__(self, folder: Path) -> None:
        self.root, self.folder, self.blobs = folder, folder / "manifests", folder / "blobs"

    def clean(self) -> None:
        """Remove what an interrupted upload or conversion left behind a day ago or longer."""
        for left in [*self.root.glob("*/*.partial"), *self.root.glob("*/*.tmp")]:
            if time.time() - left.stat().st_mtime > DAY:
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)

    def find(self, name: str) -> Manifest | None:
        """The model of that name, in whatever case it is written."""
        key = canonical(name)
        file = self._file(key)
        if file.is_file():
            return _read(file)
        return _built_in() if key.lower() == f"{names.BUILT_IN}:latest" else None

    def get(self, name: str) -> Manifest:
        """As `find`. Raises ModelNotFoundError."""
        found = self.find(name)
        if found is None:
            raise ModelNotFoundError(f"model '{name}' not found")
        return found

    def __iter__(self) -> Iterator[Manifest]:
        """Newest first."""
        found = [_read(f) for f in self.folder.glob("*.json")] if self.folder.is_dir() else []
        if not any(m.name.lower() == f"{names.BUILT_IN}:latest" for m in found):
            found.append(_built_in())
        return iter(sorted(found, key=lambda m: m.created, reverse=True))

    def put(self, manifest: Manifest) -> None:
        """Add or replace, in one step: another process sees the old file or the new one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        record = asdict(manifest)
        handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(self._file(manifest.name))

    def remove(self, name: str) -> None:
        """Forget a name; its checkpoint stays where it is. Raises ModelNotFoundError."""
        file = self._file(canonical(name))
        if not file.is_file():
            if self.find(name) is not None:
                raise OptionError(f"{name} ships with pilotfish and cannot be removed")
            raise ModelNotFoundError(f"model '{name}' not found")
        file.unlink()

    def copy(self, source: str, destination: str) -> None:
        """Another name for a model. Raises ModelNotFoundError."""
        found = self.find(source)
        if found is None:
            raise ModelNotFoundError(f'model "{source}" not found')
        self.put(Manifest(**{**asdict(found), "name": canonical(destination), "created": now()}))

    def _file(self, key: str) -> Path:
        return self.folder / (quote(key.lower(), safe="") + ".json")


def now() -> str:
    """This moment, RFC 3339 in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@contextmanager
def whole_folder(destination: Path) -> Iterator[Path]:
    """A temporary folder beside `destination`, which takes its place if nothing is raised: it is whole or not there."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=destination.parent, suffix=".partial"))
    try:
        yield temporary
        temporary.replace(destination)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sha256(file: Path) -> str:
    """The checksum of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _built_in() -> Manifest:
    return Manifest(f"{names.BUILT_IN}:latest", names.BUILT_IN, created="2026-11-30T00:00:00.000000Z", license="MIT")


def _read(file: Path) -> Manifest:
    try:
        return Manifest(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise OptionError(f"{file} is damaged ({error}); remove it and pull or create the model again") from error
