"""Stop strings, however the text falls into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilotfish.text.stops import StopStrings

letters = st.text(alphabet="ab", min_size=1, max_size=3)


@given(pieces=st.lists(st.text(alphabet="abc", max_size=4), max_size=8), stops=st.lists(letters, max_size=3))
def test_pieces_pass_up_to_the_first_stop_completed(pieces: list[str], stops: list[str]):
    watch = StopStrings(stops)
    shown = ""
    for piece in pieces:
        shown += watch.add(piece)
        if watch.stopped:
            break
    shown += watch.finish()

    text = "".join(pieces)
    if not any(s in text for s in stops):
        assert (shown, watch.stopped) == (text, False)
        return
    assert watch.stopped
    assert text.startswith(shown)
    assert not any(s in shown for s in stops)
    assert any(text.startswith(s, len(shown)) for s in stops)


def test_a_stop_split_over_three_pieces_is_found_and_not_shown():
    watch = StopStrings(["END"])

    assert [watch.add(p) for p in ("one E", "N", "D two")] == ["one ", "", ""]
    assert watch.stopped


def test_the_start_of_a_stop_that_never_comes_is_shown_late():
    watch = StopStrings(["END"])

    assert [watch.add("EN"), watch.add("D" * 0), watch.finish()] == ["", "", "EN"]


def test_of_two_stops_the_one_that_begins_first_cuts():
    watch = StopStrings(["bc", "abcd"])

    assert watch.add("xabcd") == "x"
