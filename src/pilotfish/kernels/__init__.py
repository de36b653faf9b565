"""Kernels for a few rows at a time, usable without the rest of pilotfish and by any MLX model.

Contract of every kernel: *row i of the result depends only on row i of the input*, bit for bit, whatever the number of
rows. That is what makes a verify pass give the very logits that plain decoding gives.

>>> from pilotfish import kernels
>>> swapped = kernels.install(model)      # doctest: +SKIP
>>> kernels.uninstall(model)              # doctest: +SKIP
"""

from __future__ import annotations

from pilotfish.kernels.choice import best_operations
from pilotfish.kernels.layers import Installed, install, uninstall
from pilotfish.kernels.probe import Probe, probe
from pilotfish.kernels.small_batch import (
    small_batch_attention,
    small_batch_gather_qmm,
    small_batch_matmul,
    small_batch_qmm,
)

__all__ = [
    "Installed",
    "Probe",
    "best_operations",
    "install",
    "probe",
    "small_batch_attention",
    "small_batch_gather_qmm",
    "small_batch_matmul",
    "small_batch_qmm",
    "uninstall",
]
