"""What `pilotfish verify` found, by checkpoint, drafter and machine; `show` repeats it."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any


def _file(folder: Path, model: Path, drafter: str) -> Path:
    about = f"{model.resolve()} {drafter} mlx {version('mlx')} {platform.machine()} {platform.node()}"
    return folder / "verdicts" / f"{hashlib.sha256(about.encode()).hexdigest()[:32]}.json"


def keep_verdict(folder: Path, model: Path, drafter: str, report: dict[str, Any]) -> None:
    """Remember a report (`verify.Report.as_dict`) for this machine and this MLX."""
    file = _file(folder, model, drafter)
    file.parent.mkdir(parents=True, exist_ok=True)
    comparisons = report["comparisons"]
    file.write_text(json.dumps({
        "same_text": report["same_text"], "same_logits": report["same_logits"], "device": report["device"],
        "comparisons": len(comparisons), "tokens": sum(c["tokens"] for c in comparisons),
    }), encoding="utf-8")  # fmt: skip


def verdict(folder: Path, model: Path, drafter: str) -> str:
    """One line, or "not verified yet"."""
    file = _file(folder, model, drafter)
    if not file.is_file():
        return "not verified yet on this machine: pilotfish verify"
    found = json.loads(file.read_text(encoding="utf-8"))
    text = "same text as plain decoding" if found["same_text"] else "text differs from plain decoding"
    logits = "bitwise equal" if found["same_logits"] else "not bitwise equal"
    return f"{text}, logits {logits} ({found['comparisons']} comparisons, {found['tokens']} tokens, {found['device']})"
