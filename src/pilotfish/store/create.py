"""Making a model of another one: a manifest with settings of its own, and where asked for, other weights."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pilotfish.errors import ModelNotFoundError, OptionError
from pilotfish.store import names
from pilotfish.store.convert import quantization, quantize
from pilotfish.store.library import KINDS_OF_DRAFT, Library, Manifest, canonical, now, sha256, whole_folder
from pilotfish.store.modelfile import Modelfile, check_template

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".model")
Report = Callable[[str], None]


def create(
    name: str, wanted: Modelfile, library: Library, report: Report, *, files: Mapping[str, str] | None = None,
    draft_files: Mapping[str, str] | None = None, quantize_to: str = "", quantize_draft_to: str = "",
    assistant_classes: Any = None, local: bool = False,
) -> Manifest:  # fmt: skip
    """Put a model into the library. `files` name uploaded blobs; `local` lets FROM and DRAFT be paths.

    Raises OptionError, ModelNotFoundError or CheckpointError; the library is as it was then.
    """
    key = canonical(name)
    if wanted.template:
        check_template(wanted.template)
    base = _from_files(library, files) if files else _base(wanted.source, library, local)
    if draft_files:
        base = replace(base, draft=_from_files(library, draft_files).source)
    elif wanted.draft in KINDS_OF_DRAFT:
        base = replace(base, draft=wanted.draft)
    elif wanted.draft:
        base = replace(base, draft=_base(wanted.draft, library, local).source)
    if quantize_draft_to and not _drafter(base):
        raise OptionError("draft_quantize needs a drafter: give DRAFT, or start from a model that has one")
    if quantize_to:
        report(f"quantizing to {quantize_to}")
        draft = base.draft if base.draft in ("lookup", "none") else _drafter(base) or "auto"
        base = replace(base, source=str(_quantized(library, base.source, quantize_to, None)), draft=draft)
    if quantize_draft_to:
        report(f"quantizing the drafter to {quantize_draft_to}")
        drafter = _drafter(base)
        assert drafter is not None
        base = replace(base, draft=str(_quantized(library, drafter, quantize_draft_to, assistant_classes)))
    report("writing manifest")
    made = replace(
        base, name=key, created=now(), system=wanted.system or base.system, template=wanted.template or base.template,
        parameters={**base.parameters, **wanted.parameters}, messages=wanted.messages or base.messages,
        license=wanted.license or base.license, parent=wanted.source,
    )  # fmt: skip
    library.put(made)
    report("success")
    return made


def put_blob(library: Library, digest: str, data: Path) -> bool:
    """Move an uploaded file to its place if it has the content it says; whether it was new. Raises OptionError."""
    check_digest(digest)
    if f"sha256:{sha256(data)}" != digest:
        raise OptionError(f"digest mismatch: the content is not {digest}")
    place = blob(library, digest)
    new = not place.exists()
    place.parent.mkdir(parents=True, exist_ok=True)
    os.replace(data, place)
    return new


def blob(library: Library, digest: str) -> Path:
    """Where a blob lies. Raises OptionError for what is no digest."""
    check_digest(digest)
    return library.blobs / digest.replace(":", "-")


def check_digest(digest: str) -> None:
    """Raise OptionError unless `digest` is sha256: and 64 hexadecimal digits."""
    if not DIGEST.fullmatch(digest):
        raise OptionError(f"invalid digest {digest!r}; it must be sha256: and 64 hexadecimal digits")


def _base(source: str, library: Library, local: bool) -> Manifest:
    """The model that another is made of: of the library, a downloaded repository, or where allowed a directory."""
    if not source:
        raise OptionError("neither 'from' or 'files' was specified")
    if local and Path(source).expanduser().is_dir():
        return Manifest("", str(Path(source).expanduser().resolve()))
    found = library.find(source)
    if found is not None:
        return found
    try:
        names.resolve(canonical(source).removesuffix(":latest"))
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"model '{source}' not found; pull it first") from error
    return Manifest("", source)


def _drafter(manifest: Manifest) -> str | None:
    """The folder of the assistant, if there is one."""
    if manifest.draft in ("lookup", "none"):
        return None
    if manifest.draft not in ("auto", "assistant"):
        return manifest.draft
    found = names.find_drafter(names.resolve(manifest.source))
    return None if found is None else str(found)


def _quantized(library: Library, source: str, wanted: str, classes: Any) -> Path:
    """The quantized checkpoint, made if it is not there yet."""
    path = names.resolve(source)
    key = hashlib.sha256(f"{path}:{wanted}".encode()).hexdigest()[:16]
    destination = library.root / "converted" / f"{key}-{wanted}"
    if not destination.is_dir():
        quantize(path, destination, quantization(wanted), classes)
    return destination


def _from_files(library: Library, files: Mapping[str, str]) -> Manifest:
    """A checkpoint of uploaded files, as links to their blobs."""
    key = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:32]
    folder = library.root / "uploaded" / key
    if folder.is_dir():
        return Manifest("", str(folder))
    with whole_folder(folder) as temporary:
        for name, digest in files.items():
            place = temporary / name
            if not place.resolve().is_relative_to(temporary.resolve()) or place.suffix not in SUFFIXES:
                raise OptionError(f"invalid file name {name!r}; a checkpoint holds {', '.join(SUFFIXES)}")
            content = blob(library, digest)
            if not content.is_file():
                raise OptionError(f"the content of {name} ({digest}) was not uploaded")
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(content, place)
    return Manifest("", str(folder))
