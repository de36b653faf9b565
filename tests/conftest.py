from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from pilotfish import cli
from pilotfish.engine.acceptance import RULES
from pilotfish.engine.decode import DecodeLoop, Device, prefill
from pilotfish.engine.depth import FixedDepth
from pilotfish.engine.drafters import Drafter
from pilotfish.engine.drafters.gemma4_assistant import AssistantArgs, AssistantModel, Gemma4Assistant
from pilotfish.engine.round import RoundParts
from pilotfish.engine.rows import Row
from pilotfish.engine.sampling import Sampler, SamplingParams
from pilotfish.engine.target import Gemma4Target
from pilotfish.kernels import best_operations
from pilotfish.kernels.stock import StockOperations
from pilotfish.runtime.loaded import Engine, load
from pilotfish.store import checkpoint
from pilotfish.testing.checkpoints import AGENT_TEMPLATE, write_tokenizer
from tests.servers import agent, client_script, scripted, server

__all__ = ["agent", "client_script", "scripted", "server"]

HERE = Path(__file__).resolve().parent
ORACLE = HERE / "oracle"
POLYGLOT = HERE / "data" / "polyglot.jsonl"
VARIANTS = ("e2b", "e4b", "26b-a4b", "31b", "12b-unified")


@dataclass(frozen=True)
class Pair:
    """One of the tiny reference checkpoints: target, drafter and what the reference computes for them."""

    target: Gemma4Target
    drafter: Gemma4Assistant
    golden: dict[str, np.ndarray]

    @property
    def prompt(self) -> list[int]:
        return self.golden["prompt_ids"][0].tolist()

    @property
    def greedy(self) -> list[int]:
        return self.golden["greedy_ids"][0].tolist()


@cache
def load_pair(variant: str, kernels: str = "auto") -> Pair:
    folder = ORACLE / variant
    network, _ = checkpoint.load_target(folder / "target", mx.float32)
    target = Gemma4Target(network, 8, best_operations() if kernels == "auto" else StockOperations())
    assistant = checkpoint.load_assistant(folder / "assistant", (AssistantModel, AssistantArgs), mx.float32)
    return Pair(target, Gemma4Assistant(assistant, target), dict(np.load(folder / "golden.npz")))


@pytest.fixture(params=VARIANTS)
def pair(request: pytest.FixtureRequest) -> Pair:
    return load_pair(request.param)


@pytest.fixture(params=VARIANTS)
def stock_pair(request: pytest.FixtureRequest) -> Pair:
    """As `pair`, with MLX's own operations only."""
    return load_pair(request.param, "stock")


@pytest.fixture
def e2b() -> Pair:
    return load_pair("e2b")


def decode(
    target: Gemma4Target,
    drafter: Drafter | None,
    prompt: list[int],
    max_tokens: int,
    depth: int = 0,
    params: SamplingParams | None = None,
    rule: str = "same-text",
    eos: frozenset[int] = frozenset(),
    device: Device | None = None,
    after_round: Callable[[DecodeLoop], None] | None = None,
) -> tuple[Row, DecodeLoop]:
    """Decode one prompt on the engine alone, without text."""
    device = device or Device()
    row = Row(len(prompt), max_tokens, eos)
    parts = RoundParts(
        target,
        drafter if depth else None,
        RULES[rule],
        Sampler([params or SamplingParams()], operations=target.operations),
    )
    loop = DecodeLoop(parts, FixedDepth(depth), prefill(target, prompt, device), [row], device)
    for _ in loop.steps():
        if after_round:
            after_round(loop)
    return row, loop


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete checkpoint on disk: the e2b oracle with its assistant in its own folder, and a byte tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    shutil.copytree(ORACLE / "e2b" / "target", folder)
    shutil.copytree(ORACLE / "e2b" / "assistant", folder / "assistant")
    write_tokenizer(folder)
    return folder


@pytest.fixture
def copy_of_tiny(tiny: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


@pytest.fixture(scope="session")
def engine(tiny: Path) -> Engine:
    return load(tiny)


@pytest.fixture(scope="session")
def thinker(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The same with a template that knows tools and thinking."""
    folder = Path(shutil.copytree(tiny, tmp_path_factory.mktemp("thinker") / "tiny"))
    write_tokenizer(folder, chat_template=AGENT_TEMPLATE)
    return load(folder)


@pytest.fixture
def pilotfish(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Run the command in this process -> (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pilotfish", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capfd.readouterr()
        return stopped.value.code, out, err

    return run
