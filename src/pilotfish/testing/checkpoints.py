"""Tiny checkpoints on disk, complete with tokenizer, for tests that need real files but no real weights."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

SPECIAL = {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 50: "<|tool_response>", 105: "<|turn>", 106: "<turn|>"}
# Marks of thinking and tools; a random model would say them too, so only tokenizers of agents have them.
AGENT_MARKS = {
    46: "<|tool>", 47: "<tool|>", 48: "<|tool_call>", 49: "<tool_call|>", 51: "<tool_response|>", 52: '<|"|>',
    98: "<|think|>", 100: "<|channel>", 101: "<channel|>",
}  # fmt: skip
CHAT_TEMPLATE = (
    "<bos>{% for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)
# What Gemma 4's own templates do, in short: thinking and tools in the system turn, calls and results in the model's.
AGENT_TEMPLATE = """<bos>{%- set first = messages[0] -%}
{%- if tools or enable_thinking or first.role == 'system' -%}
<|turn>system
{% if enable_thinking %}<|think|>
{% endif %}{% if first.role == 'system' %}{{ first.content }}{% endif %}
{%- for tool in tools or [] %}<|tool>declaration:{{ tool.function.name }}{{ tool.function.parameters | tojson }}<tool|>
{%- endfor %}<turn|>
{% endif -%}
{%- for m in messages if m.role != 'system' -%}
{%- if m.role == 'tool' -%}
<|tool_response>response:{{ m.name }}{value:<|"|>{{ m.content }}<|"|>}<tool_response|>
{%- else -%}
{%- if m.role != 'assistant' or loop.first or loop.previtem.role != 'tool' -%}
<|turn>{{ 'model' if m.role == 'assistant' else m.role }}
{% endif -%}
{{ m.content }}
{%- for call in m.tool_calls or [] %}<|tool_call>call:{{ call.function.name }}{
{%- for k, v in call.function.arguments | dictsort %}{{ k }}:
{%- if v is string %}<|"|>{{ v }}<|"|>{% else %}{{ v | tojson }}{% endif %}{{ '' if loop.last else ',' }}
{%- endfor %}}<tool_call|>{% endfor -%}
{%- if not (m.tool_calls and not loop.last and loop.nextitem.role == 'tool') and not (loop.last and continue_final) -%}
<turn|>
{% endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>model
{% endif %}"""
TINY: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "rope_theta": 10000.0,
    },
    "qwen3": {
        "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "head_dim": 8, "max_position_embeddings": 512,
        "rope_theta": 10000.0, "tie_word_embeddings": True,
    },
    "gemma3_text": {
        "hidden_size": 32, "num_hidden_layers": 4, "intermediate_size": 64, "num_attention_heads": 4, "head_dim": 8,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "sliding_window": 16, "sliding_window_pattern": 2,
        "max_position_embeddings": 512,
    },
    "mamba": {
        "hidden_size": 32, "intermediate_size": 64, "state_size": 8, "num_hidden_layers": 2, "conv_kernel": 4,
        "use_bias": False, "use_conv_bias": True, "time_step_rank": 4, "max_position_embeddings": 512,
    },
}  # fmt: skip


def byte_tokenizer(vocab_size: int = 512, special: Mapping[int, str] = SPECIAL) -> Tokenizer:
    """A byte-level tokenizer without merges; ids beyond the bytes stand for pairs of bytes, so UTF-8 is often split."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = iter([*alphabet, *(alphabet[i * 37 % 256] + alphabet[i * 101 % 256] for i in range(1, vocab_size))])
    vocab: dict[str, int] = {}
    for i in range(vocab_size):
        token = special.get(i) or next(t for t in tokens if t not in vocab)
        vocab[token] = i
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))  # noqa: S106 - not a password
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return tokenizer


def write_tokenizer(folder: Path, vocab_size: int = 512, chat_template: str | None = CHAT_TEMPLATE) -> None:
    """tokenizer.json and tokenizer_config.json."""
    special = SPECIAL | AGENT_MARKS if chat_template == AGENT_TEMPLATE else SPECIAL
    byte_tokenizer(vocab_size, special).save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_tiny(folder: Path, model_type: str, seed: int = 0) -> Path:
    """A random checkpoint of one of mlx-lm's families (`TINY`), with vocabulary 512."""
    module = importlib.import_module(f"mlx_lm.models.{model_type}")
    config = {"model_type": model_type, "vocab_size": 512, "eos_token_id": 1, **TINY[model_type]}
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return folder
