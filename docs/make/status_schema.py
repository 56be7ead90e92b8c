"""The JSON Schema of what `lmx status --json` prints. It is made from the messages: from
their types, and as descriptions from the texts that stand below their fields."""

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from enum import StrEnum
from typing import Any, Final

from lmx.protocol.messages.status import SystemStatus

_SCALARS: Final[dict[Any, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
}


def status_schema() -> dict[str, Any]:
    """Return the schema of a status."""
    definitions: dict[str, Any] = {}
    whole = _object(SystemStatus, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What lmx status --json prints",
        **whole,
        "$defs": dict(sorted(definitions.items())),
    }


def _object(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a dataclass. Keys may be added by a later version, so that others than
    these are allowed."""
    properties = _properties(cls, definitions)
    return {
        "type": "object",
        "description": _words(inspect.getdoc(cls) or ""),
        "properties": properties,
        "required": list(properties),
    }


def _properties(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints, words = typing.get_type_hints(cls), _field_words(cls)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.metadata.get("flat"):
            found |= _properties(hints[field.name], definitions)
            continue
        found[field.name] = _value(hints[field.name], definitions)
        if field.name in words:
            found[field.name] |= {"description": words[field.name]}
    return found


def _value(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (other,) = [one for one in inner if one is not type(None)]
        return {"anyOf": [_value(other, definitions), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _value(inner[0], definitions)}
    if origin is dict:
        rest = {} if inner[1] is Any else {"additionalProperties": _value(inner[1], definitions)}
        return {"type": "object", **rest}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if issubclass(hint, StrEnum):
        return {"type": "string", "enum": [one.value for one in hint]}
    if hint.__name__ not in definitions:
        definitions[hint.__name__] = {}  # its place, should it hold one of its own kind
        definitions[hint.__name__] = _object(hint, definitions)
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _field_words(cls: type) -> dict[str, str]:
    """Return the text below each field of a dataclass, and of those that it inherits."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[field.target.id] = _words(str(below.value.value))
    return found


def _words(docstring: str) -> str:
    """Return a docstring on one line, without the marks of its markup."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", docstring)
    return " ".join(text.replace("``", "`").split())
