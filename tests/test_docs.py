"""What the documents show is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_python_examples_of_the_readme_run():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

    assert blocks
    for block in blocks:
        subprocess.run([sys.executable, "-c", block], check=True, capture_output=True, cwd=ROOT)


def test_every_pilotfish_command_of_the_documents_has_options_that_exist():
    commands = re.findall(r"pilotfish (run|verify|bench [a-z]+)([^`\n]*)", README + (ROOT / "Makefile").read_text())

    assert len(commands) >= 4
    for command, rest in commands:
        page = subprocess.run(
            [sys.executable, "-m", "pilotfish", *command.split(), "--help"], capture_output=True, check=True, text=True
        ).stdout
        for option in re.findall(r"--[a-z-]+", rest):
            assert option in page, f"{command} has no {option}"


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "training/nano/README.md"])
def test_files_that_documents_link_to_exist(name: str):
    document = ROOT / name
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), f"{name} links to {target}"


def test_the_tree_in_the_architecture_is_the_tree_on_disk():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    for file in (ROOT / "src" / "pilotfish").rglob("*.py"):
        relative = file.relative_to(ROOT / "src" / "pilotfish")
        if file.name.startswith("__"):
            continue
        assert file.name in page or f"{relative.parts[0]}/" in page, f"ARCHITECTURE.md does not know {relative}"
