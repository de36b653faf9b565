"""Answers as OpenAI's completion objects, whole and in chunks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pilotfish.engine.logprobs import TokenLogprob
from pilotfish.runtime.request import Stats, together
from pilotfish.runtime.service import Begun, Whole
from pilotfish.server.translate import call_json, draft_statistics, logprob_entries, new_id
from pilotfish.text.answer import Kind, Part
from pilotfish.text.tools import ToolCall

Entries = list[dict[str, Any]]  # log probabilities, a token each


class ChatShape:
    """Answers as chat completion objects."""

    def __init__(self, model: str) -> None:
        self._head = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": model,
                      "system_fingerprint": "fp_pilotfish"}  # fmt: skip
        self._calls: Counter[int] = Counter()

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: str | None = None, logprobs: Entries | None = None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": reason}
        if logprobs:
            choice["logprobs"] = {"content": logprobs, "refusal": None}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def first(self, index: int, begun: Begun, scored: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """What an answer begins with."""
        return self._chunk(index, {"role": "assistant", "content": ""})

    def part(self, index: int, part: Part, logprobs: Entries) -> dict[str, Any]:
        """A part of an answer."""
        if part.kind == Kind.THINKING:
            return self._chunk(index, {"reasoning": part.text, "reasoning_content": part.text}, logprobs=logprobs)
        if part.call is None:
            return self._chunk(index, {"content": part.text}, logprobs=logprobs)
        call = {"index": self._calls[index], **_call(part.call)}
        self._calls[index] += 1
        return self._chunk(index, {"tool_calls": [call]}, logprobs=logprobs)

    def last(self, index: int, reason: str) -> dict[str, Any]:
        """The chunk that says why an answer ended."""
        return self._chunk(index, {}, "tool_calls" if self._calls[index] and reason == "stop" else reason)

    def usage(self, stats: Stats) -> dict[str, Any]:
        """The chunk of figures."""
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage_of(stats)}

    def whole(self, answers: Sequence[Whole]) -> dict[str, Any]:
        """The answers as one object."""
        choices = [self._choice(i, answer) for i, answer in enumerate(answers)]
        usage = usage_of(together([a.stats for a in answers]))
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage}

    def _choice(self, index: int, answer: Whole) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.thinking:
            message |= {"reasoning": answer.thinking, "reasoning_content": answer.thinking}
        reason = answer.finish_reason
        if answer.calls:
            message |= {"content": answer.text or None, "tool_calls": [_call(c) for c in answer.calls]}
            reason = "tool_calls" if reason == "stop" else reason
        found = answer.logprobs
        logprobs = {"content": entries_of(answer.begun, found), "refusal": None} if found else None
        return {"index": index, "message": message, "finish_reason": reason, "logprobs": logprobs}


class TextShape:
    """Answers as text completion objects. echo: the prompt, where every answer begins with it."""

    def __init__(self, model: str, echo: str | list[int] | None = None, logprobs: bool = False) -> None:
        self._head = {"id": new_id("cmpl-"), "object": "text_completion", "created": int(time.time()), "model": model,
                      "system_fingerprint": "fp_pilotfish"}  # fmt: skip
        self._echo, self._logprobs = echo, logprobs
        self._written: Counter[int] = Counter()  # characters of each answer that have log probabilities

    def _text(self, index: int, text: str, reason: str | None, logprobs: Entries | None = None) -> dict[str, Any]:
        found = _legacy(logprobs, self._written[index]) if logprobs else None
        self._written[index] += sum(len(e["token"]) for e in logprobs or [])
        return {**self._head, "choices": [{"text": text, "index": index, "finish_reason": reason, "logprobs": found}]}

    def first(self, index: int, begun: Begun, scored: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """The prompt, if it is asked for."""
        echoed = self._echoed(begun, scored)
        return None if echoed is None else self._text(index, echoed[0], None, echoed[1])

    def part(self, index: int, part: Part, logprobs: Entries) -> dict[str, Any]:
        """A part of an answer; thinking was not asked for."""
        return self._text(index, part.text if part.kind == Kind.TEXT else "", None, logprobs)

    def last(self, index: int, reason: str) -> dict[str, Any]:
        """The chunk that says why an answer ended."""
        return self._text(index, "", reason)

    def usage(self, stats: Stats) -> dict[str, Any]:
        """The chunk of figures."""
        return {**self._head, "choices": [], "usage": usage_of(stats)}

    def whole(self, answers: Sequence[Whole]) -> dict[str, Any]:
        """The answers as one object."""
        choices: list[Any] = []
        for i, answer in enumerate(answers):
            text, logprobs = self._echoed(answer.begun, answers[0].prompt_logprobs) or ("", [])
            logprobs = logprobs + entries_of(answer.begun, answer.logprobs)
            choices += self._text(i, text + answer.text, answer.finish_reason, logprobs)["choices"]
        return {**self._head, "choices": choices, "usage": usage_of(together([a.stats for a in answers]))}

    def _echoed(self, begun: Begun, found: Sequence[TokenLogprob]) -> tuple[str, Entries] | None:
        """The prompt's text, and its log probabilities where those are asked for."""
        if self._echo is None:
            return None
        tokenizer, ids = begun.engine.model.backend_tokenizer, begun.prepared.prompt
        text = self._echo if isinstance(self._echo, str) else tokenizer.decode(ids, skip_special_tokens=False)
        if not self._logprobs:
            return text, []
        first = {"token": tokenizer.decode(ids[:1], skip_special_tokens=False), "logprob": None, "top_logprobs": None}
        return text, [first, *entries_of(begun, found)]


def entries_of(begun: Begun, found: Sequence[TokenLogprob]) -> Entries:
    """Log probabilities as the newer API gives them."""
    return logprob_entries(found, begun.engine.model.backend_tokenizer)


def _legacy(entries: Entries, at: int) -> dict[str, Any]:
    """Log probabilities as the older completions give them; `at`: characters before the first."""
    offsets = []
    for e in entries:
        offsets.append(at)
        at += len(e["token"])
    return {
        "tokens": [e["token"] for e in entries], "token_logprobs": [e["logprob"] for e in entries],
        "top_logprobs": [
            None if (top := e["top_logprobs"]) is None else {t["token"]: t["logprob"] for t in top} for e in entries
        ],
        "text_offset": offsets,
    }  # fmt: skip


def usage_of(stats: Stats) -> dict[str, Any]:
    """Figures as OpenAI counts them; what drafting did stands among the details."""
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.delivered,
        "total_tokens": stats.prompt_tokens + stats.delivered,
        "prompt_tokens_details": {"cached_tokens": stats.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": stats.thinking_tokens,
            "accepted_prediction_tokens": stats.accepted,
            "rejected_prediction_tokens": stats.drafted - stats.accepted,
            "pilotfish": draft_statistics(stats),
        },
    }


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": new_id("call_"), "type": "function", "function": {"name": call.name, "arguments": call_json(call)}}
