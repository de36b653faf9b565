"""Every field of a request that decodes, by route: honoured, refused with an error, or of no effect on the answer.

Nothing that would change the answer is dropped silently. Fields that are in no table are unknown; the log says so once.
Drafting stays on for all that is honoured.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from pilotfish.errors import OptionError

log = logging.getLogger("pilotfish")
_mentioned: set[str] = set()


class Field(NamedTuple):
    """What becomes of a field. refusal: the error's text, for values that ask for something; neutral: those that do
    not, beside empty ones."""

    honoured: bool
    refusal: str = ""
    neutral: tuple[Any, ...] = ()


HONOURED, NO_EFFECT = Field(True), Field(False)


def _refused(text: str, *neutral: Any) -> Field:
    return Field(False, text, neutral)


def _all(kind: Field, names: str) -> dict[str, Field]:
    return dict.fromkeys(names.split(), kind)


NO_IMAGES = "this model does not support images"
_STATELESS = "is not supported: this server keeps no responses; send the whole input"

# The options of Ollama's routes, which OpenAI's take as well (`options`).
OPTIONS = {
    **_all(HONOURED, "temperature top_p min_p top_k seed num_predict num_ctx stop draft_num_predict repeat_penalty "
                     "repetition_penalty presence_penalty frequency_penalty repeat_last_n min_tokens ignore_eos"),
    "typical_p": _refused("typical_p is not supported; leave it out or set it to 1", 1),
    "tfs_z": _refused("tfs_z is not supported; leave it out or set it to 1", 1),
    "mirostat": _refused("mirostat is not supported; leave it out or set it to 0"),
    **_all(NO_EFFECT, "num_keep num_batch num_gpu main_gpu num_thread use_mmap use_mlock numa low_vram f16_kv "
                      "vocab_only penalize_newline logits_all embedding_only mirostat_tau mirostat_eta"),
}  # fmt: skip

_OLLAMA = {
    **_all(HONOURED, "model stream think format options keep_alive logprobs top_logprobs template"),
    **_all(NO_EFFECT, "truncate shift"),  # a prompt that does not fit is an error
}
_OPENAI = {
    **_all(HONOURED, "model stream stream_options max_tokens temperature top_p top_k min_p seed stop n "
                     "presence_penalty frequency_penalty repetition_penalty logit_bias min_tokens ignore_eos "
                     "draft_num_predict options keep_alive"),
    **_all(NO_EFFECT, "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention"),
}  # fmt: skip
_ANTHROPIC = {
    **_all(HONOURED, "model messages system tools tool_choice thinking output_config"),
    **_all(NO_EFFECT, "metadata service_tier container mcp_servers context_management cache_control speed betas "
                      "inference_geo"),
}  # fmt: skip

CHAT = {**_OLLAMA, **_all(HONOURED, "messages tools")}
GENERATE = {
    **_OLLAMA,
    **_all(HONOURED, "prompt system raw context _debug_render_only"),
    "suffix": _refused("suffix is not supported: Gemma 4 does not fill in the middle"),
    "images": _refused(NO_IMAGES),
}
CHAT_COMPLETIONS = {
    **_OPENAI,
    **_all(HONOURED, "messages max_completion_tokens tools tool_choice parallel_tool_calls response_format reasoning "
                     "reasoning_effort logprobs top_logprobs chat_template_kwargs"),
    **_all(NO_EFFECT, "prediction verbosity"),
    "modalities": _refused("modalities other than text are not supported", ["text"]),
    "audio": _refused("audio is not supported"),
    "web_search_options": _refused("web_search_options is not supported: this server searches nothing"),
    "functions": _refused("functions is not supported; use tools"),
    "function_call": _refused("function_call is not supported; use tool_choice", "none", "auto"),
}  # fmt: skip
COMPLETIONS = {
    **_OPENAI,
    **_all(HONOURED, "prompt echo logprobs"),
    "suffix": GENERATE["suffix"],
    "best_of": _refused("best_of is not supported; use n and choose", 1),
}
RESPONSES = {
    **_all(HONOURED, "model input instructions tools tool_choice parallel_tool_calls max_output_tokens temperature "
                     "top_p stream reasoning text draft_num_predict"),
    **_all(NO_EFFECT, "store include metadata user service_tier safety_identifier prompt_cache_key "
                      "prompt_cache_retention truncation stream_options max_tool_calls client_metadata"),
    "top_logprobs": _refused("top_logprobs is not supported here; use /v1/chat/completions"),
    "previous_response_id": _refused(f"previous_response_id {_STATELESS}"),
    "conversation": _refused(f"conversation {_STATELESS}"),
    "prompt": _refused(f"prompt {_STATELESS}"),
    "background": _refused("background is not supported: this server keeps no responses; stream instead"),
}  # fmt: skip
COUNT = {**_ANTHROPIC}
MESSAGES = {
    **_ANTHROPIC,
    **_all(HONOURED, "max_tokens stream temperature top_p top_k stop_sequences draft_num_predict"),
}

BY_ROUTE: dict[str, Mapping[str, Field]] = {
    "/api/chat": CHAT, "/api/generate": GENERATE, "/v1/chat/completions": CHAT_COMPLETIONS,
    "/v1/completions": COMPLETIONS, "/v1/responses": RESPONSES, "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": COUNT,
}  # fmt: skip


def check(fields: Mapping[str, Field], values: Mapping[str, Any], what: str) -> None:
    """Raise OptionError for the first value that asks for what is refused; `what` they are, for the log."""
    for name, value in values.items():
        field = fields.get(name)
        if field is not None and field.refusal and value and value not in field.neutral:
            raise OptionError(field.refusal)
        if (field is None or field == NO_EFFECT) and f"{what} {name}" not in _mentioned:
            _mentioned.add(f"{what} {name}")
            log.info("%s %r %s", what, name, "is not known; ignored" if field is None else "has no effect here")
