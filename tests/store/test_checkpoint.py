"""Checkpoints as they are found in the wild: both layouts, every quantization, damaged ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import utils as mlx_lm_utils

import pilotfish
from pilotfish.engine.drafters.gemma4_assistant import AssistantArgs, AssistantModel
from pilotfish.errors import (
    CheckpointError,
    DrafterMismatchError,
    DraftingUnsupportedError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from pilotfish.kernels.cpu import native
from pilotfish.runtime.loaded import Engine
from pilotfish.store import checkpoint, names
from pilotfish.testing.checkpoints import write_tiny, write_tokenizer
from tests.conftest import ORACLE

QUANTIZATIONS = {
    "affine4": (64, 4, "affine"), "affine8": (32, 8, "affine"), "mxfp4": (32, 4, "mxfp4"),
    "mxfp8": (32, 8, "mxfp8"), "nvfp4": (16, 4, "nvfp4"),
}  # fmt: skip


def convert(
    source: Path, folder: Path, classes=None, quantization=None, dtype=mx.bfloat16, mixed=False, global_scale=False
) -> Path:
    """Convert with mlx-lm's own tools, as published conversions are made."""
    options = {} if classes is None else {"get_model_classes": lambda config: classes}
    config = checkpoint.read_config(source)
    text = checkpoint.gemma4_text_config(config["text_config"])
    text["num_kv_shared_layers"] = len(text["layer_types"]) if classes else text["num_kv_shared_layers"]
    model, config = mlx_lm_utils.load_model(
        source, model_config={"text_config": text, "vocab_size": text["vocab_size"]}, **options
    )
    model.set_dtype(dtype)
    if quantization:
        group_size, bits, mode = quantization

        def predicate(path, module):
            if not hasattr(module, "to_quantized") or module.weight.shape[-1] % group_size:
                return False
            if mixed and "mlp" in path:
                return {"group_size": 32, "bits": 8, "mode": "affine"}
            return not (mixed and "o_proj" in path)

        model, config = mlx_lm_utils.quantize_model(
            model, config, group_size, bits, mode, global_scale=global_scale, quant_predicate=predicate
        )
    mlx_lm_utils.save_model(folder, model)
    mlx_lm_utils.save_config(config, folder / "config.json")
    return folder


def converted_pair(folder: Path, variant: str, **options) -> Path:
    convert(ORACLE / variant / "target", folder, **options)
    convert(ORACLE / variant / "assistant", folder / "draft", (AssistantModel, AssistantArgs), **options)
    write_tokenizer(folder)
    return folder


def assert_same_text(engine: Engine) -> None:
    for options in ({"temperature": 0}, {"temperature": 1.0, "seed": 3}):
        plain = engine.generate("hello", max_tokens=24, depth=0, **options)
        drafted = engine.generate("hello", max_tokens=24, depth=4, **options)
        assert drafted.tokens == plain.tokens
        assert drafted.stats.drafted > 0


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("variant", ["e2b", "26b-a4b"])
def test_quantized_conversions_load_and_draft(tmp_path: Path, variant: str, quantization: str):
    engine = pilotfish.load(converted_pair(tmp_path / "m", variant, quantization=QUANTIZATIONS[quantization]))

    assert all("scales" in layer.self_attn.q_proj for layer in engine.model.target.network.text.layers)
    assert_same_text(engine)


def test_mixed_widths_and_unquantized_layers_load(tmp_path: Path):
    engine = pilotfish.load(converted_pair(tmp_path / "m", "e2b", quantization=QUANTIZATIONS["nvfp4"], mixed=True))

    layer = engine.model.target.network.text.layers[0]
    assert (layer.mlp.up_proj.bits, layer.mlp.up_proj.mode) == (8, "affine")
    assert (layer.self_attn.q_proj.bits, layer.self_attn.q_proj.mode) == (4, "nvfp4")
    assert "scales" not in layer.self_attn.o_proj
    assert_same_text(engine)


