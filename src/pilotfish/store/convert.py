"""Quantizing a checkpoint through mlx-lm, into a folder that is there as a whole or not at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm import utils as mlx_lm_utils

from pilotfish.errors import OptionError
from pilotfish.store import checkpoint
from pilotfish.store.library import whole_folder


class Quantization(NamedTuple):
    """As MLX names it."""

    mode: str
    bits: int
    group_size: int


QUANTIZATIONS = {
    "nvfp4": Quantization("nvfp4", 4, 16),
    "mxfp4": Quantization("mxfp4", 4, 32),
    "mxfp8": Quantization("mxfp8", 8, 32),
    "affine4": Quantization("affine", 4, 64),
    "affine6": Quantization("affine", 6, 64),
    "affine8": Quantization("affine", 8, 64),
}
ALIASES = {"int4": "affine4", "int8": "affine8", "q4_k_m": "affine4", "q8_0": "affine8", "4bit": "affine4",
           "8bit": "affine8"}  # fmt: skip


def quantization(name: str) -> Quantization:
    """By pilotfish's name or one of Ollama's. Raises OptionError naming those that there are."""
    key = ALIASES.get(name.lower(), name.lower())
    if key not in QUANTIZATIONS:
        raise OptionError(f"quantization {name!r} is not known; use one of {', '.join(QUANTIZATIONS)}")
    return QUANTIZATIONS[key]


def quantize(source: Path, destination: Path, wanted: Quantization, classes: Any = None) -> None:
    """Quantize the checkpoint in `source` into the new folder `destination`; `classes` for an assistant.

    Raises CheckpointError or OptionError (a checkpoint that is quantized already).
    """
    config = checkpoint.read_config(source)
    if "quantization" in config:
        raise OptionError(f"{source.name} is quantized already; start from an unquantized checkpoint")
    model = checkpoint.load_assistant(source, classes, None) if classes else checkpoint.load_target(source, None)[0]

    def fits(path: str, module: Any) -> bool | dict[str, Any]:
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % wanted.group_size:
            return False
        if path.endswith("router.proj"):  # few weights that decide much; mlx-lm keeps them at 8 bits too
            return {"group_size": 64, "bits": 8, "mode": "affine"} if module.weight.shape[-1] % 64 == 0 else False
        return True

    model, config = mlx_lm_utils.quantize_model(
        model, config, wanted.group_size, wanted.bits, wanted.mode, quant_predicate=fits
    )
    try:
        with whole_folder(destination) as temporary:
            mlx_lm_utils.save_model(temporary, model, donate_model=True)
            (temporary / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
            copy_settings(source, temporary)
    finally:
        del model
        mx.clear_cache()


def copy_settings(source: Path, destination: Path) -> None:
    """Tokenizer, template and generation settings."""
    for file in source.iterdir():
        is_settings = file.suffix in (".json", ".jinja", ".txt") or file.name == "tokenizer.model"
        if file.is_file() and is_settings and file.name not in ("config.json", "model.safetensors.index.json"):
            shutil.copyfile(file, destination / file.name)
