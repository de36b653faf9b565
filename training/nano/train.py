"""Train the target, or the assistant against a finished target, for a number of minutes.

    python train.py target    --data DIR --out DIR --minutes 150
    python train.py assistant --data DIR --out DIR --minutes 30

The schedule follows the clock: a short warm-up, a constant rate, then linearly to zero over the last part. A
checkpoint is written every few minutes and a cut-off run goes on from it; `target-constant.pt` is the state before
the rate began to fall, from which a longer run can start (`--from`).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from model import Assistant, Shape, Tables, Target, layer
from optimiser import Optimiser

LENGTH, BATCH = 512, 8
WARM_UP_STEPS = 60
DECAY_SHARE = 0.55
SAVE_SECONDS = 240
LANGUAGES = ("python", "go", "rust", "javascript", "cpp", "java", "prose")
UNROLL, UNROLL_WEIGHT = 4, 0.9


class Windows:
    """Windows of LENGTH + 1 tokens that cover the data once in random order, then again."""

    def __init__(self, ids: np.ndarray, seed: int) -> None:
        self.ids, self.rng = ids, np.random.default_rng(seed)
        self.order = np.empty(0, dtype=np.int64)

    def next(self) -> Tensor:
        if len(self.order) < BATCH:
            starts = np.arange(0, len(self.ids) - LENGTH - 1, LENGTH)
            self.order = np.concatenate([self.order, self.rng.permutation(starts)])
        chosen, self.order = self.order[:BATCH], self.order[BATCH:]
        return torch.from_numpy(np.stack([self.ids[s : s + LENGTH + 1] for s in chosen]).astype(np.int64))


def rate_scale(step: int, fraction: float) -> float:
    """Warm-up by steps, constant, then linear to zero over the last DECAY_SHARE of the time."""
    return min(1.0, (step + 1) / WARM_UP_STEPS, max(0.0, 1 - fraction) / DECAY_SHARE)


def softcap_cross_entropy(raw: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of soft-capped logits (rows, vocab); compiled, since it is a tenth of a step otherwise."""
    logits = 30.0 * torch.tanh(raw / 30.0)
    picked = logits.gather(1, labels[:, None])[:, 0]
    return (logits.exp().sum(-1).log() - picked).mean()  # soft-capped at 30: exp cannot overflow


head_loss = torch.compile(softcap_cross_entropy, dynamic=False)


def target_loss(target: Target, tables: Tables, ids: Tensor) -> Tensor:
    hidden, _ = target.hidden(ids[:, :-1], tables)
    return head_loss(hidden.flatten(0, 1) @ target.top["embed_tokens"].T, ids[:, 1:].flatten())


def assistant_loss(target: Target, assistant: Assistant, tables: Tables, ids: Tensor) -> tuple[Tensor, list[float]]:
    """Every row starts a round. True tokens are fed; the loss is KL to the target's distribution, step by step."""
    with torch.no_grad():
        hidden, donors = target.hidden(ids[:, :-1], tables)
        log_p = target.logits(hidden).log_softmax(-1)
        embedded = target.embed(ids[:, 1:])
    state, loss, agree = hidden, torch.zeros(()), []
    for j in range(UNROLL):
        rows = LENGTH - 1 - j  # rows whose j-th draft still has a target row
        # Row i embeds token i + 1 + j; the target's row i + 1 + j says what should follow it.
        token = F.pad(embedded[:, j:], (0, 0, 0, j))
        logits, state = assistant.step(token, state, donors, tables)
        want, got = log_p[:, 1 + j :], logits[:, :rows].log_softmax(-1)
        loss = loss + UNROLL_WEIGHT**j * F.kl_div(got, want, log_target=True, reduction="sum") / (BATCH * rows)
        agree.append((got.detach().argmax(-1) == want.argmax(-1)).float().mean().item())
    return loss, agree