@pytest.mark.skipif(mx.default_device().type != mx.DeviceType.cpu, reason="a GPU takes global scales")
def test_experts_with_a_global_scale_need_the_compiled_kernels_on_a_cpu(tmp_path: Path):
    folder = converted_pair(tmp_path / "m", "26b-a4b", quantization=QUANTIZATIONS["nvfp4"], global_scale=True)

    with pytest.raises(UnsupportedModelError, match="global scale"):
        pilotfish.load(folder, kernels="stock")
    if native() is not None:
        assert_same_text(pilotfish.load(folder))


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16, mx.float32], ids=str)
def test_stored_types_load_and_may_be_kept(tmp_path: Path, dtype: mx.Dtype):
    folder = converted_pair(tmp_path / "m", "e2b", dtype=dtype)
    name = str(dtype).rsplit(".", 1)[-1]

    engine = pilotfish.load(folder, dtype=name)

    assert engine.model.target.network.text.norm.weight.dtype == dtype
    assert_same_text(engine)


def test_both_layouts_hold_the_same_model(tmp_path: Path):
    hub, _ = checkpoint.load_target(ORACLE / "26b-a4b" / "target", mx.float32)
    mlx, _ = checkpoint.load_target(convert(ORACLE / "26b-a4b" / "target", tmp_path / "m"), mx.float32)
    ids = mx.array([[5, 6, 7]])

    assert mx.array_equal(hub(ids), mlx(ids))


def test_dead_tensors_of_shared_layers_are_skipped_in_either_layout(tmp_path: Path):
    """The e2b oracle stores keys and values that nothing reads; a conversion may store them or not."""
    with_dead = mx.load(str(ORACLE / "e2b" / "target" / "model.safetensors"))
    dead = [k for k in with_dead if ".layers.5.self_attn.k_proj" in k]
    assert dead
    folder = Path(shutil.copytree(ORACLE / "e2b" / "target", tmp_path / "without"))
    kept = {k: v for k, v in with_dead.items() if not any(f".layers.{i}.self_attn.{p}" in k for i in (3, 4, 5)
                                                          for p in ("k_proj", "v_proj", "k_norm"))}  # fmt: skip
    mx.save_safetensors(str(folder / "model.safetensors"), kept)

    one, _ = checkpoint.load_target(ORACLE / "e2b" / "target", mx.float32)
    other, _ = checkpoint.load_target(folder, mx.float32)

    assert mx.array_equal(one(mx.array([[5, 6]])), other(mx.array([[5, 6]])))


def test_per_layer_config_is_the_same_as_the_global_fields(tmp_path: Path):
    folder = Path(shutil.copytree(ORACLE / "31b" / "target", tmp_path / "m"))
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    sizes = {"head_dim": text.pop("global_head_dim"), "num_key_value_heads": text.pop("num_global_key_value_heads")}
    full = [i for i, kind in enumerate(text["layer_types"]) if kind == "full_attention"]
    text["per_layer_config"] = {str(i): sizes for i in full}
    (folder / "config.json").write_text(json.dumps(config))

    one, _ = checkpoint.load_target(ORACLE / "31b" / "target", mx.float32)
    other, _ = checkpoint.load_target(folder, mx.float32)

    assert mx.array_equal(one(mx.array([[5, 6]])), other(mx.array([[5, 6]])))


def test_a_text_only_checkpoint_loads(tmp_path: Path):
    folder = tmp_path / "m"
    folder.mkdir()
    config = json.loads((ORACLE / "31b" / "target" / "config.json").read_text())
    flat = config["text_config"] | {"model_type": "gemma4_text", "eos_token_id": [1, 106]}
    (folder / "config.json").write_text(json.dumps(flat))
    weights = mx.load(str(ORACLE / "31b" / "target" / "model.safetensors"))
    mx.save_safetensors(
        str(folder / "model.safetensors"), {k.replace("language_model.", ""): v for k, v in weights.items()}
    )
    write_tokenizer(folder)

    engine = pilotfish.load(folder, draft=ORACLE / "31b" / "assistant")

    assert engine.model.eos == {1, 106}
    assert_same_text(engine)


