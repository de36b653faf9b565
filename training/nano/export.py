"""Write a trained pair as Hugging Face checkpoints under the published names, in bfloat16.

    python export.py --run DIR --data DIR --out DIR

Leaves `OUT/` (target) and `OUT/assistant/`, each with config.json, generation_config.json and model.safetensors, and
the tokenizer beside the target.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from model import Shape

SLIDING, FULL = "sliding_attention", "full_attention"
CONTEXT = 8192
MLP = ("gate_proj", "up_proj", "down_proj")
TOKENS = {"bos_token_id": 2, "eos_token_id": [1, 106, 50], "pad_token_id": 0}
SAMPLING = {"do_sample": True, "temperature": 1.0, "top_k": 64, "top_p": 0.95}
CHAT_TEMPLATE = (
    "{{ '<bos>' }}{% for m in messages %}{{ '<|turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\\n' "
    "+ m['content'] + '<turn|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|turn>model\\n' }}{% endif %}"
)


def text_config(s: Shape, kinds: list[str], hidden: int, mlp: int, shared: int, ple: int, softcap: float | None) -> Any:
    return {
        "model_type": "gemma4_text",
        "dtype": "bfloat16",
        "vocab_size": s.vocab,
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "num_attention_heads": s.heads,
        "num_key_value_heads": 1,
        "head_dim": s.head_dim,
        "global_head_dim": s.global_head_dim,
        "num_global_key_value_heads": None,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": shared,
        "hidden_size_per_layer_input": ple,
        "vocab_size_per_layer_input": s.vocab if ple else 0,
        "use_double_wide_mlp": False,
        "enable_moe_block": False,
        "num_experts": None,
        "top_k_experts": None,
        "moe_intermediate_size": None,
        "sliding_window": s.window,
        "max_position_embeddings": CONTEXT,
        "final_logit_softcapping": softcap,
        "use_bidirectional_attention": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
        },
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 1,
    }


def configs(s: Shape) -> tuple[dict[str, Any], dict[str, Any]]:
    kinds = [FULL if s.is_full(i) else SLIDING for i in range(s.layers)]
    target = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "vocab_size": s.vocab,  # mlx-lm looks for it here
        "dtype": "bfloat16",
        "eos_token_id": TOKENS["eos_token_id"],
        "tie_word_embeddings": True,
        "vision_config": None,
        "audio_config": None,
        "text_config": text_config(s, kinds, s.hidden, s.mlp, s.shared, s.ple, 30.0),
    }
    assistant = {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "dtype": "bfloat16",
        "backbone_hidden_size": s.hidden,
        "tie_word_embeddings": True,
        "use_ordered_embeddings": False,
        "num_centroids": 2048,
        "centroid_intermediate_top_k": 32,
        "text_config": text_config(s, [SLIDING, FULL], s.draft_hidden, s.draft_mlp, 2, 0, None),
    }
    return target, assistant


def published(weights: dict[str, Tensor], prefix: str, outside: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Our names and fused matrices -> published names and single ones, in bfloat16."""
    out: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        *path, leaf = name.split(".")
        at = "" if name in outside else prefix + "".join(p + "." for p in path)
        if leaf == "layer_scalar":
            out[at + leaf] = tensor
        elif leaf == "kv_proj":
            for part, piece in zip(("k_proj", "v_proj"), tensor.chunk(2), strict=True):
                out[f"{at}self_attn.{part}.weight"] = piece
        elif leaf == "gate_up_proj":
            for part, piece in zip(MLP, tensor.chunk(2), strict=False):
                out[f"{at}mlp.{part}.weight"] = piece
        elif leaf == "down_proj":
            out[f"{at}mlp.{leaf}.weight"] = tensor
        elif leaf in ("q_proj", "o_proj", "q_norm", "k_norm"):
            out[f"{at}self_attn.{leaf}.weight"] = tensor
        else:
            out[f"{at}{leaf}.weight"] = tensor
    return {k: t.to(torch.bfloat16).contiguous() for k, t in out.items()}


def write(folder: Path, config: dict[str, Any], generation: dict[str, Any], weights: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--run", "--data", "--out"):
        parser.add_argument(name, type=Path, required=True)
    args = parser.parse_args()
    target_config, assistant_config = configs(Shape())
    target = torch.load(args.run / "target.pt", weights_only=True)["weights"]
    assistant = torch.load(args.run / "assistant.pt", weights_only=True)["weights"]
    write(args.out, target_config, TOKENS | SAMPLING, published(target, "model.language_model."))
    drafting = {"num_assistant_tokens": 4, "num_assistant_tokens_schedule": "constant"}
    outside = ("pre_projection", "post_projection")
    write(args.out / "assistant", assistant_config, TOKENS | drafting, published(assistant, "model.", outside))
    shutil.copy(args.data / "tokenizer.json", args.out / "tokenizer.json")
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (args.out / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=1) + "\n")


if __name__ == "__main__":
    main()
