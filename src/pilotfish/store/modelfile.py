"""Modelfiles: FROM, DRAFT, PARAMETER, SYSTEM, TEMPLATE, MESSAGE, LICENSE; triple quotes hold values of many lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pilotfish.errors import OptionError

TRIPLE = '"""'
FLOATS = ("temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "typical_p")
INTEGERS = ("top_k", "seed", "num_predict", "num_ctx", "draft_num_predict", "repeat_last_n", "num_keep", "num_gpu",
            "num_thread", "num_batch")  # fmt: skip


@dataclass
class Modelfile:
    """What a Modelfile says."""

    source: str = ""
    draft: str = ""
    system: str = ""
    template: str = ""
    license: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)


def parse(text: str) -> Modelfile:
    """Read a Modelfile. Raises OptionError naming the line."""
    out = Modelfile()
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        number, line = at + 1, lines[at].strip()
        at += 1
        if not line or line.startswith("#"):
            continue
        command, _, value = line.partition(" ")
        value = value.strip()
        if TRIPLE in value and value.count(TRIPLE) == 1:
            while at < len(lines) and TRIPLE not in lines[at]:
                value += "\n" + lines[at]
                at += 1
            if at == len(lines):
                raise OptionError(f"(line {number}): {TRIPLE} is never closed")
            value += "\n" + lines[at].rstrip()
            at += 1
        try:
            _take(out, command.upper(), value)
        except OptionError as error:
            raise OptionError(f"(line {number}): {error}") from error
    if not out.source:
        raise OptionError("no FROM line")
    return out


def as_modelfile(source: str, draft: str, system: str, template: str, parameters: dict[str, Any]) -> str:
    """The text that `parse` reads back."""
    lines = [f"FROM {source}"]
    if draft not in ("", "auto"):
        lines.append(f"DRAFT {draft}")
    lines += [f"TEMPLATE {TRIPLE}{template}{TRIPLE}"] if template else []
    lines += [f"SYSTEM {TRIPLE}{system}{TRIPLE}"] if system else []
    for name, value in parameters.items():
        lines += [f"PARAMETER {name} {v}" for v in (value if isinstance(value, list) else [value])]
    return "\n".join(lines) + "\n"


def parameter(name: str, value: str) -> Any:
    """A parameter's value by its type. Raises OptionError."""
    try:
        if name in FLOATS:
            return float(value)
        if name in INTEGERS:
            return int(value)
    except ValueError as error:
        raise OptionError(f"PARAMETER {name} must be a number, got {value!r}") from error
    if name == "stop":
        return value
    raise OptionError(f"PARAMETER {name} is not known")


def check_template(template: str) -> None:
    """Raise OptionError for a template in Go's syntax."""
    if "{%" not in template and "messages" not in template:
        raise OptionError("TEMPLATE must be jinja, over `messages`; Ollama's Go templates are not supported")


def _take(out: Modelfile, command: str, value: str) -> None:
    if command == "PARAMETER":
        name, _, rest = value.partition(" ")
        parsed = parameter(name.lower(), _unquoted(rest.strip()))
        if name.lower() == "stop":
            out.parameters.setdefault("stop", []).append(parsed)
        else:
            out.parameters[name.lower()] = parsed
    elif command == "MESSAGE":
        role, _, content = value.partition(" ")
        if role not in ("system", "user", "assistant"):
            raise OptionError(f"MESSAGE needs a role (system, user, assistant), got {role!r}")
        out.messages.append({"role": role, "content": _unquoted(content.strip())})
    elif command == "TEMPLATE":
        out.template = _unquoted(value)
        check_template(out.template)
    elif command in ("FROM", "DRAFT", "SYSTEM", "LICENSE"):
        setattr(out, "source" if command == "FROM" else command.lower(), _unquoted(value))
    elif command == "ADAPTER":
        raise OptionError("ADAPTER is not supported; merge the adapter into the checkpoint first")
    elif command not in ("RENDERER", "PARSER", "REQUIRES"):
        raise OptionError(
            f"command must be one of FROM, DRAFT, PARAMETER, SYSTEM, TEMPLATE, MESSAGE, LICENSE; got {command}"
        )


def _unquoted(value: str) -> str:
    for quote in (TRIPLE, '"'):
        if value.startswith(quote) and value.endswith(quote) and len(value) >= 2 * len(quote):
            inner = value[len(quote) : -len(quote)]
            return inner.removeprefix("\n") if quote == TRIPLE else inner.replace('\\"', '"')
    return value