def test_end_of_text_ids_are_the_union_of_all_places(tiny: Path):
    assert pilotfish.load(tiny, draft=None).model.eos == {1, 50, 106}
    assert checkpoint.eos_ids({"eos_token_id": [1], "text_config": {"eos_token_id": 7}}, {"eos_token_id": [50]}) == {
        1, 7, 50,
    }  # fmt: skip


def test_missing_fields_are_read_as_the_reference_reads_them():
    text = checkpoint.gemma4_text_config({"hidden_size_per_layer_input": None, "final_logit_softcapping": None})

    assert text["hidden_size_per_layer_input"] == 0
    assert text["num_kv_shared_layers"] == 0
    assert text["use_double_wide_mlp"] is False
    assert text["final_logit_softcapping"] is None


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text"])
def test_other_families_decode_plainly_as_mlx_lm_does(tmp_path: Path, model_type: str):
    from mlx_lm.generate import generate_step

    engine = pilotfish.load(write_tiny(tmp_path / "m", model_type))
    model = engine.model.target.model
    prompt = engine.prepare("hello", pilotfish.runtime.request.Request(max_tokens=30, temperature=0)).prompt
    want = [int(t) for t, _ in zip(generate_step(mx.array(prompt), model, max_tokens=30), range(30), strict=False)
            for t in [t[0]]]  # fmt: skip

    got = engine.generate("hello", max_tokens=30, temperature=0)

    assert list(got.tokens) == want[: len(got.tokens)]
    assert got.stats.drafted == 0
    with pytest.raises(pilotfish.errors.OptionError, match="needs a drafter"):
        engine.generate("hello", depth=2)


def test_a_family_that_cannot_roll_back_decodes_plainly_and_refuses_a_drafter(tmp_path: Path):
    folder = write_tiny(tmp_path / "m", "mamba")

    assert pilotfish.load(folder).generate("hello", max_tokens=8, temperature=0).stats.tokens == 8
    with pytest.raises(DraftingUnsupportedError, match="cannot be rolled back"):
        pilotfish.load(folder, draft=ORACLE / "e2b" / "assistant")


def test_gemma_assistants_are_refused_for_other_families(tmp_path: Path):
    with pytest.raises(DraftingUnsupportedError, match="another family"):
        pilotfish.load(write_tiny(tmp_path / "m", "llama"), draft=ORACLE / "e2b" / "assistant")


def test_downloaded_repositories_are_found_offline(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The layout of Hugging Face's cache, read by its own client with the network out of reach."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repo = tmp_path / "models--someone--gemma"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("0" * 40)
    shutil.copytree(tiny, repo / "snapshots" / ("0" * 40))

    assert names.resolve("someone/gemma") == repo / "snapshots" / ("0" * 40)
    with pytest.raises(ModelNotFoundError, match="pilotfish pull someone/other"):
        names.resolve("someone/other")


def rewrite(folder: Path, change) -> None:
    file = folder / "model.safetensors"
    weights = dict(mx.load(str(file)))
    change(weights)
    mx.eval(list(weights.values()))
    mx.save_safetensors(str(file), weights)


def test_an_unknown_tensor_is_an_error_that_names_it(copy_of_tiny: Path):
    rewrite(copy_of_tiny, lambda w: w.update({"model.language_model.layers.0.surprise.weight": mx.zeros((2,))}))

    with pytest.raises(CheckpointError, match=r"layers\.0\.surprise\.weight"):
        pilotfish.load(copy_of_tiny)


def test_a_missing_tensor_is_an_error_that_names_it(copy_of_tiny: Path):
    rewrite(copy_of_tiny, lambda w: w.pop("model.language_model.layers.1.mlp.up_proj.weight"))

    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        pilotfish.load(copy_of_tiny)


@pytest.mark.parametrize("size", [0, 4, 1000, 500_000])
def test_a_truncated_file_is_named(copy_of_tiny: Path, size: int):
    file = copy_of_tiny / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])

    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged or incomplete"):
        pilotfish.load(copy_of_tiny)


