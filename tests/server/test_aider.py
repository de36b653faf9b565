"""Real aider edits a file through both of its routes; the answer is scripted, the path is not."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.servers import ROOT, Running

AIDER = Path(os.environ.get("PILOTFISH_AIDER") or ROOT / ".venv-aider" / "bin" / "aider")
OFFLINE = ["--no-check-update", "--analytics-disable", "--no-show-model-warnings", "--no-show-release-notes",
           "--no-detect-urls", "--no-git", "--yes-always", "--no-pretty", "--map-tokens", "0",
           "--no-suggest-shell-commands", "--no-auto-lint"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("route", ["openai", "ollama_chat"])
def test_aider_edits_a_file(scripted: Running, tmp_path: Path, route: str, stream: bool):
    if not AIDER.is_file():
        pytest.skip("aider is not installed: make clients")
    model, extra = f"{route}/scripted", {"extra_body": {"reasoning_effort": "none"}}
    if route == "ollama_chat":
        extra = {"num_ctx": 4000, "think": False}
    settings = [{"name": model, "edit_format": "whole", "use_temperature": 0, "extra_params": {"timeout": 60, **extra}}]
    (tmp_path / "settings.yml").write_text(json.dumps(settings))  # JSON is YAML
    (tmp_path / "double.py").write_text("def double(n):\n    pass\n")
    (tmp_path / "task.md").write_text("Please edit double.py so that it doubles.")
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "OPENAI_BASE_URL")} | {
        "OPENAI_API_BASE": scripted.url + "/v1", "OPENAI_API_KEY": "x", "OLLAMA_API_BASE": scripted.url,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    done = subprocess.run(
        [str(AIDER), "--model", model, "--model-settings-file", "settings.yml", "--edit-format", "whole", *OFFLINE,
         "--stream" if stream else "--no-stream", "--message-file", "task.md", "double.py"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "double.py").read_text() == "def double(n):\n    return 2 * n\n", done.stdout + done.stderr
    assert "Tokens: " in done.stdout
