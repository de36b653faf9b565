"""What the environment sets."""

from __future__ import annotations

import pytest

from pilotfish.config import parse_duration, parse_host, settings


@pytest.mark.parametrize(("text", "where"), [
    ("0.0.0.0", ("0.0.0.0", 11434)), (":5000", ("127.0.0.1", 5000)), ("http://example", ("example", 80)),
    ("https://example/path", ("example", 443)), ("https://example:8", ("example", 8)), ("[::1]:9", ("::1", 9)),
    ("::1", ("::1", 11434)), ("host:notaport", ("host", 11434)), ("", ("127.0.0.1", 11434)),
])  # fmt: skip
def test_hosts(text: str, where: tuple[str, int]):
    assert parse_host(text) == where


@pytest.mark.parametrize(("text", "seconds"), [
    ("5m", 300), ("1h30m", 5400), ("-1", -1), ("-1s", -1), ("300", 300), (0, 0), ("1.5s", 1.5), ("100ms", 0.1),
])  # fmt: skip
def test_durations(text, seconds: float):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["soon", "5 m", "m", "1h x"])
def test_what_is_no_duration_is_refused(text: str):
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


def test_own_variables_come_before_ollamas_and_bad_ones_are_named(caplog: pytest.LogCaptureFixture):
    found = settings({"OLLAMA_HOST": '"1.2.3.4"', "PILOTFISH_HOST": "5.6.7.8:1", "OLLAMA_KEEP_ALIVE": "-1",
                      "OLLAMA_MAX_QUEUE": "many", "OLLAMA_ORIGINS": "a, b", "PILOTFISH_API_KEY": "k",
                      "PILOTFISH_CACHE_BYTES": "0"})  # fmt: skip

    assert (found.host, found.port, found.keep_alive) == ("5.6.7.8", 1, -1)
    assert (found.max_queue, found.origins, found.api_key, found.cache_bytes) == (512, ("a", "b"), "k", 0)
    assert "OLLAMA_MAX_QUEUE is 'many'" in caplog.text
    assert settings({"OLLAMA_API_KEY": "x"}).api_key is None
