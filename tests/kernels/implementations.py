"""Every implementation of the operations that this machine can run, for the conformance suite."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import mlx.core as mx

from pilotfish.kernels import best_operations
from pilotfish.kernels.cpu import CpuOperations, native
from pilotfish.kernels.gpu import GpuOperations
from pilotfish.kernels.operations import Operations
from pilotfish.kernels.stock import StockOperations
from tests.kernels.gpu.emulator import EmulatedKernel

Implementation = Callable[[], "contextmanager[Operations]"]


@contextmanager
def stock() -> Iterator[Operations]:
    yield StockOperations()


def cpu(form: str) -> Implementation:
    @contextmanager
    def use() -> Iterator[Operations]:
        extension = native()
        before = extension.form()
        extension.use_form(form)
        try:
            yield CpuOperations(extension)
        finally:
            mx.synchronize()
            extension.use_form(before)

    return use


@contextmanager
def emulated_metal() -> Iterator[Operations]:
    yield METAL


EMULATED = "metal, emulated"
METAL = GpuOperations("metal", EmulatedKernel)
IMPLEMENTATIONS: dict[str, Implementation] = {"stock": stock}
if native() is not None and mx.default_device().type == mx.DeviceType.cpu:
    IMPLEMENTATIONS |= {f"cpu {form}": cpu(form) for form in native().forms()}
if shutil.which("g++"):
    IMPLEMENTATIONS[EMULATED] = emulated_metal
if mx.default_device().type != mx.DeviceType.cpu:
    IMPLEMENTATIONS[best_operations().name] = lambda: nullcontext(best_operations())  # on the device itself
