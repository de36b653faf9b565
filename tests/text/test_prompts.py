"""Prompt files and chat templates."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.errors import OptionError
from pilotfish.text.prompts import read_prompts
from pilotfish.text.template import chat_ids, chat_text, raw_ids
from tests.conftest import POLYGLOT


def test_polyglot_tasks_become_one_user_turn_with_instructions_and_files():
    prompts = read_prompts(POLYGLOT)

    assert len(prompts) == 225
    [message] = prompts[0]
    assert message["role"] == "user"
    assert "convert" in message["content"].lower()
    assert "all_your_base.cpp\n```cpp" in message["content"]


def test_json_lines_may_mix_strings_prompts_and_messages(tmp_path: Path):
    file = tmp_path / "p.jsonl"
    file.write_text('"a"\n{"prompt": "b"}\n\n{"messages": [{"role": "user", "content": "c"}]}\n')

    assert read_prompts(file) == ["a", "b", [{"role": "user", "content": "c"}]]
    assert read_prompts(file, limit=1) == ["a"]


def test_other_files_hold_a_prompt_a_line(tmp_path: Path):
    file = tmp_path / "p.txt"
    file.write_text("one\n\ntwo\n")

    assert read_prompts(file) == ["one", "two"]


def test_a_limit_spreads_over_the_file(tmp_path: Path):
    file = tmp_path / "p.txt"
    file.write_text("\n".join(map(str, range(10))))

    assert read_prompts(file, limit=3) == ["0", "3", "6"]
    assert read_prompts(file, limit=99) == read_prompts(file)


@pytest.mark.parametrize(("content", "message"), [
    (b"", "holds no prompts"), (b"{bad\n", r"p\.jsonl:1 is not valid JSON"),
    (b'"ok"\n{"x": 1}\n', r"p\.jsonl:2 is no prompt"),
    (b"\xff\xfe", "cannot read prompts"),
])  # fmt: skip
def test_bad_files_are_refused_with_their_line(tmp_path: Path, content: bytes, message: str):
    file = tmp_path / "p.jsonl"
    file.write_bytes(content)

    with pytest.raises(OptionError, match=message):
        read_prompts(file)


def test_bos_stands_at_the_start_exactly_once(engine):
    tokenizer = engine.model.tokenizer

    assert raw_ids(tokenizer, "hi", needs_bos=True).count(2) == 1
    assert raw_ids(tokenizer, "<bos>hi", needs_bos=True).count(2) == 1
    ids = chat_ids(tokenizer, chat_text(tokenizer, [{"role": "user", "content": "hi"}]))
    assert (ids[0], ids.count(2)) == (2, 1)


@pytest.mark.parametrize("message", [{"content": "x"}, {"role": "user"}, {"role": 1, "content": "x"}])
def test_messages_without_role_or_content_are_refused(engine, message):
    with pytest.raises(OptionError, match="role and content"):
        chat_ids(engine.model.tokenizer, chat_text(engine.model.tokenizer, [message]))