@torch.no_grad()
def bits_per_byte(target: Target, tables: Tables, data: Path) -> dict[str, float]:
    """Held-out bits per byte by language, over the first windows of each."""
    from tokenizers import Tokenizer

    tokenizer, out = Tokenizer.from_file(str(data / "tokenizer.json")), {}
    for language in LANGUAGES:
        ids = np.fromfile(data / f"heldout_{language}.bin", dtype=np.uint16)[: BATCH * LENGTH + 1].astype(np.int64)
        batch = np.stack([ids[i * LENGTH : (i + 1) * LENGTH + 1] for i in range(BATCH)])
        nats = target_loss(target, tables, torch.from_numpy(batch)).item() * BATCH * LENGTH
        text = tokenizer.decode(ids[1:].tolist(), skip_special_tokens=True)
        out[language] = round(nats / np.log(2) / len(text.encode()), 3)
    return out


def save(path: Path, named: dict[str, Tensor], optimiser: Optimiser, seconds: float) -> None:
    part = path.with_suffix(".part")
    weights = {k: t.detach() for k, t in named.items()}
    torch.save({"weights": weights, "optimiser": optimiser.state(), "seconds": seconds}, part)
    part.replace(path)


def restore(path: Path, named: dict[str, Tensor], optimiser: Optimiser | None = None) -> float:
    """Load weights (and optimiser state) in place; returns the seconds trained so far."""
    checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
    for name, tensor in named.items():
        tensor.data.copy_(checkpoint["weights"][name])
    if optimiser is not None:
        optimiser.load(checkpoint["optimiser"])
    return float(checkpoint["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["target", "assistant"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--from", dest="start", type=Path, help="checkpoint to start from")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    tables, target = Tables(Shape(), LENGTH), Target(Shape())
    learner: Target | Assistant = target
    if args.what == "assistant":
        restore(args.out / "target.pt", target.named())
        learner = Assistant(Shape(), target)
    target.layer = learner.layer = torch.compile(layer, dynamic=False)
    named = learner.named()
    for tensor in named.values():
        tensor.requires_grad_(True)
    optimiser = Optimiser(named)
    checkpoint = args.out / f"{args.what}.pt"
    begin = checkpoint if checkpoint.exists() else args.start
    trained = restore(begin, named, optimiser) if begin else 0.0
    windows = Windows(np.fromfile(args.data / "train.bin", dtype=np.uint16), seed=optimiser.step_count)
    constant_saved = (args.out / f"{args.what}-constant.pt").exists()
    log = (args.out / f"{args.what}.jsonl").open("a")
    started = saved = last = time.monotonic()
    while (fraction := (trained + time.monotonic() - started) / (60 * args.minutes)) < 1:
        scale = rate_scale(optimiser.step_count, fraction)
        agree: list[float] = []
        if args.what == "target":
            loss = target_loss(target, tables, windows.next())
        else:
            loss, agree = assistant_loss(target, learner, tables, windows.next())
        loss.backward()
        optimiser.step(scale)
        now = time.monotonic()
        if optimiser.step_count <= 1:
            started += now - last  # the first step compiles
        if optimiser.step_count % 10 == 0:
            row = {"step": optimiser.step_count, "minutes": round((trained + now - started) / 60, 2),
                   "loss": round(loss.item(), 4), "agree": [round(a, 3) for a in agree],
                   "tokens_per_second": round(LENGTH * BATCH / (now - last))}  # fmt: skip
            log.write(json.dumps(row) + "\n")
            log.flush()
        last = now
        if not constant_saved and fraction > 1 - DECAY_SHARE:
            save(args.out / f"{args.what}-constant.pt", named, optimiser, trained + now - started)
            constant_saved = True
        if now - saved > SAVE_SECONDS:
            save(checkpoint, named, optimiser, trained + now - started)
            saved = time.monotonic()
    save(checkpoint, named, optimiser, trained + time.monotonic() - started)
    if args.what == "target":
        log.write(json.dumps({"bits_per_byte": bits_per_byte(target, tables, args.data)}) + "\n")
    print((args.out / f"{args.what}.jsonl").read_text().splitlines()[-1])


if __name__ == "__main__":
    main()
