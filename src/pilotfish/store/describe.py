"""What a model is, read from its files without loading it."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from pilotfish.errors import PilotfishError
from pilotfish.store import checkpoint, names
from pilotfish.store.library import NO_DRAFTER, Manifest


@dataclass(frozen=True)
class Description:
    """Sizes in bytes and counts of weights; `template` is the chat template, `drafter` where it lies."""

    architecture: str = "unknown"
    parameters: int = 0
    quantization: str = "unknown"
    context: int = 0
    embedding: int = 0
    size: int = 0
    template: str = ""
    drafter: str = ""

    @property
    def parameter_size(self) -> str:
        """As people write it: 31.2B, 7.1M."""
        for unit, value in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
            if self.parameters >= value:
                return f"{self.parameters / value:.1f}{unit}"
        return str(self.parameters)

    @property
    def capabilities(self) -> list[str]:
        """By Ollama's names."""
        return capabilities(self.template)


def capabilities(template: str) -> list[str]:
    """What a model with this chat template can do, by Ollama's names."""
    found = ["completion"]
    found += ["tools"] if "tools" in template else []
    return found + (["thinking"] if any(m in template for m in ("enable_thinking", "<|think|>")) else [])


def describe(manifest: Manifest) -> Description:
    """The model behind a manifest; what cannot be read stays unknown, so that one broken model hides no other."""
    try:
        path = names.resolve(manifest.source)
    except PilotfishError:
        return Description()
    drafter = "" if manifest.draft == NO_DRAFTER else manifest.draft
    if manifest.draft in ("auto", "assistant"):
        found = names.find_drafter(path)
        drafter = "" if found is None else found.name
    stamp = max((f.stat().st_mtime for f in path.glob("*")), default=0.0)
    return _described(path, drafter, manifest.template, stamp)


@lru_cache(maxsize=64)
def _described(path: Path, drafter: str, template: str, stamp: float) -> Description:
    try:
        config = checkpoint.read_config(path)
    except PilotfishError:
        return Description()
    text = checkpoint.text_config(config)
    quantized = config.get("quantization") or {}
    bits = int(quantized.get("bits", 4))
    mode = quantized.get("mode", "affine")
    name = str(config.get("dtype", "unknown")) if not quantized else mode if mode != "affine" else f"{bits}bit"
    files = list(path.rglob("*.safetensors"))
    return Description(
        architecture=str(config["model_type"]),
        parameters=sum(_weights(f, bits) for f in path.glob("*.safetensors")),
        quantization=name,
        context=int(text.get("max_position_embeddings") or 0),
        embedding=int(text.get("hidden_size") or 0),
        size=sum(f.stat().st_size for f in files),
        template=template or _template(path),
        drafter=drafter,
    )


def _weights(file: Path, bits: int) -> int:
    """Weights of a safetensors file, by its header; packed ones count as what they stand for."""
    with file.open("rb") as stream:
        header: dict[str, Any] = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
    count = 0
    for name, tensor in header.items():
        if name == "__metadata__" or name.endswith((".scales", ".biases")):
            continue
        count += prod(tensor["shape"]) * (32 // bits if tensor["dtype"] == "U32" else 1)
    return count


def _template(path: Path) -> str:
    if (path / "chat_template.jinja").is_file():
        return (path / "chat_template.jinja").read_text(encoding="utf-8")
    file = path / "tokenizer_config.json"
    found = json.loads(file.read_text(encoding="utf-8")).get("chat_template") if file.is_file() else ""
    return found if isinstance(found, str) else ""
