"""Muon for matrices, Adam for tables and vectors (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon)."""

from __future__ import annotations

import torch
from torch import Tensor

ADAM_RATES = {"embed": 3e-3, "layer_scalar": 1e-3}  # by part of the name; every other vector: ADAM_RATE
ADAM_RATE = 2e-3
MUON_RATE = 0.02
FUSED = {"gate_up_proj": 2, "kv_proj": 2}  # stacked projections are orthogonalised one by one


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration on a stack (N, rows, columns) towards the nearest semi-orthogonal matrices."""
    wide = g if g.shape[1] <= g.shape[2] else g.transpose(1, 2)
    x = wide / (wide.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x if g.shape[1] <= g.shape[2] else x.transpose(1, 2)


class Optimiser:
    """State lives in plain dicts of tensors, so a checkpoint is one `torch.save`."""

    def __init__(self, named: dict[str, Tensor]) -> None:
        self.named = named
        self.step_count = 0
        self.momentum = {k: torch.zeros_like(t) for k, t in named.items()}
        self.matrices = [k for k, t in named.items() if t.ndim == 2 and "embed" not in k]
        self.second = {k: torch.zeros_like(t) for k, t in named.items() if k not in self.matrices}

    def state(self) -> dict[str, object]:
        return {"step": self.step_count, "momentum": self.momentum, "second": self.second}

    def load(self, state: dict) -> None:
        self.step_count, self.momentum, self.second = state["step"], state["momentum"], state["second"]

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One update; `scale` is the schedule's factor on every learning rate. Clears the gradients."""
        self.step_count += 1
        self._adam(scale)
        self._muon(scale)
        for tensor in self.named.values():
            tensor.grad = None

    def _adam(self, scale: float) -> None:
        b1, b2, n = 0.9, 0.95, self.step_count
        for name, second in self.second.items():
            tensor, first = self.named[name], self.momentum[name]
            rate = next((r for part, r in ADAM_RATES.items() if part in name), ADAM_RATE) * scale
            first.lerp_(tensor.grad, 1 - b1)
            second.lerp_(tensor.grad.square(), 1 - b2)
            tensor.sub_(rate * (first / (1 - b1**n)) / ((second / (1 - b2**n)).sqrt() + 1e-8))

    def _muon(self, scale: float) -> None:
        beta = 0.85 + 0.10 * min(1.0, self.step_count / 200)
        stacks: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        for name in self.matrices:
            tensor, momentum = self.named[name], self.momentum[name]
            momentum.lerp_(tensor.grad, 1 - beta)
            direction = tensor.grad.lerp(momentum, beta)  # Nesterov
            parts = FUSED.get(name.rsplit(".", 1)[-1], 1)
            for piece, d in zip(tensor.chunk(parts), direction.chunk(parts), strict=True):
                stacks.setdefault((d.shape[0], d.shape[1]), []).append((piece, d))
        for (rows, columns), items in stacks.items():
            update = orthogonalise(torch.stack([d for _, d in items]))
            rate = MUON_RATE * scale * max(1.0, rows / columns) ** 0.5
            for (piece, _), u in zip(items, update, strict=True):
                piece.sub_(rate * u)
