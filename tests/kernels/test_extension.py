"""The compiled extension as a library: threads, streams, forks, forms, and life without it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pilotfish.kernels.cpu import native

needs_native = pytest.mark.skipif(native() is None, reason="the CPU kernels are not built here")

RUN = """
import mlx.core as mx, os, sys, threading
from pilotfish import kernels
from pilotfish.kernels.cpu import native
w, s, b = mx.quantize(mx.random.normal((4096, 1024), key=mx.random.key(0)), 64, 4)
x = mx.random.normal((4, 1024), key=mx.random.key(1))
def run(): return kernels.small_batch_qmm(x, w, s, b, group_size=64, bits=4)
def digest(): return hash(bytes(memoryview(run())))
"""


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", RUN + code], capture_output=True, text=True, check=True, timeout=120,
        env=os.environ | {"PYTHONHASHSEED": "0"} | environment,
    )  # fmt: skip
    return done.stdout


@needs_native
@pytest.mark.slow
def test_the_number_of_threads_changes_nothing():
    results = {python("print(digest())", PILOTFISH_THREADS=str(n)) for n in (1, 2, 3, 8)}

    assert len(results) == 1
    assert python("print(native().threads())", PILOTFISH_THREADS="3").strip() == "3"


@needs_native
def test_two_streams_at_once_are_right():
    code = """
want = digest()
def work(out):
    with mx.stream(mx.new_stream(mx.cpu)):
        for _ in range(50): out.append(digest())
found = [[], []]
threads = [threading.Thread(target=work, args=(f,)) for f in found]
[t.start() for t in threads]; [t.join() for t in threads]
print(all(d == want for f in found for d in f), len(found[0]) + len(found[1]))
"""
    assert python(code, PILOTFISH_THREADS="4").split() == ["True", "100"]


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_makes_its_own_threads():
    code = """
from pilotfish.kernels.cpu import _native
want = digest()
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    with mx.stream(mx.new_stream(mx.cpu)):
        ok = digest() == want
    os._exit(0 if ok else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert python(code, PILOTFISH_THREADS="4").strip() == "0"


@needs_native
def test_the_portable_form_agrees_with_the_fast_one():
    code = "print(native().form(), np.abs(np.array(run()) - np.array(mx.quantized_matmul(x, w, s, b))).max() < 1e-3)"
    shown = python("import numpy as np; " + code, PILOTFISH_FORM="portable").split()

    assert shown == ["portable", "True"]


def test_without_the_extension_there_is_one_notice_and_stock_operations_do_the_work(tmp_path):
    blocked = """
import logging
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
import builtins
real = builtins.__import__
def refuse(name, globals=None, locals=None, fromlist=(), level=0):
    if fromlist and "_native" in fromlist: raise ImportError("blocked")
    return real(name, globals, locals, fromlist, level)
builtins.__import__ = refuse
from pilotfish.kernels import cpu
cpu.native.cache_clear()
import numpy as np
for _ in range(2): ok = np.abs(np.array(run()) - np.array(mx.quantized_matmul(x, w, s, b))).max() < 1e-3
print(ok)
"""
    shown = python(blocked).splitlines()

    assert shown[-1] == "True"
    assert len(shown) == 2
    assert "not available (blocked)" in shown[0]
