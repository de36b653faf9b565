"""Pulling with the real client of the hub, from a stand-in that speaks its protocol."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.errors import CheckpointError, ModelNotFoundError
from pilotfish.store.library import Library
from pilotfish.store.pull import DownloadError, Progress, pull
from tests.store.hub import Hub, hub

ROOT = Path(__file__).resolve().parents[2]
PULL = """
import sys
from pathlib import Path
from pilotfish.store.library import Library
from pilotfish.store.pull import pull
pull(sys.argv[1], Library(Path(sys.argv[2])), lambda step: print(*step, flush=True))
"""


@pytest.fixture
def served(tiny: Path, tmp_path: Path) -> Iterator[Hub]:
    target, assistant = tmp_path / "t", tmp_path / "a"
    shutil.copytree(tiny, target, ignore=shutil.ignore_patterns("assistant"))
    (target / "pytorch_model.bin").write_bytes(b"a pickle")
    shutil.copytree(tiny / "assistant", assistant)
    own = Path(shutil.copytree(tiny, tmp_path / "own"))
    pairs = {"mlx-community/gemma-4-e2b-it-4bit": target, "google/gemma-4-E2B-it-assistant": assistant, "org/own": own}
    with hub(pairs) as running:
        yield running


def run(served: Hub, tmp_path: Path, name: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PULL, name, str(tmp_path / "library")],
        env=environment(served, tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def environment(served: Hub, tmp_path: Path) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    return clean | {
        "HF_ENDPOINT": served.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0",
        "PYTHONPATH": str(ROOT / "src"), "HF_HUB_DISABLE_TELEMETRY": "1",
    }  # fmt: skip


def test_a_known_name_brings_target_and_drafter(served: Hub, tmp_path: Path):
    done = run(served, tmp_path, "gemma4:e2b")

    assert done.returncode == 0, done.stderr
    steps = done.stdout.splitlines()
    assert steps[0].startswith("pulling manifest")
    assert [s.rsplit(None, 2)[0] for s in steps[-3:]] == ["verifying sha256 digest", "writing manifest", "success"]
    manifest = Library(tmp_path / "library").get("gemma4:e2b")
    assert (manifest.source, manifest.draft) == ("mlx-community/gemma-4-e2b-it-4bit", "google/gemma-4-E2B-it-assistant")
    names = {name for name, _ in served.served}
    assert "model.safetensors" in names
    assert "pytorch_model.bin" not in names
    code = (
        "import pilotfish; e = pilotfish.load('mlx-community/gemma-4-e2b-it-4bit',"
        " draft='google/gemma-4-E2B-it-assistant'); print(e.generate('x', max_tokens=4, depth=2).stats.drafted)"
    )
    served.shutdown()  # and is used without the network
    loaded = subprocess.run(
        [sys.executable, "-c", code], env=environment(served, tmp_path), capture_output=True, text=True
    )
    assert int(loaded.stdout) > 0, loaded.stderr


def test_progress_counts_up_to_the_size(served: Hub, tmp_path: Path):
    done = run(served, tmp_path, "org/own")
    lines = [s.split() for s in done.stdout.splitlines() if s.startswith("pulling ") and "sha256:" in s]
    sizes: dict[str, list[int]] = {}
    for *_, digest, total, completed in lines:
        sizes.setdefault(digest, []).append(int(completed))
        assert int(completed) <= int(total)
    assert all(counts == sorted(counts) for counts in sizes.values())
    assert all(len(digest) == 71 for digest in sizes)


def test_a_broken_connection_is_resumed(served: Hub, tmp_path: Path):
    large = served.repositories["org/own"] / "other.safetensors"
    large.write_bytes(bytes(25 << 20))  # the client writes in pieces of ten MiB
    served.break_after = 22 << 20
    first = run(served, tmp_path, "org/own")
    if first.returncode:  # the client gave up; the next pull goes on
        assert "pull again to resume" in first.stderr
        first = run(served, tmp_path, "org/own")
    large.unlink()
    assert first.returncode == 0, first.stderr
    assert [start for name, start in served.served if name == "other.safetensors"] == [0, 20 << 20]


def test_a_killed_pull_leaves_a_whole_library_and_resumes(served: Hub, tmp_path: Path):
    served.slow = 0.3
    process = subprocess.Popen([sys.executable, "-c", PULL, "org/own", str(tmp_path / "library")],
                               env=environment(served, tmp_path), stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if "sha256:" in line and int(line.split()[-1]) > 0:
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert [m.name for m in Library(tmp_path / "library")] == ["nano:latest"]
    served.slow = 0.0
    assert run(served, tmp_path, "org/own").returncode == 0
    assert Library(tmp_path / "library").get("org/own").source == "org/own"


CREATE = """
import os, signal, sys
from pathlib import Path
from mlx_lm import utils
from pilotfish.store.create import create
from pilotfish.store.library import Library
from pilotfish.store.modelfile import Modelfile
save = utils.save_model
def killed(*arguments, **options):
    save(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "kill":
    utils.save_model = killed
create("q", Modelfile(source=sys.argv[1]), Library(Path(sys.argv[2])), print, quantize_to="affine8", local=True)
"""


def test_a_killed_conversion_leaves_a_whole_library_and_is_done_again(tiny: Path, tmp_path: Path):
    """Killed when the weights are written and nothing else is."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", CREATE, str(tiny), str(tmp_path)]
    killed = subprocess.run([*command, "kill"], env=env, capture_output=True, text=True)
    library = Library(tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert library.find("q") is None
    assert [p.suffix for p in (tmp_path / "converted").iterdir()] == [".partial"]

    done = subprocess.run([*command, "finish"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(library.get("q").source).is_dir()
    (left,) = (tmp_path / "converted").glob("*.partial")
    library.clean()
    assert left.exists()  # another process may still be writing it
    os.utime(left, (0, 0))
    library.clean()
    assert not left.exists()


def test_damage_is_found_and_pulling_again_mends_it(served: Hub, tmp_path: Path):
    served.damage = "model.safetensors"
    first = run(served, tmp_path, "org/own")
    assert "model.safetensors arrived damaged; pull again" in first.stderr
    assert Library(tmp_path / "library").find("org/own") is None
    served.damage = None
    assert run(served, tmp_path, "org/own").returncode == 0


def test_a_repository_that_is_not_there_is_named(served: Hub, tmp_path: Path):
    assert "org/missing does not exist on the hub" in run(served, tmp_path, "org/missing").stderr


def test_names_that_no_hub_has_are_refused_before_asking(tmp_path: Path):
    with pytest.raises(ModelNotFoundError, match="'llama3' is not known"):
        pull("llama3", Library(tmp_path), lambda step: None)


def test_a_model_that_is_there_is_pulled_at_once(tmp_path: Path):
    steps: list[Progress] = []
    pull("nano", Library(tmp_path), steps.append)
    assert [s.status for s in steps] == ["pulling manifest", "success"]
    assert issubclass(DownloadError, Exception)
    assert issubclass(CheckpointError, Exception)
