"""The real client packages, in an environment of their own, against a real server."""

from __future__ import annotations

import pytest

from tests.server.test_aider import AIDER
from tests.servers import Running

pytestmark = pytest.mark.slow


def test_ollama_python(server: Running, client_script):
    assert client_script("ollama_nano", server) == "ok"


def test_ollama_python_with_tools_and_thinking(scripted: Running, client_script):
    assert client_script("ollama_agent", scripted) == "ok"


def test_openai_python(server: Running, client_script):
    assert client_script("openai_nano", server) == "ok"


def test_openai_python_with_tools(scripted: Running, client_script):
    assert client_script("openai_agent", scripted) == "ok"


def test_anthropic_python(scripted: Running, client_script):
    assert client_script("anthropic_agent", scripted) == "ok"


def test_litellm(scripted: Running, client_script):
    assert client_script("litellm_agent", scripted) == "ok"


def test_the_litellm_that_aider_pins(scripted: Running, client_script):
    if not AIDER.is_file():
        pytest.skip("aider is not installed: make clients")
    assert client_script("litellm_agent", scripted, python=AIDER.parent / "python") == "ok"


def test_langchain_ollama(scripted: Running, client_script):
    assert client_script("langchain_agent", scripted) == "ok"
