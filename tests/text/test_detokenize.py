"""Streamed text is whole UTF-8 at every step and adds up to the text of all tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilotfish.testing.checkpoints import byte_tokenizer
from pilotfish.text.detokenize import Detokenizer

TOKENIZER = byte_tokenizer()
ids = st.lists(st.integers(0, 511), max_size=30)


def streamed(tokens: list[int], prompt: list[int] = ()) -> list[str]:
    detokenizer = Detokenizer(TOKENIZER, prompt)
    return [*map(detokenizer.add, tokens), detokenizer.finish()]


@given(tokens=ids)
def test_pieces_add_up_to_the_whole_text(tokens: list[int]):
    assert "".join(streamed(tokens)) == TOKENIZER.decode(tokens, skip_special_tokens=True)


@given(text=st.text(max_size=20), cut=st.integers(0, 20))
def test_text_split_anywhere_in_its_bytes_never_shows_half_a_character(text: str, cut: int):
    tokens = TOKENIZER.encode(text, add_special_tokens=False).ids
    prompt, answer = tokens[:cut], tokens[cut:]

    pieces = streamed(answer, prompt)

    if TOKENIZER.decode(prompt).endswith("\ufffd"):
        return  # the prompt itself ends inside a character
    assert "".join(pieces) == TOKENIZER.decode(answer)
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_bytes_that_never_become_a_character_are_replaced_at_the_end():
    half = TOKENIZER.encode("é", add_special_tokens=False).ids[:1]

    assert streamed(half) == ["", "\ufffd"]


def test_special_tokens_have_no_text():
    assert "".join(streamed([105, *TOKENIZER.encode("hi", add_special_tokens=False).ids, 106])) == "hi"
