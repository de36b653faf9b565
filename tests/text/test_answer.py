"""Answers taken apart: the same parts however tokens fall into rounds, and nothing lost or leaked."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from itertools import combinations, groupby, pairwise

import pytest
from tokenizers import Tokenizer

from pilotfish.store.names import resolve
from pilotfish.testing.checkpoints import AGENT_MARKS, SPECIAL, byte_tokenizer
from pilotfish.text.answer import Answer, Kind, Part
from pilotfish.text.tools import ToolCall, parse_call

NANO = Tokenizer.from_file(str(resolve("nano") / "tokenizer.json"))
TOKENIZER = byte_tokenizer(512, SPECIAL | AGENT_MARKS)
MARKS = [m for m in AGENT_MARKS.values() if m != '<|"|>']


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def parts(text: str, stops: tuple[str, ...] = (), prompt: str = "<|turn>model\n") -> tuple[list[Part], Answer]:
    answer = Answer(TOKENIZER, ids(prompt), stops, frozenset({1, 106}))
    found: list[Part] = []
    for token in ids(text):
        found += answer.add(token)
        if answer.stopped:
            break
    return found + answer.finish(), answer


def said(text: str, **options) -> dict[str, str]:
    found, _ = parts(text, **options)
    return {kind: "".join(p.text for p in found if p.kind == kind) for kind in (Kind.TEXT, Kind.THINKING)} | {
        Kind.CALL: [p.call for p in found if p.call]
    }


@pytest.mark.parametrize(("text", "visible", "thinking", "calls"), [
    ("plain", "plain", "", 0),
    ("<|channel>thought\nhm<channel|>then", "then", "hm", 0),
    ("<|channel>thought\n<channel|>then", "then", "", 0),
    ("<|channel>thought<channel|>then", "then", "", 0),
    ("<|channel>thought\none<channel|>a<|channel>thought\ntwo<channel|>b", "ab", "onetwo", 0),
    ("<|channel>thought\nnever closed", "", "never closed", 0),
    ("<|channel><|channel>thought\ntwice<channel|>x", "x", "twice", 0),
    ("x<channel|>y", "xy", "", 0),
    ("a<|tool_call>call:f{}<tool_call|>b<|tool_call>call:g{}<tool_call|>", "ab", "", 2),
    ("<|tool_call>call:f{n:1}", "", "", 1),  # the end mark never came
    ("<|tool_call>nonsense<tool_call|>", "nonsense", "", 0),
    ("<|tool_call>call:f{a:<tool_call|>", "call:f{a:", "", 0),
    ("<|channel>thought\nhm<|tool_call>call:f{}<tool_call|>", "", "hm", 1),
    ("äöü <|channel>thought\nß<channel|>漢字", "äöü 漢字", "ß", 0),
])  # fmt: skip
def test_parts(text: str, visible: str, thinking: str, calls: int):
    found = said(text)
    assert (found[Kind.TEXT], found[Kind.THINKING], len(found[Kind.CALL])) == (visible, thinking, calls)


def test_a_prompt_that_opens_the_thought_is_continued():
    assert said("still<channel|>now", prompt="<|turn>model\n<|channel>thought\n")[Kind.THINKING] == "still"
    assert said("now", prompt="<|turn>model\n<|channel>thought\n<channel|>")[Kind.TEXT] == "now"
    assert said("now", prompt="<|channel>thought\nold<turn|><|turn>model\n")[Kind.TEXT] == "now"


def test_stop_strings_end_text_but_not_thinking():
    found, answer = parts("<|channel>thought\nSTOP here<channel|>go on STOP never", ("STOP",))
    assert "".join(p.text for p in found if p.kind == Kind.TEXT) == "go on "
    assert answer.stop_string == "STOP"


def test_text_held_back_for_a_stop_string_comes_before_what_follows_it():
    found, _ = parts("ab ST<|tool_call>call:f{}<tool_call|>", ("STOP",))
    assert [p.kind for p in found] == [Kind.TEXT, Kind.TEXT, Kind.TEXT, Kind.TEXT, Kind.CALL] or found[-1].call
    assert "".join(p.text for p in found) == "ab ST"
    assert found[-1].call == ToolCall("f", {})


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("call:f{}", {}),
        ('call:f{a:<|"|>x {y}, "z" [1]:<|"|>}', {"a": 'x {y}, "z" [1]:'}),
        (
            'call:f{a:1,b:-2.5e3,c:true,d:false,e:null,f:<|"|><|"|>}',
            {"a": 1, "b": -2500.0, "c": True, "d": False, "e": None, "f": ""},
        ),
        ("call:f{a:{b:{c:[1,[2,{d:3}]]}}}", {"a": {"b": {"c": [1, [2, {"d": 3}]]}}}),
        ('call:f{a:[<|"|>x<|"|>,<|"|>y<|"|>]}', {"a": ["x", "y"]}),
        ('call:f{<|"|>odd key<|"|>:1, some-key : 2 }', {"odd key": 1, "some-key": 2}),
        ("call:f{unit:celsius}", {"unit": "celsius"}),
        ('call:f{a:"plain"}', {"a": "plain"}),
        ("call:f{a:1,}", {"a": 1}),
    ],
)
def test_calls_are_read(text: str, arguments: dict):
    assert parse_call(text) == ToolCall("f", arguments)


@pytest.mark.parametrize("text", [
    "", "call:", "call:f", "f{}", "call:f{", "call:f{a}", "call:f{a:}", "call:f{a:1}}", 'call:f{a:<|"|>x}', "call:f[1]",
    "call:f{a:1 b:2", "call:f" + "{a:" * 200 + "}" * 200,
])  # fmt: skip
def test_what_is_no_call_is_none(text: str):
    assert parse_call(text) is None


def value(chance: random.Random, depth: int = 0):
    kind = chance.randrange(7 if depth < 3 else 5)
    if kind == 0:
        return "".join(chance.choice("ab {}[]:,\"\\\n'é漢") for _ in range(chance.randrange(8)))
    if kind < 5:
        return [chance.randrange(-9, 9), chance.random(), True, None][kind - 1]
    if kind == 5:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {f"k{i}": value(chance, depth + 1) for i in range(chance.randrange(4))}


def written(thing) -> str:
    """As Gemma 4's template writes it."""
    if isinstance(thing, str):
        return f'<|"|>{thing}<|"|>'
    if isinstance(thing, list):
        return "[" + ",".join(map(written, thing)) + "]"
    if isinstance(thing, dict):
        return "{" + ",".join(f"{k}:{written(v)}" for k, v in thing.items()) + "}"
    return json.dumps(thing)


