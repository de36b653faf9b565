"""What can be asked of an engine, and what comes back: the one internal language of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from pilotfish.engine.acceptance import RULES
from pilotfish.engine.logprobs import MOST, TokenLogprob
from pilotfish.engine.processors import Adjustments
from pilotfish.engine.sampling import SamplingParams
from pilotfish.errors import OptionError
from pilotfish.text.answer import Kind, Part
from pilotfish.text.template import Message, Tool
from pilotfish.text.tools import ToolCall

AUTO, REQUIRED = "auto", "required"
MOST_ANSWERS = 16


@dataclass(frozen=True)
class Chat:
    """A conversation to be answered through the checkpoint's template.

    messages: role, content (str), and where they apply tool_calls, tool_call_id, name, reasoning_content; arguments of
    tool calls are objects. thinking: None thinks if the model can, True insists. template: jinja, in place of the
    checkpoint's. continues: the last message is the beginning of the answer. extra: further variables of the template.
    choice: "auto", "required" (some tool must be called) or the name of the tool that must be. one_call: the first call
    ends the answer.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    thinking: bool | None = False
    template: str = ""
    continues: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    choice: str = AUTO
    one_call: bool = False


@dataclass(frozen=True)
class Request:
    """One generation. None means the checkpoint's or the engine's default; `resolve` fills those in.

    max_tokens: at least 1; at most, and by default, what the context leaves.
    context: tokens that prompt and answer may have together; at most what the model has.
    depth: drafts per round; "auto" chooses at run time, 0 is plain decoding.
    max_depth: with "auto", at most so many.
    lookup: with "auto", whether prompt look-up may draft where the model has an assistant as well.
    acceptance: "same-text" (the text of plain decoding) or "rejection" (the same distribution, more drafts kept).
    stop: strings that end the text and are not part of it.
    repetition_penalty, presence_penalty, frequency_penalty: by what was generated; with `repeat_last_n`, by the newest
        n tokens, those of the prompt included. logit_bias: added to the logits of token ids.
    min_tokens: no end of text before so many. ignore_eos: an end of text is a token like any other.
    logprobs: None for none, else log probabilities of every token and of so many of the likeliest.
    thinking_budget: tokens after which thinking is ended; None for no limit.
    n: so many answers, the i-th (from 0) being the one that seed + i gives. prompt_logprobs: as `logprobs`, of the
        tokens of the prompt; max_tokens may be 0 with it.
    format: "json" for any JSON object, or a JSON schema that the text must satisfy; thinking before it is free.
    """

    max_tokens: int | None = None
    context: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    depth: int | str = AUTO
    max_depth: int | None = None
    lookup: bool = True
    acceptance: str = "same-text"
    stop: str | Sequence[str] = ()
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_last_n: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    format: str | Mapping[str, Any] | None = None
    thinking_budget: int | None = None
    n: int = 1
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < (0 if self.prompt_logprobs is not None else 1):
            raise OptionError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if self.context is not None and self.context < 1:
            raise OptionError(f"context is {self.context}; it must be at least 1")
        if self.depth != AUTO and (not isinstance(self.depth, int) or self.depth < 0):
            raise OptionError(
                f"depth is {self.depth!r}; it must be auto, 0 (plain decoding) or a positive whole number"
            )
        if self.max_depth is not None and self.max_depth < 0:
            raise OptionError(f"max_depth is {self.max_depth}; it must be 0 or a positive whole number")
        if self.acceptance not in RULES:
            raise OptionError(f"acceptance is {self.acceptance!r}; it must be one of: {', '.join(RULES)}")
        for name in ("logprobs", "prompt_logprobs"):
            if (value := getattr(self, name)) is not None and not 0 <= value <= MOST:
                raise OptionError(f"{name} is {value}; it must be between 0 and {MOST}")
        if not 1 <= self.n <= MOST_ANSWERS:
            raise OptionError(f"n is {self.n}; it must be between 1 and {MOST_ANSWERS}")
        if self.thinking_budget is not None and self.thinking_budget < 0:
            raise OptionError(f"thinking_budget is {self.thinking_budget}; it must be 0 or positive")
        if self.repeat_last_n is not None and self.repeat_last_n < -1:
            raise OptionError(f"repeat_last_n is {self.repeat_last_n}; it must be -1 (all), 0 (off) or positive")
        if any(not s for s in self.stops):
            raise OptionError("a stop string is empty; leave it out or give at least one character")

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def sampling(self, generation_config: dict[str, Any], random_seed: int) -> SamplingParams:
        """Sampling parameters, with what was not asked for taken from the checkpoint's generation_config."""
        defaults = generation_config if generation_config.get("do_sample") else {"temperature": 0.0}

        def pick(name: str, neutral: float) -> Any:
            asked = getattr(self, name)
            return defaults.get(name, neutral) if asked is None else asked

        return SamplingParams(
            temperature=pick("temperature", 1.0),
            top_k=pick("top_k", 0) or 0,
            top_p=pick("top_p", 1.0),
            min_p=pick("min_p", 0.0) or 0.0,
            seed=random_seed if self.seed is None else self.seed,
        )

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema that the text must satisfy, if any. Raises OptionError."""
        if self.format is None or self.format == "":
            return None
        if self.format == "json":
            return {"type": "object"}
        if isinstance(self.format, str):
            raise OptionError(f"format is {self.format!r}; it must be json or a JSON schema")
        return dict(self.format)

    def adjustments(
        self, prompt_length: int, max_tokens: int, eos: frozenset[int], channel: tuple[int, int] | None
    ) -> Adjustments:
        """How logits are changed; `channel`: ids of the tokens that open and close thinking. Raises OptionError."""
        last, everything = self.repeat_last_n, prompt_length + max_tokens
        return Adjustments(
            repetition=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            presence=self.presence_penalty or 0.0,
            frequency=self.frequency_penalty or 0.0,
            window=max_tokens if last is None else everything if last < 0 else min(last, everything),
            of_prompt=last is not None,
            bias=self.logit_bias,
            min_tokens=self.min_tokens,
            eos=eos,
            budget=None if channel is None or self.thinking_budget is None else (*channel, self.thinking_budget),
        )


@dataclass(frozen=True)
class Stats:
    """What a generation took and what drafting did for it. Times are seconds by the engine's clock.

    accepted_at[i] and drafted_at[i] count the rounds in which draft i was kept, and was made. looked_up: of the
    accepted drafts, those that prompt look-up made.
    depth: what was asked for; depths: of every round, the first of which is always plain. parked_seconds: spent in
    plain rounds because drafting did not pay. no_drafting: why nothing was drafted at all, or "".
    cache_length: tokens with keys and values after the end, as plain decoding leaves them. cached_tokens: of the
    prompt, taken from an earlier request. delivered: tokens without the one that ended the text;
    thinking_tokens are among them.
    """

    prompt_tokens: int
    cached_tokens: int
    tokens: int
    delivered: int
    thinking_tokens: int
    finish_reason: str
    rounds: int
    drafted: int
    accepted: int
    looked_up: int
    accepted_at: tuple[int, ...]
    drafted_at: tuple[int, ...]
    depth: int | str
    depths: tuple[int, ...]
    drafter: str
    no_drafting: str
    acceptance: str
    temperature: float
    seed: int
    cache_length: int
    prefill_seconds: float
    decode_seconds: float
    parked_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def accepted_per_round(self) -> float:
        """Mean over the rounds that drafted."""
        drafting = self.drafted_at[0] if self.drafted_at else 0
        return self.accepted / drafting if drafting else 0.0


def together(stats: Sequence[Stats]) -> Stats:
    """Of several answers to one prompt, what they took and drafted together."""
    first, *others = stats
    summed = ("tokens", "delivered", "thinking_tokens", "rounds", "drafted", "accepted", "looked_up")
    by_position: dict[str, Any] = {
        name: tuple(map(sum, zip_longest(*(getattr(s, name) for s in stats), fillvalue=0)))
        for name in ("accepted_at", "drafted_at")
    }
    sums = {name: sum(getattr(s, name) for s in stats) for name in summed}
    return replace(first, **by_position, **sums) if others else first


@dataclass(frozen=True)
class Event:
    """What one round added.

    text: the new text; `pieces` is the same text by token (a held-back piece comes with the token that released it).
    parts: the same with thinking and tool calls, in order.
    tokens: the new token ids, an end-of-text token included; drafted: which of them the drafter got right.
    logprobs: of every token, where they were asked for. prompt_logprobs: of every token of the prompt but the first, on
        the first event, where they were asked for. index: of the answer, where there are several.
    finish_reason: "stop" or "length" on the last event, which also carries the stats and the stop string, if any.
    """

    text: str
    tokens: tuple[int, ...]
    drafted: tuple[bool, ...]
    pieces: tuple[str, ...]
    parts: tuple[Part, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    index: int = 0
    finish_reason: str | None = None
    stop_string: str | None = None
    stats: Stats | None = None


class Completion(str):
    """A str that also knows its `thinking`, `calls`, `tokens`, `drafted` flags, `logprobs` and `stats`."""

    thinking: str
    calls: tuple[ToolCall, ...]
    tokens: tuple[int, ...]
    drafted: tuple[bool, ...]
    logprobs: tuple[TokenLogprob, ...]
    stats: Stats

    @classmethod
    def from_events(cls, events: Sequence[Event]) -> Completion:
        self = cls("".join(e.text for e in events))
        parts = [p for e in events for p in e.parts]
        self.thinking = "".join(p.text for p in parts if p.kind == Kind.THINKING)
        self.calls = tuple(p.call for p in parts if p.call is not None)
        self.tokens = tuple(t for e in events for t in e.tokens)
        self.drafted = tuple(d for e in events for d in e.drafted)
        self.logprobs = tuple(p for e in events for p in e.logprobs)
        stats = events[-1].stats
        assert stats is not None, "the last event of a generation carries its stats"
        self.stats = stats
        return self


@dataclass(frozen=True)
class Prepared:
    """A request that has been checked against a model: nothing in it is left open."""

    prompt: list[int]
    max_tokens: int
    depth: int | str
    max_depth: int
    lookup: bool
    acceptance: str
    sampling: SamplingParams
    stops: tuple[str, ...] = field(default=())
    adjustments: Adjustments = field(default_factory=Adjustments)
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1
    prompt_logprobs: int | None = None
    one_call: bool = False
    grammar: Any = None  # a llguidance matcher before its first token, or None
    thinks: bool = False
