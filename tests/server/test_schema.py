"""The OpenAPI description against the server, by schemathesis."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.servers import CLIENTS, Running


@pytest.mark.slow
def test_no_request_that_fits_the_description_or_not_ends_in_a_500(server: Running):
    schemathesis = CLIENTS.parent / "schemathesis"
    if not schemathesis.is_file():
        pytest.skip("the client packages are not installed: make clients")
    checks = ["--checks", "not_a_server_error,status_code_conformance", "--phases", "examples,coverage,fuzzing"]
    left_out = ["--exclude-path-regex", "^/api/(pull|create|delete|copy|blobs)"]
    done = subprocess.run(
        [str(schemathesis), "run", server.url + "/openapi.json", *checks, *left_out, "--max-examples=15", "--seed=1"],
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