def test_any_arguments_survive_the_way_there_and_back():
    chance = random.Random(3)
    for _ in range(2000):
        arguments = {f"a{i}": value(chance) for i in range(chance.randrange(4))}
        (call,) = said(f"<|tool_call>call:tool{written(arguments)}<tool_call|>")[Kind.CALL]
        assert call == ToolCall("tool", arguments)


@pytest.mark.slow
def test_ten_thousand_strings_lose_nothing_and_leak_no_marker():
    chance = random.Random(5)
    pieces = [*MARKS, '<|"|>', "thought\n", "call:f{", "}", "a", "é", " ", "STOP", "ST", "{x:1}"]
    for _ in range(10_000):
        text = "".join(chance.choice(pieces) for _ in range(chance.randrange(1, 14)))
        stops = ("STOP",) if chance.random() < 0.5 else ()
        found, answer = parts(text, stops)
        shown = "".join(p.text for p in found if p.kind == Kind.TEXT)
        assert not any(m in shown for m in ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|turn>"))
        assert all(p.text or p.call for p in found)
        assert answer.stopped == bool(stops and answer.stop_string)
        if not stops and not any(m in text for m in ("<|channel>", "<|tool_call>")):
            plain = TOKENIZER.decode(ids(text), skip_special_tokens=True)
            assert shown == plain


ATOMS = ["<|channel>", "thought\n", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "call:f{", "}", "a:", ",",
         "é漢", "ST", "OP", " x", "1.5", "[", "]", "\n", "{"]  # fmt: skip
WHOLE = {a for a in ATOMS if a.startswith("<")}  # a mark is one token, wherever a text is cut


def chunkings(pieces: list[str]) -> set[tuple[int, ...]]:
    """Token sequences of a text that is cut in up to four places, each chunk tokenized by itself.

    pieces: the text, marks whole and everything else by character.
    """
    tokens = cache(lambda a, b: tuple(NANO.encode("".join(pieces[a:b]), add_special_tokens=False).ids))
    places = range(1, len(pieces))
    out = set()
    for count in range(5):
        for cuts in combinations(places, count):
            bounds = (0, *cuts, len(pieces))
            out.add(sum((tokens(a, b) for a, b in pairwise(bounds)), ()))
    return out


def essence_of(tokens: Sequence[int]) -> tuple[object, ...]:
    """What a stream of tokens says, neighbouring parts of a kind joined."""
    answer = Answer(NANO, [105], ("STOP",), frozenset({1, 106}))
    said: list[Part] = []
    for token in tokens:
        said += answer.add(token)
        if answer.stopped:
            break
    said += answer.finish()
    joined = [("".join(p.text for p in same), [p.call for p in same if p.call], kind)
              for kind, same in ((k, list(g)) for k, g in groupby(said, lambda p: p.kind))]  # fmt: skip
    return (*((text, tuple(map(str, calls)), kind) for text, calls, kind in joined), answer.stop_string)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_every_chunking_of_up_to_four_cuts_says_what_the_whole_says(seed: int):
    chance, seen = random.Random(seed), 0
    for _ in range(2500):
        atoms = [chance.choice(ATOMS) for _ in range(chance.randrange(2, 7))]
        pieces = [p for a in atoms for p in ([a] if a in WHOLE else a)]
        whole = essence_of(NANO.encode("".join(pieces), add_special_tokens=False).ids)
        for tokens in chunkings(pieces):
            assert essence_of(tokens) == whole, "".join(pieces)
            seen += 1
    assert seen > 20_000
