"""Download the sources named in sources.toml with the ordinary package clients (apt-get, npm).

    python fetch.py --out DIR

Leaves `DIR/<kind>/<name>/...` and `DIR/licences.tsv`. Already unpacked packages are skipped, so a run that was
cut off goes on where it was. Needs a Debian or Ubuntu machine for the Debian packages.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-400:]}")
    return done.stdout


def unpack_tar(archive: Path, into: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")


def debian(name: str, into: Path, scratch: Path) -> None:
    run(["apt-get", "download", name], scratch)
    run(["dpkg", "-x", str(next(scratch.glob("*.deb"))), str(into)], scratch)


def debian_source(name: str, into: Path, scratch: Path) -> None:
    run(["apt-get", "source", "--download-only", name], scratch)
    for archive in scratch.glob("*.orig.tar.*"):
        if archive.suffix != ".asc":
            unpack_tar(archive, into)


def npm(name: str, into: Path, scratch: Path) -> None:
    run(["npm", "pack", "--silent", name], scratch)
    unpack_tar(next(scratch.glob("*.tgz")), into)


def npm_licence(folder: Path) -> str:
    package = json.loads((folder / "package" / "package.json").read_text(encoding="utf-8"))
    licence = package.get("license", "unknown")
    return licence.get("type", "unknown") if isinstance(licence, dict) else str(licence)


def keep_only(folder: Path, names: list[str]) -> None:
    """Delete every file that has none of `names` among its parent folders."""
    for file in [p for p in folder.rglob("*") if p.is_file()]:
        if not set(names) & set(file.relative_to(folder).parts[:-1]):
            file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out.resolve()
    table = tomllib.loads((HERE / "sources.toml").read_text())
    jobs = [("debian", d, debian) for d in table["debian"]]
    jobs += [("debian_source", d, debian_source) for d in table["debian_source"]]
    jobs += [("npm", {"name": n}, npm) for n in table["npm"]["names"]]
    rows = []
    for kind, source, fetch in jobs:
        name = source["name"]
        folder = out / kind / name.replace("/", "__")
        if not folder.exists():
            with tempfile.TemporaryDirectory() as scratch:
                part = folder.with_name(folder.name + ".part")
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(parents=True)
                try:
                    fetch(name, part, Path(scratch))
                except (RuntimeError, StopIteration) as error:
                    print(f"skipped {kind} {name}: {error}")
                    continue
                if "only" in source:
                    keep_only(part, source["only"])
                part.rename(folder)
        licence = source.get("licence") or npm_licence(folder)
        if kind == "npm" and licence not in table["allowed_npm_licences"]:
            print(f"refused npm {name}: licence {licence!r} is not on the list")
            shutil.rmtree(folder)
            continue
        rows.append(f"{kind}\t{name}\t{licence}")
        print(rows[-1], flush=True)
    (out / "licences.tsv").write_text("kind\tname\tlicence\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
