"""Request bodies: JSON whatever the Content-Type says, small enough, inflated, and of the right types."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import zstandard
from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError

from pilotfish.errors import OptionError
from pilotfish.server.fields import Field, check

M = TypeVar("M", bound=BaseModel)


class Wire(BaseModel):
    """A body or a part of one: unknown fields are ignored, null means absent."""

    model_config = ConfigDict(extra="ignore")


class BodyTooLargeError(OptionError):
    """Raised for a body beyond the limit."""


def body_of(model: type[M], fields: Mapping[str, Field] | None = None) -> Callable[[Request], Coroutine[Any, Any, M]]:
    """A dependency that reads the body as `model`. Raises OptionError naming the field that is wrong, or refused."""

    async def read(request: Request) -> M:
        value = parse(await read_limited(request))
        if fields is not None:
            check(fields, value, "field")
        try:
            return model.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise OptionError(f"{where + ': ' if where else ''}{first['msg']}") from error

    return read


def described(model: type[BaseModel]) -> dict[str, Any]:
    """What the OpenAPI page says of a body that `body_of` reads."""
    schema = model.model_json_schema(ref_template=f"#/components/schemas/{model.__name__}_{{model}}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(schema)}}}}


async def read_limited(request: Request) -> bytes:
    """The body, inflated where it is compressed. Raises BodyTooLargeError or OptionError."""
    limit: int = request.app.state.settings.max_body
    kind = request.headers.get("content-encoding", "identity").lower()
    if kind not in ("identity", "", "gzip", "zstd"):
        raise OptionError(f"Content-Encoding {kind!r} is not known; use gzip, zstd or none")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limit:
            raise BodyTooLargeError(f"the body is larger than {limit} bytes")
    try:
        if kind == "gzip":
            inflater = zlib.decompressobj(31)
            inflated = inflater.decompress(bytes(data), limit + 1)
        elif kind == "zstd":
            inflated = zstandard.ZstdDecompressor().stream_reader(bytes(data)).read(limit + 1)
        else:
            return bytes(data)
    except (zlib.error, zstandard.ZstdError) as error:
        raise OptionError(f"the body is no {kind} data: {error}") from error
    if len(inflated) > limit:
        raise BodyTooLargeError(f"the body is larger than {limit} bytes")
    return inflated


def parse(data: bytes) -> Any:
    """The JSON value of a body. Raises OptionError."""
    if not data.strip():
        raise OptionError("missing request body")
    try:
        value = json.loads(data)
    except UnicodeDecodeError as error:
        raise OptionError(f"the body is not UTF-8 (byte {error.start})") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise OptionError(f"the body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise OptionError("the body must be a JSON object")
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise OptionError("the body is nested too deeply") from error
    except UnicodeEncodeError as error:  # a lone surrogate, which no tokenizer takes
        raise OptionError("the body holds half of a surrogate pair, which is no character") from error
    return value


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without references, so that it can stand anywhere in the description."""
    definitions = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, list):
            return [resolve(v) for v in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return resolve(definitions[value["$ref"].rsplit("_", 1)[-1]])
        return {k: resolve(v) for k, v in value.items()}

    resolved: dict[str, Any] = resolve(schema)
    return resolved
