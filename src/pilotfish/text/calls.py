"""A grammar for answers that must be tool calls: Gemma 4's call syntax, with arguments as the tools' schemas say.

Of a schema, what gives arguments their shape is held to: types, properties and which of them are required, items and
how many, enum, const, anyOf, oneOf and references. Other keywords (pattern, format, ranges of numbers) are not: the
model reads them in the tool's declaration, as it does where no call is forced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pilotfish.errors import OptionError
from pilotfish.text.template import Tool
from pilotfish.text.tools import NAME

BARE_KEY = re.compile(r"[^\s:,{}\[\]\"<|>]+")
# No blanks between the parts of a JSON value: a model that likes blanks would never come to its end.
WITHOUT_BLANKS: Mapping[str, Any] = {"whitespace_flexible": False, "lenient": False}
MOST_REPEATED = 64  # items of an array that are counted one by one
TERMINALS = r"""
TEXT: /[^\x00]+/
INTEGER: /-?(0|[1-9][0-9]{0,14})/
NUMBER: /-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?/
KEY: /[A-Za-z_][A-Za-z0-9_-]{0,63}/
any: string | NUMBER | "true" | "false" | "null" | any_array | any_object
any_array: "[" (any ("," any)*)? "]"
any_object: "{" (KEY ":" any ("," KEY ":" any)*)? "}"
"""


class Marks(NamedTuple):
    """Ids of the tokens that begin and end a call, and that stand around strings."""

    call: int
    call_end: int
    quote: int


def calls_grammar(tools: Sequence[Tool], marks: Marks, one: bool, otherwise: Mapping[str, Any] | None = None) -> str:
    """Lark: calls of some of `tools`, exactly one if `one`. otherwise: a JSON schema that may be satisfied instead.

    Raises OptionError for a tool whose name cannot stand in a call.
    """
    rules = _Rules(marks)
    heads = []
    for tool in tools:
        function = tool["function"]
        if not re.fullmatch(NAME, function["name"]):
            raise OptionError(f"tool {function['name']!r} cannot be called: a name has letters, digits, _ . : / - only")
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        heads.append(f"{_literal(function['name'])} {rules.value({**schema, 'type': 'object'}, schema)}")
    call = f'call: <[{marks.call}]> "call:" ({" | ".join(heads)}) <[{marks.call_end}]>'
    start = ("call" if one else "call+") + (" | instead" if otherwise is not None else "")
    instead = []
    if otherwise is not None:
        options = {"x-guidance": {**WITHOUT_BLANKS, **otherwise.get("x-guidance", {})}}
        instead.append(f"instead: %json {json.dumps({**otherwise, **options})}")
    string = f"string: <[{marks.quote}]> TEXT? <[{marks.quote}]>"
    return "\n".join([f"start: {start}", call, string, *instead, *rules.named]) + TERMINALS


class _Rules:
    """Rules for values, by schema; shared and recursive parts have names."""

    def __init__(self, marks: Marks) -> None:
        self.named: list[str] = []
        self._quote = f"<[{marks.quote}]>"
        self._references: dict[tuple[int, str], str] = {}

    def value(self, schema: Any, root: Mapping[str, Any]) -> str:
        """What may stand where a value of this schema is wanted."""
        if not isinstance(schema, Mapping) or schema == {}:
            return "any"
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]), root)
        if "const" in schema:
            return self._constant(schema["const"])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return _either(self._constant(v) for v in schema["enum"])
        for several in ("anyOf", "oneOf"):
            if isinstance(schema.get(several), list) and schema[several]:
                return _either(self.value(s, root) for s in schema[several])
        kind = schema.get("type", "object" if "properties" in schema else "array" if "items" in schema else None)
        if isinstance(kind, list):
            return _either(self.value({**schema, "type": k}, root) for k in kind)
        simple = {"string": "string", "integer": "INTEGER", "number": "NUMBER", "boolean": '("true" | "false")',
                  "null": '"null"'}  # fmt: skip
        if kind == "object":
            return self._object(schema, root)
        return self._array(schema, root) if kind == "array" else simple.get(str(kind), "any")

    def _name(self, body: str, prefix: str) -> str:
        name = f"{prefix}_{len(self.named)}"
        self.named.append(f"{name}: {body}")
        return name

    def _reference(self, reference: str, root: Mapping[str, Any]) -> str:
        """A rule for what a reference within the tool's parameters points to; "any" where it leads nowhere."""
        key = (id(root), reference)
        if key not in self._references:
            target: Any = root
            for part in reference.removeprefix("#").split("/")[1:]:
                target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
            if target is None or not reference.startswith("#"):
                return "any"
            name = self._references[key] = f"reference_{len(self._references)}"
            self.named.append(f"{name}: {self.value(target, root)}")
        return self._references[key]

    def _object(self, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            closed = schema.get("additionalProperties") is False or isinstance(properties, Mapping)
            return '"{" "}"' if closed and "additionalProperties" not in schema else "any_object"
        required = schema.get("required") or []
        # In the order in which templates write them, whatever order the schema has them in.
        fields = [(f"{self._key(name)} {self.value(properties[name], root)}", name in required)
                  for name in sorted(properties, key=str.lower)]  # fmt: skip
        rest = ""  # what may follow once something stands before it
        first: list[str] = []  # alternatives of what the object begins with
        for field, needed in reversed(fields):
            first = [f"{field} {rest}".strip()] + ([] if needed else first)
            more = f'"," {field}' if needed else f'("," {field})?'
            rest = self._name(f"{more} {rest}".strip(), "rest")
        empty = not any(needed for _, needed in fields)
        return self._name(f'"{{" ({" | ".join(first)}){"?" if empty else ""} "}}"', "object")

    def _array(self, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        item = self._name(self.value(schema.get("items"), root), "item")
        least, most = int(schema.get("minItems") or 0), schema.get("maxItems")
        if least > MOST_REPEATED or (isinstance(most, int) and most > MOST_REPEATED):
            least, most = min(least, MOST_REPEATED), None
        if most == 0:
            return '"[" "]"'
        more = f'("," {item})' + (f"{{{max(0, least - 1)},{most - 1 if most is not None else ''}}}")
        return f'"[" ({item} {more}){"" if least else "?"} "]"'

    def _key(self, name: str) -> str:
        if BARE_KEY.fullmatch(name):
            return _literal(f"{name}:")
        return f'{self._quote} {_literal(name)} {self._quote} ":"'

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self._quote} {_literal(value)} {self._quote}" if value else f"{self._quote} {self._quote}"
        if isinstance(value, list):
            return _between("[", [self._constant(v) for v in value], "]")
        if isinstance(value, Mapping):
            fields = [f"{self._key(k)} {self._constant(v)}" for k, v in sorted(value.items())]
            return _between("{", fields, "}")
        return _literal(json.dumps(value))


def _either(parts: Any) -> str:
    return f"({' | '.join(parts)})"


def _between(begin: str, parts: Sequence[str], end: str) -> str:
    return " ".join([_literal(begin), ' "," '.join(parts), _literal(end)])


def _literal(text: str) -> str:
    return json.dumps(text)
