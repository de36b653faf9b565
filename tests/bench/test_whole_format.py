"""The conversation of an exercise, and what is taken from an answer."""

from __future__ import annotations

from pilotfish.bench.whole_format import answered_files, fenced, messages

FILES = {"src/lib.rs": "pub fn a() {}\n", "notes.md": "```\nfenced\n```\n"}


def test_the_conversation_has_the_order_and_roles_of_aider():
    conversation = messages("# Instructions\n\nDo it.", FILES)

    roles = [m["role"] for m in conversation]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user", "assistant", "user"]
    assert "src/lib.rs\n```\npub fn a() {}\n```" in conversation[5]["content"]
    assert "notes.md\n````\n```\nfenced" in conversation[5]["content"]
    assert conversation[7]["content"].startswith("# Instructions\n\nDo it.")
    assert "src/lib.rs, notes.md" in conversation[7]["content"]
    rules = conversation[0]["content"].split("\n\n", 1)[1]
    assert conversation[7]["content"].endswith(rules)  # a reminder, as in aider


def test_a_fence_is_longer_than_any_in_the_content():
    assert fenced("a") == "```\na\n```"
    assert fenced("````\n").startswith("`````\n")


def test_files_are_found_however_their_name_is_written():
    answer = (
        "Here it is.\n\n**src/lib.rs**\n```rust\npub fn a() { b() }\n```\n\n"
        "`notes.md`\n````\n```\nx\n```\n````\n\nother.py\n```\nno\n```\n"
    )

    assert answered_files(answer, FILES) == {"src/lib.rs": "pub fn a() { b() }\n", "notes.md": "```\nx\n```\n"}
    assert answered_files("lib.rs\n```\nfirst\n```\n\nlib.rs\n```\nsecond\n```\n", FILES) == {"src/lib.rs": "second\n"}


def test_an_unfinished_answer_gives_no_file():
    assert answered_files("src/lib.rs\n```\npub fn", FILES) == {}
