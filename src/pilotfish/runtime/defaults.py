"""What a model's manifest sets: system text, messages, template, and options that a request leaves open."""

from __future__ import annotations

from dataclasses import fields, replace

from pilotfish.errors import OptionError
from pilotfish.runtime.loaded import Prompt
from pilotfish.runtime.request import Chat, Request
from pilotfish.store.library import Manifest

# Modelfile parameters, by Ollama's names, as fields of a request.
PARAMETERS = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "seed": "seed",
    "num_predict": "max_tokens", "num_ctx": "context", "stop": "stop", "draft_num_predict": "max_depth",
    "repeat_penalty": "repetition_penalty", "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty", "repeat_last_n": "repeat_last_n",
}  # fmt: skip


def completed(prompt: Prompt, request: Request, manifest: Manifest) -> tuple[Prompt, Request]:
    """A prompt and a request with what the model's manifest sets where they leave it open. Raises OptionError."""
    known = {PARAMETERS[k]: v for k, v in manifest.parameters.items() if k in PARAMETERS}
    defaults = {f.name: f.default for f in fields(Request)}
    changes = {k: v for k, v in known.items() if getattr(request, k) == defaults[k]}
    if changes.get("max_tokens", 1) < 1:
        del changes["max_tokens"]  # Ollama: until the context is full
    if isinstance(changes.get("stop"), list):
        changes["stop"] = tuple(changes["stop"])
    if isinstance(prompt, Chat):
        prompt = _with_own_messages(prompt, manifest)
    try:
        return prompt, replace(request, **changes)
    except TypeError as error:
        raise OptionError(f"a PARAMETER of {manifest.name} cannot be used: {error}") from error


def _with_own_messages(chat: Chat, manifest: Manifest) -> Chat:
    messages = [*manifest.messages, *chat.messages]
    if manifest.system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": manifest.system})
    return replace(chat, messages=tuple(messages), template=chat.template or manifest.template)
