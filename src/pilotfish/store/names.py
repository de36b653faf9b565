"""Names of models as people write them -> directories on this machine."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from pilotfish.errors import ModelNotFoundError

BUILT_IN = "nano"
DRAFT_FOLDERS = ("assistant", "draft")  # where a target's folder may hold its drafter


def resolve(name: str) -> Path:
    """The directory of a model: `nano`, a path, or a Hugging Face repository that is already downloaded.

    Raises ModelNotFoundError. Never uses the network.
    """
    if name == BUILT_IN and not Path(name).exists():
        return Path(str(resources.files("pilotfish") / "data" / BUILT_IN))
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise ModelNotFoundError(f"{name} is a file; give the directory that holds config.json")
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _downloaded(name)
    raise ModelNotFoundError(
        f"no model at {name}; give a directory, a name that pilotfish list shows, or one that pilotfish pull can bring"
    )


def find_drafter(target: Path) -> Path | None:
    """The drafter that lies in the target's own folder, if there is one."""
    found = (target / folder for folder in DRAFT_FOLDERS)
    return next((folder for folder in found if (folder / "config.json").is_file()), None)


def _downloaded(repository: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repository, local_files_only=True, allow_patterns=["*.json", "*.safetensors"]))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise ModelNotFoundError(
            f"{repository} is neither a directory nor a downloaded repository; run: pilotfish pull {repository}"
        ) from error
