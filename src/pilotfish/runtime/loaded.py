"""Models in memory: loading a target with its drafter, and the engine that answers requests with them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_tokenizer
from tokenizers import Tokenizer

from pilotfish.config import settings
from pilotfish.engine.decode import Device, Progress
from pilotfish.engine.depth import DepthMemory
from pilotfish.engine.drafters import Drafter
from pilotfish.engine.drafters.gemma4_assistant import AssistantArgs, AssistantModel, Gemma4Assistant
from pilotfish.engine.target import Gemma4Target, PlainTarget, wrap
from pilotfish.errors import (
    CapabilityError,
    CheckpointError,
    ContextOverflowError,
    DraftingUnsupportedError,
    ModelNotFoundError,
    OptionError,
    UnsupportedModelError,
)
from pilotfish.kernels import best_operations, install
from pilotfish.kernels.stock import StockOperations
from pilotfish.runtime.completion import Clock, complete
from pilotfish.runtime.prefixes import PrefixCache
from pilotfish.runtime.request import AUTO, REQUIRED, Chat, Completion, Event, Prepared, Request
from pilotfish.store import checkpoint, names
from pilotfish.store.describe import capabilities
from pilotfish.store.library import NO_DRAFTER, Library, Manifest
from pilotfish.text import template
from pilotfish.text.answer import Markers
from pilotfish.text.grammar import GrammarTokenizer

MAX_DEPTH = 16
ASSISTANT, LOOKUP, NONE = "assistant", "lookup", NO_DRAFTER  # beside AUTO, what `draft` may be that is no path
Prompt = str | Chat | Sequence[template.Message] | Sequence[int]
DTYPES = {"bfloat16": mx.bfloat16, "float16": mx.float16, "float32": mx.float32}


@dataclass(frozen=True)
class LoadedModel:
    """A target with everything that belongs to it."""

    name: str
    path: Path
    config: checkpoint.Config
    generation_config: checkpoint.Config
    target: PlainTarget
    drafter: Drafter | None
    drafter_path: Path | None
    looks_up: bool  # whether text that repeats is drafted by look-up
    tokenizer: Any  # mlx-lm's TokenizerWrapper
    backend_tokenizer: Tokenizer
    eos: frozenset[int]
    suppress: tuple[int, ...]
    depth_memory: DepthMemory
    turn_token: int | None
    longest_token: int  # in characters

    @cached_property
    def grammar_tokenizer(self) -> GrammarTokenizer:
        """The tokenizer for grammars, made when the first one is asked for."""
        return GrammarTokenizer(self.backend_tokenizer, self.target.vocab_size, self.eos)

    @property
    def drafts(self) -> bool:
        """Whether anything drafts for it."""
        return self.drafter is not None or self.looks_up

    @property
    def drafter_name(self) -> str:
        """What drafts, in words."""
        names_ = [*([self.drafter_path.name] if self.drafter_path else []), *([LOOKUP] if self.looks_up else [])]
        return " and ".join(names_) or NONE

    @property
    def verified_drafter(self) -> str:
        """Which drafter `verify` walks: the assistant where there is one."""
        return self.drafter_path.name if self.drafter_path else self.drafter_name

    @property
    def can_think(self) -> bool:
        """Whether the template knows thinking."""
        return "thinking" in capabilities(self.template)

    @property
    def can_call_tools(self) -> bool:
        """Whether the template shows tools to the model."""
        return "tools" in capabilities(self.template)

    @property
    def template(self) -> str:
        """The checkpoint's chat template, jinja; empty where it has none."""
        found = getattr(self.tokenizer, "chat_template", None)
        return found if isinstance(found, str) else ""

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, as stored."""
        folders = [self.path, *([self.drafter_path] if self.drafter_path else [])]
        return sum(f.stat().st_size for folder in folders for f in folder.glob("*.safetensors"))

    @property
    def context(self) -> int | None:
        """Tokens that prompt and answer may have together; None where the checkpoint does not say."""
        value: int | None = checkpoint.text_config(self.config).get("max_position_embeddings")
        return value


class Engine:
    """A loaded model that generates text. Not thread-safe: one generation at a time.

    Made by `pilotfish.load`.
    """

    def __init__(
        self, model: LoadedModel, clock: Clock = time.perf_counter, prefixes: PrefixCache | None = None
    ) -> None:
        self.model, self.prefixes = model, prefixes
        self._clock = clock

    def __repr__(self) -> str:
        return f"<pilotfish.Engine {self.model.name}, drafter {self.model.drafter_name}>"

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """The whole text at once.

        `prompt` is a str to continue, chat messages (`[{"role": "user", "content": ...}]`) or a `Chat` to answer, or
        token ids as they are. `options` are the fields of `Request`. Returns a str with `.thinking`, `.calls`,
        `.stats`, `.tokens` and `.drafted`.

        Raises OptionError for a prompt or option that cannot be honoured.

        >>> engine.generate("def fib(n):", max_tokens=200, temperature=0)  # doctest: +SKIP
        """
        if options.get("n", 1) != 1:
            raise OptionError("generate gives one answer; read several from stream, by Event.index")
        return Completion.from_events(list(self.stream(prompt, **options)))

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Event]:
        """The text as it is decoded, an `Event` a round; arguments and errors as for `generate`.

        >>> for event in engine.stream(messages, temperature=1.0, seed=7, depth=3):  # doctest: +SKIP
        ...     print(event.text, end="")
        """
        return self.decode(self.prepare(prompt, _request(options)))

    def prepare(self, prompt: Prompt, request: Request) -> Prepared:
        """Check a request against the model and fill in its defaults. Raises OptionError."""
        ids = self.prompt_ids(prompt)
        depth, most = self._depth(request)
        limits = [n for n in (self.model.context, request.context) if n is not None]
        context, asked = min(limits, default=None), request.max_tokens
        if context is not None and len(ids) >= context:
            raise ContextOverflowError(len(ids), context)
        room = (context - len(ids)) if context is not None else None
        if asked is None and room is None:
            raise OptionError("this checkpoint does not say how long its context is; give max_tokens")
        max_tokens = min(n for n in (asked, room) if n is not None)
        marks = Markers.of(self.model.backend_tokenizer)
        channel = None if marks.channel is None or marks.channel_end is None else (marks.channel, marks.channel_end)
        adjustments = request.adjustments(len(ids), max_tokens, self.model.eos, channel)
        if unknown := [i for i in adjustments.bias if not 0 <= i < self.model.target.vocab_size]:
            raise OptionError(
                f"logit_bias names token {unknown[0]}, but the vocabulary has {self.model.target.vocab_size}"
            )
        return Prepared(
            prompt=ids,
            max_tokens=max_tokens,
            depth=depth,
            max_depth=most,
            lookup=self.model.looks_up and (request.lookup or self.model.drafter is None),
            acceptance=request.acceptance,
            sampling=request.sampling(self.model.generation_config, secrets.randbits(32)),
            stops=request.stops,
            adjustments=adjustments,
            ignore_eos=request.ignore_eos,
            logprobs=request.logprobs,
            n=request.n,
            prompt_logprobs=request.prompt_logprobs,
            one_call=isinstance(prompt, Chat) and prompt.one_call,
            grammar=self._grammar(prompt, request.schema),
            thinks=isinstance(prompt, Chat) and self._thinks(prompt),
        )

    def _grammar(self, prompt: Prompt, schema: dict[str, Any] | None) -> Any:
        """What the answer must be, as a matcher before the first token, or None. Raises OptionError."""
        chat = prompt if isinstance(prompt, Chat) else Chat(())
        if chat.choice != AUTO:
            if schema is not None:
                raise OptionError("a tool call that is forced and a JSON schema contradict each other; leave one out")
            called = [t for t in chat.tools if chat.choice in (REQUIRED, t["function"]["name"])]
            if not called:
                raise OptionError(f"tool choice {chat.choice!r} needs that tool, or any, among the tools")
            return self.model.grammar_tokenizer.of_calls(called, chat.one_call or chat.choice != REQUIRED)
        if schema is None:
            return None
        if chat.tools and self.model.grammar_tokenizer.marks is not None:
            return self.model.grammar_tokenizer.of_calls(chat.tools, chat.one_call, otherwise=schema)
        return self.model.grammar_tokenizer.of_schema(schema)

    def decode(
        self, request: Prepared, device: Device | None = None, progress: Progress | None = None
    ) -> Iterator[Event]:
        """Decode a prepared request.

        `device` is where evaluation and read-back happen; tests count there. `progress` is told how far the prompt is.
        """
        return complete(self.model, request, self._clock, device or Device(), progress, self.prefixes)

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """A prompt as token ids, as it will be decoded. Raises OptionError."""
        if not prompt:
            raise OptionError("the prompt is empty; give some text or at least one message")
        if isinstance(prompt, Chat):
            ids = self._chat_ids(prompt)
        elif isinstance(prompt, str):
            self._refuse_far_too_long(prompt)
            ids = template.raw_ids(self.model.tokenizer, prompt, checkpoint.is_gemma4(self.model.config))
        elif isinstance(prompt[0], int):
            ids = [int(i) for i in prompt]  # type: ignore[arg-type]
            if unknown := [i for i in ids if not 0 <= i < self.model.target.vocab_size]:
                raise OptionError(f"token id {unknown[0]} is not in the vocabulary of {self.model.target.vocab_size}")
        else:
            ids = self._chat_ids(Chat(tuple(prompt)))  # type: ignore[arg-type]
        if not ids:
            raise OptionError("the prompt has no tokens; give some text")
        return ids

    def _chat_ids(self, chat: Chat) -> list[int]:
        text = self.chat_text(chat)
        self._refuse_far_too_long(text)
        return template.chat_ids(self.model.tokenizer, text)

    def _refuse_far_too_long(self, text: str) -> None:
        """Raise ContextOverflowError for a text that cannot fit, without the seconds that tokenizing it would take."""
        context, longest = self.model.context, self.model.longest_token
        if context is not None and len(text) > context * longest:
            raise ContextOverflowError(len(text) // longest, context)

    def chat_text(self, chat: Chat) -> str:
        """A conversation as the model will read it. Raises OptionError."""
        return template.chat_text(self.model.tokenizer, chat.messages, **self._chat_options(chat))

    def _chat_options(self, chat: Chat) -> dict[str, Any]:
        """What the template is asked for. Raises CapabilityError for what it does not know."""
        model = self.model
        if chat.tools and not (model.can_call_tools or "tools" in chat.template):
            raise CapabilityError(f'"{model.name}" does not support tools')
        if chat.thinking and not self._can_think(chat):
            raise CapabilityError(f'"{model.name}" does not support thinking')
        return {
            "tools": chat.tools, "thinking": self._thinks(chat), "template": chat.template, "continues": chat.continues,
            "extra": chat.extra,
        }  # fmt: skip

    def _thinks(self, chat: Chat) -> bool:
        return self._can_think(chat) if chat.thinking is None else chat.thinking

    def _can_think(self, chat: Chat) -> bool:
        return self.model.can_think or "thinking" in chat.template

    def _depth(self, request: Request) -> tuple[int | str, int]:
        """What was asked for, and the most drafts a round may have."""
        model, limit = self.model, self.model.target.max_depth
        if request.depth == AUTO:
            most = limit if request.max_depth is None else request.max_depth
            self._check_depth("max_depth", most, limit)
            return (AUTO, most) if model.drafts and most else (0, 0)
        depth = int(request.depth)
        if depth and not model.drafts:
            raise OptionError(f"depth {depth} needs a drafter, and {model.name} was loaded without one")
        self._check_depth("depth", depth, limit)
        return depth, depth

    def _check_depth(self, what: str, depth: int, limit: int) -> None:
        if depth > limit:
            raise OptionError(
                f"{what} is {depth}, but the caches have room for {limit}; load the model with max_depth={depth}"
            )


def load(
    model: str | Path = names.BUILT_IN,
    *,
    draft: str | Path | None = "auto",
    dtype: str = "auto",
    max_depth: int = MAX_DEPTH,
    kernels: str = "auto",
    name: str | None = None,
    prefixes: PrefixCache | None = None,
) -> Engine:
    """Load a model and its drafter from this machine; never uses the network.

    model: "nano" (ships with pilotfish), a directory, the name of a pulled or created model, or a downloaded Hugging
        Face repository "org/name".
    draft: "assistant" takes the one in the model's own folder; "lookup" drafts by matches in the text, for any model;
        "auto" does both for Gemma 4, as far as there is an assistant; a path or name gives another assistant beside
        look-up; None or "none" decodes plainly.
    dtype: "auto" computes in float32 on a CPU, where MLX sums narrower types inaccurately and slowly, and in the
        checkpoint's own type elsewhere; or one of float32, bfloat16, float16.
    max_depth: the most drafts a round may have; sliding caches are sized for it.
    kernels: "auto" uses pilotfish's kernels where this machine has them; "stock" uses MLX's own operations only.
    name: what the model is called in messages; by default `model`.
    prefixes: keeps sequences for requests that begin alike; without it every prompt is computed as a whole.

    Raises ModelNotFoundError, CheckpointError, UnsupportedModelError, DrafterMismatchError,
    DraftingUnsupportedError or OptionError, each saying what to do.
    """
    if max_depth < 0:
        raise OptionError(f"max_depth is {max_depth}; it must be 0 or a positive whole number")
    if kernels not in ("auto", "stock"):
        raise OptionError(f"kernels is {kernels!r}; it must be auto or stock")
    manifest = find_manifest(str(model))
    source = str(model) if manifest is None else manifest.source
    if manifest is not None and draft == "auto":
        draft = manifest.draft
    path, compute = names.resolve(source), _dtype(dtype)
    network, config = checkpoint.load_target(path, compute)
    operations = best_operations() if kernels == "auto" else StockOperations()
    if operations.name == "stock":
        _refuse_global_scales_on_cpu(path, network)
    target = wrap(network, max_depth, operations)
    drafter_path = _drafter_path(path, draft)
    drafter = None if drafter_path is None else _load_drafter(drafter_path, target, str(model), compute)
    if draft == LOOKUP:
        _needs_roll_back(target, str(model))
    # Other families are computed by MLX's own attention, which pilotfish does not vouch for unless it is asked to.
    looks_up = draft == LOOKUP or (draft not in (None, NONE, ASSISTANT) and isinstance(target, Gemma4Target))
    if kernels == "auto" and not isinstance(target, Gemma4Target):
        install(network)
    generation = checkpoint.read_generation_config(path)
    tokenizer = _load_tokenizer(path)
    return Engine(
        LoadedModel(
            name=name or str(model),
            path=path,
            config=config,
            generation_config=generation,
            target=target,
            drafter=drafter,
            drafter_path=drafter_path,
            looks_up=looks_up,
            tokenizer=tokenizer,
            backend_tokenizer=tokenizer.backend_tokenizer,
            eos=checkpoint.eos_ids(config, generation) or frozenset(tokenizer.eos_token_ids),
            suppress=tuple(generation.get("suppress_tokens") or ()),
            depth_memory=DepthMemory(target.max_depth),
            turn_token=tokenizer.backend_tokenizer.token_to_id("<|turn>"),
            longest_token=template.longest_token(tokenizer),
        ),
        prefixes=prefixes,
    )


def find_manifest(name: str) -> Manifest | None:
    """What the library of this machine has under a name; a directory of that name comes first."""
    if Path(name).expanduser().exists():
        return None
    try:
        return Library(settings().models).find(name)
    except OptionError:  # a path that leads nowhere is no name either
        return None


def _request(options: dict[str, Any]) -> Request:
    try:
        return Request(**options)
    except TypeError as error:
        known = ", ".join(Request.__dataclass_fields__)
        raise OptionError(f"{error}; known options are {known}") from error


def _drafter_path(target: Path, draft: str | Path | None) -> Path | None:
    if draft in (None, NONE, LOOKUP):
        return None
    if draft not in (AUTO, ASSISTANT):
        return names.resolve(str(draft))
    found = names.find_drafter(target)
    if found is None and draft == ASSISTANT:
        raise ModelNotFoundError(f"{target} has no assistant in its folder; give the path of one, or auto or lookup")
    return found


def _needs_roll_back(target: PlainTarget, name: str) -> None:
    if not target.can_roll_back:
        raise DraftingUnsupportedError(
            f"{name} keeps running state that cannot be rolled back, so nothing can draft for it; use draft=None"
        )


def _load_drafter(path: Path, target: PlainTarget, name: str, dtype: mx.Dtype | None) -> Gemma4Assistant:
    _needs_roll_back(target, name)
    network = checkpoint.load_assistant(path, (AssistantModel, AssistantArgs), dtype)
    assert isinstance(network, AssistantModel)
    if not isinstance(target, Gemma4Target):
        raise DraftingUnsupportedError(f"{path} drafts for Gemma 4 only, and {name} is another family")
    return Gemma4Assistant(network, target)


def _refuse_global_scales_on_cpu(path: Path, network: Any) -> None:
    if mx.default_device().type != mx.DeviceType.cpu:
        return
    for name, module in network.named_modules():
        if module.get("global_scale") is not None:
            raise UnsupportedModelError(
                f"{path}: {name} has a global scale, which MLX's own operations compute on a GPU only; use "
                'kernels="auto" with the compiled CPU kernels, or convert the model without global scales'
            )


def _load_tokenizer(path: Path) -> Any:
    try:
        tokenizer: Any = load_tokenizer(path)
    except Exception as error:  # transformers raises many kinds for damaged or missing tokenizer files
        raise CheckpointError(f"cannot load the tokenizer in {path}: {' '.join(str(error).split())}") from error
    if not tokenizer.is_fast:
        raise CheckpointError(f"the tokenizer in {path} has no tokenizer.json; convert it with transformers first")
    return tokenizer


def _dtype(name: str) -> mx.Dtype | None:
    if name == "auto":
        return mx.float32 if mx.default_device().type == mx.DeviceType.cpu else None
    if name not in DTYPES:
        raise OptionError(f"dtype is {name!r}; it must be auto or one of: {', '.join(DTYPES)}")
    return DTYPES[name]
