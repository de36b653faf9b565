"""Downloads through huggingface_hub: its cache, its resuming, its endpoint; checked against the hub's checksums."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError
from tqdm import tqdm

from pilotfish.errors import CheckpointError, ModelNotFoundError, PilotfishError
from pilotfish.store.known import known
from pilotfish.store.library import Library, Manifest, canonical, now, sha256
from pilotfish.store.names import BUILT_IN

# Weights, settings and templates; never a pickle.
PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.txt", "LICENSE*")


class Progress(NamedTuple):
    """How far a download is. digest: what the hub calls the file's content; total and completed in bytes."""

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0


Report = Callable[[Progress], None]
"""Told of every step; raising from it stops the download, and what is there can be resumed."""


class DownloadError(PilotfishError):
    """Raised when the hub cannot be reached or breaks off; pulling again resumes."""


def pull(name: str, library: Library, report: Report) -> Manifest:
    """Bring a model, with its drafter where one is known, and put it into the library.

    Raises ModelNotFoundError where the hub has no such repository, DownloadError, CheckpointError for a bad checksum.
    """
    key = canonical(name)
    present = library.find(name)
    if present is not None and (present.source == BUILT_IN or Path(present.source).is_absolute()):
        report(Progress("pulling manifest"))
        report(Progress("success"))  # ships with pilotfish, or lies in a directory of this machine
        return present
    target, draft = _repositories(key)
    report(Progress("pulling manifest"))
    paths = [fetch(repository, report) for repository in (target, draft) if repository != "auto"]
    report(Progress("verifying sha256 digest"))
    report(Progress("writing manifest"))
    manifest = Manifest(key, target, draft, created=now(), license=_license(paths[0]))
    library.put(manifest)
    report(Progress("success"))
    return manifest


def fetch(repository: str, report: Report) -> Path:
    """Download one repository and check its files; returns its folder. Raises as `pull`."""
    folder: Path | None = None
    try:
        info = HfApi().model_info(repository, files_metadata=True)
        for file in info.siblings or []:
            if not any(fnmatch.fnmatch(file.rfilename.rsplit("/", 1)[-1], p) for p in PATTERNS):
                continue
            sha = file.lfs.sha256 if file.lfs else None
            digest = f"sha256:{sha}" if sha else f"sha256:{hashlib.sha256(str(file.blob_id).encode()).hexdigest()}"
            step = Progress(f"pulling {digest[7:19]}", digest, file.size or 0, 0)
            report(step)
            path = Path(hf_hub_download(repository, file.rfilename, tqdm_class=_bar(step, report)))
            report(step._replace(completed=step.total))
            if sha and sha256(path) != sha:
                path.resolve().unlink()
                raise CheckpointError(f"{repository}: {file.rfilename} arrived damaged; pull again")
            folder = path.parents[file.rfilename.count("/")]
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFoundError(f"pull model manifest: {repository} does not exist on the hub") from error
    except (HfHubHTTPError, OSError) as error:
        raise DownloadError(f"pulling {repository} failed: {_first_line(error)}; pull again to resume") from error
    if folder is None:
        raise ModelNotFoundError(f"{repository} holds no checkpoint")
    return folder


def _repositories(key: str) -> tuple[str, str]:
    """Target and drafter of a canonical name; the drafter "auto" where it may lie in the target's repository."""
    pair = known(key)
    if pair is not None:
        return pair
    path = key.rpartition(":")[0]
    for prefix in ("hf.co/", "huggingface.co/"):
        path = path.removeprefix(prefix)
    if path.count("/") != 1:
        raise ModelNotFoundError(
            f"pull model manifest: {path!r} is not known; known are gemma4 with its sizes, and org/name on the hub"
        )
    return path, "auto"


def _bar(step: Progress, report: Report) -> type[tqdm[Any]]:
    """A progress bar for huggingface_hub that reports instead of drawing."""

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "disable": True})
            self.so_far = int(options.get("initial") or 0)

        def update(self, n: float | None = 1) -> bool | None:
            self.so_far += int(n or 0)
            report(step._replace(completed=min(self.so_far, step.total)))
            return None

    return Bar


def _license(folder: Path) -> str:
    found: Iterator[Path] = folder.glob("LICENSE*")
    return "".join(f.read_text(encoding="utf-8", errors="replace") for f in list(found)[:1])


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
