"""An engine whose answers are written down: real caches, real rounds, real drafts right and wrong, but known text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from pilotfish.engine.decode import Device, Progress
from pilotfish.engine.drafters import Propose
from pilotfish.engine.state import DecodeState, Draft, row_positions
from pilotfish.engine.target import PlainTarget, TargetOutput
from pilotfish.runtime.loaded import Engine, load
from pilotfish.runtime.prefixes import PrefixCache
from pilotfish.runtime.request import Event, Prepared
from pilotfish.testing.checkpoints import AGENT_TEMPLATE, write_tokenizer

SURE = 1e4  # a logit that no noise reaches
Script = Callable[[str], str]
"""The text of a prompt, marks included -> the text of its answer."""


class ScriptedTarget:
    """A target that says what `sequence` (1, n) holds, by position; everything else is the inner target's."""

    def __init__(self, inner: PlainTarget) -> None:
        self._inner = inner
        self.sequence = mx.zeros((1, 1), dtype=mx.int32)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def token_at(self, positions: mx.array) -> mx.array:
        """(B, N) positions -> the tokens that stand there."""
        inside = mx.minimum(positions, self.sequence.shape[1] - 1)
        return mx.take(self.sequence[0], inside)

    def forward(self, tokens: mx.array, views: Sequence[Any]) -> TargetOutput:
        """As the inner target, with a word in its mouth."""
        out = self._inner.forward(tokens, views)
        wanted = self.token_at(row_positions(views[0].positions + 1, tokens.shape[1]))
        chosen = mx.arange(out.logits.shape[-1]) == wanted[..., None]
        return TargetOutput(mx.where(chosen, SURE, out.logits), out.hidden)


class AnswerDrafter:
    """Knows the answer, and proposes it right for 0 to 4 tokens, in turn."""

    max_depth = 16
    reads_hidden = True

    def __init__(self, target: ScriptedTarget) -> None:
        self._target, self._rounds = target, 0

    def draft(self, state: DecodeState, depth: int, propose: Propose) -> Draft:
        """Ignores `propose`: the script decides."""
        tokens = self._target.token_at(row_positions(state.length + 1, depth))
        right = mx.arange(depth) < self._rounds % 5
        self._rounds += 1
        return Draft(mx.where(right, tokens, (tokens + 1) % self._target.vocab_size))


class ScriptedEngine(Engine):
    """Answers as `script` says."""

    def __init__(self, engine: Engine, script: Script) -> None:
        target: Any = ScriptedTarget(engine.model.target)
        model = replace(engine.model, target=target, drafter=AnswerDrafter(target),
                        drafter_path=Path("scripted"), looks_up=False)  # fmt: skip
        super().__init__(model, prefixes=engine.prefixes)
        self._script, self._scripted = script, target

    def decode(
        self, request: Prepared, device: Device | None = None, progress: Progress | None = None
    ) -> Iterator[Event]:
        """As the engine does, once the script has said what."""
        tokenizer = self.model.backend_tokenizer
        answer = self._script(tokenizer.decode(request.prompt, skip_special_tokens=False))
        ids = tokenizer.encode(answer, add_special_tokens=False).ids
        self._scripted.sequence = mx.array([[*request.prompt, *ids, 106]], dtype=mx.int32)
        return super().decode(request, device, progress)


def scripted_loader(checkpoint: Path, script: Script) -> Callable[..., Engine]:
    """In place of `load`: a small checkpoint under any name, answering by `script`."""
    write_tokenizer(checkpoint, chat_template=AGENT_TEMPLATE)

    def loader(model: str, *, draft: Any = None, name: str = "", prefixes: PrefixCache | None = None) -> Engine:
        return ScriptedEngine(load(checkpoint, draft=None, name=name or model, prefixes=prefixes), script)

    return loader
