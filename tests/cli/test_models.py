"""Model commands on a library of the test's own, and on a running server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.servers import Running


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PILOTFISH_MODELS", str(tmp_path / "library"))
    return tmp_path / "library"


@pytest.mark.parametrize("draft", ["lookup", "none", "assistant", "auto"])
def test_a_modelfile_names_the_kind_of_drafter(pilotfish, tiny: Path, tmp_path: Path, draft: str):
    file = tmp_path / "Modelfile"
    file.write_text(f"FROM {tiny}\nDRAFT {draft}\n")

    assert pilotfish("create", "mine", "-f", file)[0] == 0
    out = pilotfish("run", "mine", "ab" * 30, "--json", "--seed", 1, "--max-tokens", 5)[1]
    drafter = "assistant and lookup" if draft == "auto" else draft
    assert json.loads(out.splitlines()[-1])["stats"]["drafter"] == drafter


def test_a_model_is_made_listed_shown_used_copied_and_removed(pilotfish, tiny: Path, tmp_path: Path):
    file = tmp_path / "Modelfile"
    file.write_text(f"FROM {tiny}\nPARAMETER num_predict 5\nSYSTEM Be brief.\n")

    assert pilotfish("create", "mine", "-f", file)[0] == 0
    assert "| mine:latest |" in pilotfish("list")[1]
    assert {m["name"] for m in json.loads(pilotfish("list", "--json")[1])} == {"mine:latest", "nano:latest"}
    _, shown, _ = pilotfish("show", "mine")
    assert "Be brief." in shown
    assert "num_predict 5" in shown
    assert "not verified yet" in shown
    assert pilotfish("verify", "mine", "--limit", 1, "--max-tokens", 8)[0] == 0
    assert "exactness  same text as plain decoding, logits bitwise equal" in pilotfish("show", "mine")[1]
    assert "assistant" in shown
    code, out, _ = pilotfish("run", "mine", "hello", "--json", "--seed", 1)
    assert code == 0
    stats = json.loads(out.splitlines()[-1])["stats"]
    assert stats["tokens"] == 5
    assert stats["drafter"] == "assistant and lookup"
    assert pilotfish("cp", "mine", "yours")[0] == 0
    assert pilotfish("rm", "mine", "yours")[0] == 0
    assert "mine" not in pilotfish("list")[1]


@pytest.mark.parametrize(("command", "why"), [
    (["show", "none"], "model 'none' not found"), (["rm", "nano"], "ships with pilotfish"),
    (["cp", "none", "x"], 'model "none" not found'), (["pull", "llama3"], "'llama3' is not known"),
    (["create", "x", "-f", "/no/such/file"], "cannot read the Modelfile"), (["show", "../x"], "invalid model name"),
    (["run", "gemma4:31b", "hi"], "pilotfish pull can bring"),
    (["ps"], "start one with pilotfish serve"), (["stop", "nano"], "start one with pilotfish serve"),
])  # fmt: skip
def test_every_mistake_is_one_line(pilotfish, monkeypatch: pytest.MonkeyPatch, command: list[str], why: str):
    monkeypatch.setenv("PILOTFISH_HOST", "127.0.0.1:9")
    code, _, err = pilotfish(*command)

    assert code == 1
    assert why in err
    assert len(err.strip().splitlines()) == 1


def test_ps_and_stop_ask_a_running_server(pilotfish, server: Running, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OLLAMA_HOST", server.url)
    server.post("/api/generate", {"model": "nano"})
    assert "| nano:latest |" in pilotfish("ps")[1]
    assert pilotfish("stop", "nano")[1] == "stopped nano\n"
    assert "nano" not in pilotfish("ps")[1]
    code, _, err = pilotfish("stop", "none")
    assert (code, err) == (1, "pilotfish: model 'none' not found\n")


def test_a_taken_port_is_named(pilotfish, server: Running):
    code, _, err = pilotfish("serve", "--host", server.url.removeprefix("http://"))
    assert code == 1
    assert "cannot listen on 127.0.0.1" in err
    assert "--host" in err
