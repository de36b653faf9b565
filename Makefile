# The one runner of commands. Each target makes .venv itself; nothing else has to be installed but Python 3.11-3.14.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.installed
# Client packages that the server is tested with; they do not resolve together with each other or with pilotfish.
CLIENTS := .venv-clients/.installed .venv-aider/.installed

.PHONY: demo serve test fast check fix clients clean

demo: $(DONE)  ## watch nano write Python, drafted tokens in colour, and check the text against plain decoding
	$(BIN)/pilotfish run nano --file examples/demo_prompt.txt --max-tokens 250 --seed 2 --stats --check

serve: $(DONE)  ## the server, for clients of Ollama, OpenAI and Anthropic
	$(BIN)/pilotfish serve

test: check clients  ## everything CI runs: the checks below, then all tests
	$(BIN)/pytest

fast: $(DONE)  ## the tests that take seconds
	$(BIN)/pytest -m "not slow"

check: $(DONE)  ## formatting, lint, types, import order
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(DONE)  ## repair what ruff can repair
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(DONE): pyproject.toml CMakeLists.txt $(wildcard src/pilotfish/kernels/cpu/native/*)
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 15) else "pilotfish needs Python 3.11 to 3.14, this is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clients: $(CLIENTS)  ## the real client packages, each set in an environment of its own

.venv-%/.installed: tests/server/clients/%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

clean:
	rm -rf $(VENV) .venv-clients .venv-aider dist build
