"""Reading a checkpoint: config in either spelling, weights in either layout, any quantization mlx-lm knows."""

from __future__ import annotations

import json
import pkgutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
from mlx_lm import utils as mlx_lm_utils
from safetensors import SafetensorError, safe_open

from pilotfish.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError

GEMMA4_TARGETS = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
GEMMA4_ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")
# The reference's defaults for fields that a config leaves out; mlx-lm would fill in E2B's values instead.
REFERENCE_DEFAULTS: dict[str, Any] = {
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "final_logit_softcapping": None,
    "attention_k_eq_v": False,
}
Config = dict[str, Any]
ModelClasses = tuple[type[nn.Module], type]  # model, its arguments


def read_config(path: Path) -> Config:
    """The checkpoint's config.json. Raises ModelNotFoundError or CheckpointError."""
    file = path / "config.json"
    if not file.is_file():
        raise ModelNotFoundError(f"{path} holds no config.json, so it is not a checkpoint")
    config = _read_json(file)
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{file} names no model_type")
    return config


def read_generation_config(path: Path) -> Config:
    """generation_config.json, or an empty dict where there is none."""
    file = path / "generation_config.json"
    return _read_json(file) if file.is_file() else {}


def is_assistant(config: Config) -> bool:
    """Whether this is a drafter, not a target."""
    return config["model_type"] in GEMMA4_ASSISTANTS


def is_gemma4(config: Config) -> bool:
    """Whether this is a Gemma 4 target."""
    return config["model_type"] in GEMMA4_TARGETS


def text_config(config: Config) -> Config:
    """The part of a config that describes the text decoder."""
    nested: Config = config.get("text_config") or config
    return nested


def eos_ids(config: Config, generation: Config) -> frozenset[int]:
    """Union of the end-of-text ids in config, text config and generation config."""
    ids: set[int] = set()
    for source in (config, text_config(config), generation):
        value = source.get("eos_token_id")
        ids.update([value] if isinstance(value, int) else value or [])
    return frozenset(ids)


def load_target(path: Path, dtype: mx.Dtype | None) -> tuple[nn.Module, Config]:
    """The target's model, evaluated, and its config. `dtype` None keeps what is stored.

    Raises UnsupportedModelError or CheckpointError.
    """
    config = read_config(path)
    if is_assistant(config):
        raise UnsupportedModelError(f"{path} is an assistant ({config['model_type']}); give it with --draft")
    override: Config = {}
    if is_gemma4(config):
        text = gemma4_text_config(text_config(config))
        nested = "text_config" in config
        # mlx-lm's wrapper takes the vocabulary from the top level, where published configs do not have it.
        override = {"text_config": text, "vocab_size": text["vocab_size"]} if nested else text
        if config["model_type"] == "gemma4_unified_text":
            override["model_type"] = "gemma4_text"
    return _load(path, config, override, None, dtype), config


def load_assistant(path: Path, classes: ModelClasses, dtype: mx.Dtype | None) -> nn.Module:
    """A Gemma 4 assistant built from `classes` (model, arguments). Raises as `load_target` does."""
    config = read_config(path)
    if not is_assistant(config):
        raise UnsupportedModelError(
            f"{path} is a {config['model_type']}, which cannot draft; drafters are {', '.join(GEMMA4_ASSISTANTS)}"
        )
    text = gemma4_text_config(text_config(config))
    text["num_kv_shared_layers"] = text["num_hidden_layers"]  # 0 or missing means all, as the reference reads it
    return _load(path, config, {"text_config": text}, classes, dtype)


def gemma4_text_config(text: Config) -> Config:
    """A Gemma 4 text config with per-layer spellings resolved and missing fields as the reference has them.

    Raises CheckpointError if full-attention layers differ among themselves.
    """
    text = REFERENCE_DEFAULTS | text
    text["hidden_size_per_layer_input"] = text.get("hidden_size_per_layer_input") or 0  # null, 0 and missing: none
    per_layer = text.pop("per_layer_config", None) or {}
    for field, ours in (("head_dim", "global_head_dim"), ("num_key_value_heads", "num_global_key_value_heads")):
        values = {layer[field] for layer in per_layer.values() if field in layer}
        if len(values) > 1:
            raise CheckpointError(f"per_layer_config gives several values of {field}: {sorted(values)}")
        if values:
            text[ours] = values.pop()
    return text


def _load(path: Path, config: Config, override: Config, classes: ModelClasses | None,
          dtype: mx.Dtype | None) -> nn.Module:  # fmt: skip
    check_weight_files(path)
    kind = str(override.get("model_type", config["model_type"]))
    if classes is None and not _known(kind):
        raise UnsupportedModelError(
            f"{path}: model_type {kind!r} is not supported; supported are {', '.join(GEMMA4_TARGETS)} (with drafting), "
            f"{', '.join(GEMMA4_ASSISTANTS)} (as drafters), and plainly mlx-lm's {', '.join(_families())}"
        )
    options = {} if classes is None else {"get_model_classes": lambda config: classes}
    try:
        model, _ = mlx_lm_utils.load_model(path, lazy=True, model_config=override, **options)
        if dtype is not None:
            model.set_dtype(dtype)
        mx.eval(model.parameters())
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"cannot load {path}: {' '.join(str(error).split())}") from error
    loaded: nn.Module = model
    return loaded


def check_weight_files(path: Path) -> None:
    """Raise CheckpointError unless every safetensors file that an index names is there and whole."""
    files = sorted(path.glob("model*.safetensors"))
    index = path / "model.safetensors.index.json"
    if index.is_file():
        named = sorted(set(_read_json(index).get("weight_map", {}).values()))
        missing = [name for name in named if not (path / name).is_file()]
        if missing:
            raise CheckpointError(f"{path} lacks {', '.join(missing)}, which {index.name} names; download it again")
    if not files:
        raise CheckpointError(f"{path} holds no model*.safetensors")
    for file in files:
        try:
            with safe_open(file, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is damaged or incomplete ({error}); download it again") from error


def _read_json(file: Path) -> Config:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds {type(value).__name__}, not an object")
    return value


def _known(model_type: str) -> bool:
    return mlx_lm_utils.MODEL_REMAPPING.get(model_type, model_type) in _families()


def _families() -> list[str]:
    helpers = {"base", "cache", "rope_utils", "switch_layers", "activations", "bitlinear_layers", "pipeline", "mla",
               "ssm", "gated_delta"}  # fmt: skip
    return sorted(m.name for m in pkgutil.iter_modules(mlx_lm.models.__path__) if m.name not in helpers)
