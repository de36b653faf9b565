"""The command line as a person meets it: output, exit codes, one line for every mistake."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PILOTFISH = [sys.executable, "-m", "pilotfish"]


def test_run_prints_the_same_text_with_drafting_and_without(pilotfish, tiny: Path):
    outputs = [
        pilotfish("run", tiny, "hello", "--max-tokens", 24, "--seed", 3, *extra)[:2]
        for extra in (["--depth", 4], ["--depth", 0], ["--no-draft"], ["--draft", tiny / "assistant"])
    ]

    assert outputs[0][0] == 0
    assert len(outputs[0][1]) > 5
    assert all(o == outputs[0] for o in outputs)


def test_stats_and_check_say_what_drafting_did(pilotfish, tiny: Path):
    code, _, err = pilotfish("run", tiny, "hello", "--max-tokens", 24, "--seed", 3, "--stats", "--check")

    assert code == 0
    assert "24 tokens, " in err
    assert "accepted per round, same text as plain: yes" in err
    assert "drafter  assistant and lookup, same-text" in err
    assert "depth  auto; over time " in err


def test_json_lines_hold_the_events_and_end_with_stats(pilotfish, tiny: Path):
    code, out, _ = pilotfish("run", tiny, "hello", "--max-tokens", 12, "--seed", 3, "--json")

    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert sum(len(e["tokens"]) for e in events) == 12
    assert (events[-1]["finish_reason"], events[-1]["stats"]["seed"]) == ("length", 3)


def test_raw_text_and_chat_are_different_prompts(pilotfish, tiny: Path):
    raw, chat = (
        json.loads(pilotfish("run", tiny, "hello", "--max-tokens", 2, "--json", *extra)[1].splitlines()[-1])
        for extra in (["--raw"], [])
    )

    assert raw["stats"]["prompt_tokens"] == 6
    assert chat["stats"]["prompt_tokens"] > 12


def test_a_prompt_may_come_from_a_file_or_standard_input(tiny: Path, tmp_path: Path):
    file = tmp_path / "prompt.txt"
    file.write_text("hello é")
    command = [*PILOTFISH, "run", tiny, "--max-tokens", "12", "--seed", "3"]

    from_file = subprocess.run([*command, "--file", file], capture_output=True, check=True)
    from_pipe = subprocess.run(command, input=file.read_bytes(), capture_output=True, check=True)

    assert from_file.stdout == from_pipe.stdout != b"\n"


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["run", "no/where/x", "hi"], 1, "no model at no/where/x"),
    (["run", "someone/not-downloaded", "hi"], 1, "pilotfish pull someone/not-downloaded"),
    (["run", "{tmp}", "hi"], 1, "holds no config.json"),
    (["run", "{tiny}", ""], 1, "the prompt is empty"),
    (["run", "{tiny}", "hi", "--max-tokens", "-3"], 1, "max_tokens is -3"),
    (["run", "{tiny}", "hi", "--max-tokens", "many"], 2, "Invalid value for '--max-tokens'"),
    (["run", "{tiny}", "hi", "--temperature", "warm"], 2, "Invalid value for '--temperature'"),
    (["run", "{tiny}", "hi", "--temperature", "-1"], 1, "temperature is -1"),
    (["run", "{tiny}", "hi", "--temperature", "nan"], 1, "temperature is nan"),
    (["run", "{tiny}", "hi", "--top-p", "2"], 1, "top_p is 2"),
    (["run", "{tiny}", "hi", "--depth", "-1"], 1, "depth is -1"),
    (["run", "{tiny}", "hi", "--depth", "99"], 1, "depth is 99, but the caches have room for 16"),
    (["run", "{tiny}", "hi", "--seed", "-1"], 1, "seed is -1"),
    (["run", "{tiny}", "hi", "--seed", "99999999999999999999"], 1, "seed is 99999999999999999999"),
    (["run", "{tiny}", "hi", "--draft", "x", "--no-draft"], 1, "--draft and --no-draft contradict"),
    (["run", "{tiny}", "hi", "--no-draft", "--depth", "2"], 1, "depth 2 needs a drafter"),
    (["run", "{tiny}", "hi", "--stop", ""], 1, "stop string is empty"),
    (["run", "{tiny}", "hi", "--acceptance", "maybe"], 1, "must be one of: same-text, rejection"),
    (["run", "{tiny}", "hi", "--file", "x"], 1, "not both"),
    (["run", "{tiny}", "hi", "--check", "--acceptance", "rejection"], 1, "use same-text"),
    (["run", "{tiny}", "--file", "/no/such/file"], 1, "cannot read the prompt from /no/such/file"),
    (["run", "{tiny}", "hi", "--draft", "{tiny}"], 1, "cannot draft"),
    (["run", "{tiny}", "hi", "--dtype", "int4"], 1, "dtype is 'int4'"),
    (["run", "{tiny}", "x" * 5000], 1, "maximum context length is 4096"),
    (["run", "{tiny}", "hi", "--frobnicate"], 2, "No such option"),
    (["verify", "{tiny}", "--prompts", "/no/such/file"], 1, "cannot read prompts"),
    (["verify", "{tiny}", "--max-tokens", "0"], 2, "Invalid value for '--max-tokens'"),
    (["bench", "acceptance", "{tiny}", "--depth", "0"], 2, "Invalid value for '--depth'"),
    (["bench", "acceptance", "{tiny}", "--depth", "40"], 1, "room for 16"),
    (["swim"], 2, "No such command"),
])  # fmt: skip
def test_every_mistake_is_one_line_with_a_way_out(pilotfish, tiny: Path, tmp_path: Path, arguments, code, message):
    filled = [a.replace("{tiny}", str(tiny)).replace("{tmp}", str(tmp_path)) for a in arguments]

    got, out, err = pilotfish(*filled)

    assert got == code
    assert message in err
    assert err.startswith("pilotfish: ")
    assert err.count("\n") == 1
    assert out == ""


def test_standard_input_that_is_not_utf8_is_refused(tiny: Path):
    done = subprocess.run([*PILOTFISH, "run", tiny], input=b"caf\xe9", capture_output=True, check=False)

    assert done.returncode == 1
    assert done.stderr == b"pilotfish: standard input is not UTF-8 (byte 3); convert it first\n"


def test_ctrl_c_keeps_what_was_printed_and_exits_130(copy_of_tiny: Path):
    config = copy_of_tiny / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"suppress_tokens": [1, 50, 106]}))  # never ends
    shape = json.loads((copy_of_tiny / "config.json").read_text())
    (shape.get("text_config") or shape)["max_position_embeddings"] = 10**6
    (copy_of_tiny / "config.json").write_text(json.dumps(shape))
    command = [*PILOTFISH, "run", copy_of_tiny, "hello", "--seed", "3", "--raw"]
    # A shell that runs things in the background lets them ignore the signal, and their children inherit that.
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **heed) as process:
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert first
    assert rest.endswith(b"\n")
    assert b"Traceback" not in err


def test_a_closed_pipe_is_no_traceback(tiny: Path):
    command = [*PILOTFISH, "run", tiny, "hello", "--seed", "3", "--max-tokens", "200", "--raw"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()

    assert b"Traceback" not in err


def test_a_terminal_shows_drafted_tokens_in_colour_and_chats(tiny: Path):
    """A real pseudo-terminal: two turns, then end of input."""
    main, side = pty.openpty()
    command = [*PILOTFISH, "run", tiny, "--max-tokens", "60", "--temperature", "0", "--depth", "4", "--stats"]
    with subprocess.Popen(command, stdin=side, stdout=side, stderr=side, close_fds=True) as process:
        os.close(side)
        os.write(main, b"hello\nagain\n\x04")
        shown = b""
        while True:
            try:
                chunk = os.read(main, 4096)
            except OSError:  # the other side has closed
                break
            if not chunk:
                break
            shown += chunk
    os.close(main)

    assert process.returncode == 0
    assert shown.count(b" tokens, ") == 2
    assert b"\x1b[32m" in shown


def test_verify_proves_the_same_text_and_exits_0(pilotfish, tiny: Path):
    code, out, _ = pilotfish("verify", tiny, "--max-tokens", 12, "--limit", 2)

    assert code == 0
    assert "all texts the same: yes" in out
    assert "logits bitwise equal: yes" in out


def test_verify_speaks_json(pilotfish, tiny: Path):
    code, out, _ = pilotfish("verify", tiny, "--max-tokens", 6, "--limit", 1, "--json")

    report = json.loads(out)
    assert code == 0
    assert report["same_text"] is report["same_logits"] is True
    assert {(c["mode"], c["depth"]) for c in report["comparisons"]} == {
        (m, d) for m in ("greedy", "sampled") for d in (1, 2, 3, 5, 8)
    }


def test_verify_needs_a_drafter(pilotfish, tiny: Path, tmp_path: Path):
    from pilotfish.testing.checkpoints import write_tiny

    code, _, err = pilotfish("verify", write_tiny(tmp_path / "m", "llama"))

    assert (code, err.count("\n")) == (1, 1)
    assert "without a drafter" in err


def test_bench_acceptance_prints_a_table(pilotfish, tiny: Path):
    code, out, _ = pilotfish("bench", "acceptance", tiny, "--limit", 2, "--max-tokens", 16, "--depth", 2)

    assert code == 0
    assert [line.split("|")[1].strip() for line in out.splitlines()[2:]] == [
        "greedy", "sampled, same-text", "sampled, rejection",
    ]  # fmt: skip


@pytest.mark.parametrize("code", ["import pilotfish", "import sys; sys.argv = ['pilotfish', '--help']; "
                                  "from pilotfish.cli import _main; _main()"])  # fmt: skip
def test_importing_and_asking_for_help_load_nothing_heavy(code: str):
    heavy = "{'mlx', 'mlx_lm', 'transformers', 'numpy', 'huggingface_hub', 'tokenizers'}"
    check = f"{code}; import sys; found = {heavy} & set(sys.modules); assert not found, found"

    subprocess.run([sys.executable, "-c", check], check=True, capture_output=True)


def test_version(pilotfish):
    from pilotfish import __version__

    assert pilotfish("--version")[:2] == (0, f"pilotfish {__version__}\n")


def test_a_schema_in_a_file_is_satisfied(pilotfish, tiny: Path, tmp_path: Path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["yes", "no"]}')

    code, out, err = pilotfish("run", tiny, "well?", "--format", schema, "--seed", 2, "--check", "--max-tokens", 20)

    assert code == 0
    assert json.loads(out) in ("yes", "no")
    assert "same text as plain: yes" in err


def test_log_probabilities_and_penalties_reach_the_engine(pilotfish, tiny: Path):
    options = ["run", tiny, "hello", "--json", "--seed", 3, "--max-tokens", 6]
    wishes = ("--logprobs", 2, "--repetition-penalty", 1.9, "--presence-penalty", 1, "--frequency-penalty", 1)
    plain, more = (pilotfish(*options, *extra)[1].splitlines() for extra in ((), wishes))
    events = [json.loads(line) for line in more]
    assert [len(p["top"]) for e in events for p in e["logprobs"]] == [2] * 6
    assert [t for e in events for t in e["tokens"]] != [t for line in plain for t in json.loads(line)["tokens"]]


@pytest.mark.parametrize(("options", "why"), [
    (("--format", "missing.json"), "cannot read missing.json"), (("--logprobs", 2), "--logprobs needs --json"),
    (("--raw", "--think"), "contradict each other"), (("--think",), "does not support thinking"),
    (("--thinking-budget", -1), "thinking_budget is -1"), (("--json", "--logprobs", 99), "logprobs is 99"),
])  # fmt: skip
def test_wishes_that_cannot_be_met_are_one_line(pilotfish, tiny: Path, options: tuple, why: str):
    code, _, err = pilotfish("run", tiny, "x", *options)
    assert code == 1
    assert why in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("text", ["not json", "[1]", '{"type": "nothing"}'])
def test_schemas_that_are_none_are_one_line(pilotfish, tiny: Path, tmp_path: Path, text: str):
    (tmp_path / "s.json").write_text(text)
    code, _, err = pilotfish("run", tiny, "x", "--format", tmp_path / "s.json")
    assert (code, len(err.strip().splitlines())) == (1, 1)
    assert "schema" in err or "JSON" in err


def test_wishes_and_masks_are_benched(pilotfish, tiny: Path, tmp_path: Path):
    options = ["bench", "requests", "--model", tiny, "--max-tokens", 4, "--seeds", 1, "--repeats", 1,
               "--wish", "penalties", "--results", tmp_path / "r.jsonl"]  # fmt: skip
    code, out, _ = pilotfish(*options, "--json")
    again = pilotfish(*options, "--report", tmp_path / "r.md")
    assert (code, again[0]) == (0, 0)
    nothing, penalties = json.loads(out)
    assert (nothing["wish"], nothing["speed_over_nothing"], penalties["same_text"]) == ("nothing", 1.0, 6)
    assert "| penalties |" in (tmp_path / "r.md").read_text()
    code, _, err = pilotfish("bench", "requests", "--model", tiny, "--wish", "a pony")
    assert code == 1
    assert "--wish is 'a pony'" in err
    rows = json.loads(pilotfish("bench", "masks", "--model", tiny, "--repeats", 1, "--json")[1])
    assert all(row["microseconds"] > 0 for row in rows)