def test_garbage_in_the_header_is_named(copy_of_tiny: Path):
    (copy_of_tiny / "model.safetensors").write_bytes(np.random.default_rng(0).bytes(4096))

    with pytest.raises(CheckpointError, match="damaged or incomplete"):
        pilotfish.load(copy_of_tiny)


def test_a_shard_that_the_index_names_and_nobody_downloaded_is_named(copy_of_tiny: Path):
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (copy_of_tiny / "model.safetensors.index.json").write_text(json.dumps(index))

    with pytest.raises(CheckpointError, match="lacks model-00002-of-00002"):
        pilotfish.load(copy_of_tiny)


@pytest.mark.parametrize(("content", "message"), [
    ("{", "not valid JSON"), ("[]", "not an object"), ("{}", "names no model_type"),
    ('{"model_type": "gemma9"}', r"'gemma9' is not supported; supported are gemma4, .*llama.*qwen3"),
])  # fmt: skip
def test_a_config_that_cannot_be_used_is_named(copy_of_tiny: Path, content: str, message: str):
    (copy_of_tiny / "config.json").write_text(content)

    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        pilotfish.load(copy_of_tiny)


def test_missing_paths_and_folders_without_config_are_named(tmp_path: Path):
    with pytest.raises(ModelNotFoundError, match="no model at"):
        pilotfish.load(tmp_path / "nowhere")
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        pilotfish.load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelNotFoundError, match="is a file"):
        pilotfish.load(tmp_path / "file")


def test_a_folder_without_tokenizer_is_named(copy_of_tiny: Path):
    (copy_of_tiny / "tokenizer.json").unlink()

    with pytest.raises(CheckpointError, match="tokenizer"):
        pilotfish.load(copy_of_tiny)


def test_an_assistant_for_another_size_is_refused_with_both_sizes(tiny: Path, tmp_path: Path):
    assistant = Path(shutil.copytree(ORACLE / "e2b" / "assistant", tmp_path / "a"))
    config = json.loads((assistant / "config.json").read_text())
    config["backbone_hidden_size"] = 128
    (assistant / "config.json").write_text(json.dumps(config))
    rewrite(assistant, lambda w: w.update({
        "pre_projection.weight": mx.zeros((32, 256)), "post_projection.weight": mx.zeros((128, 32)),
    }))  # fmt: skip

    with pytest.raises(DrafterMismatchError, match=r"hidden size 128.*has 64"):
        pilotfish.load(tiny, draft=assistant)


def test_an_assistant_with_another_vocabulary_is_refused_with_both(tiny: Path, tmp_path: Path):
    assistant = Path(shutil.copytree(ORACLE / "31b" / "assistant", tmp_path / "a"))
    config = json.loads((assistant / "config.json").read_text())
    config["text_config"]["vocab_size"] = 640
    (assistant / "config.json").write_text(json.dumps(config))
    rewrite(assistant, lambda w: w.update({"model.embed_tokens.weight": mx.zeros((640, 32))}))

    with pytest.raises(DrafterMismatchError, match=r"vocabulary 640.*has 512"):
        pilotfish.load(tiny, draft=assistant)


def test_an_assistant_that_reads_other_heads_is_refused(tiny: Path):
    with pytest.raises(DrafterMismatchError, match=r"key/value heads 2.*has 1"):
        pilotfish.load(tiny, draft=ORACLE / "31b" / "assistant")


def test_a_target_is_no_drafter_and_an_assistant_no_target(tiny: Path):
    with pytest.raises(UnsupportedModelError, match="cannot draft"):
        pilotfish.load(tiny, draft=tiny)
    with pytest.raises(UnsupportedModelError, match="--draft"):
        pilotfish.load(ORACLE / "e2b" / "assistant")


@pytest.mark.parametrize(("options", "message"), [({"dtype": "int4"}, "dtype"), ({"max_depth": -1}, "max_depth")])
def test_bad_load_options_are_named(tiny: Path, options: dict, message: str):
    with pytest.raises(pilotfish.errors.OptionError, match=message):
        pilotfish.load(tiny, **options)
