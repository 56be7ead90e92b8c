"""Closes objects that the schema of a function's arguments leaves open, so that the model invents
no argument. Pure.

llama.cpp and xgrammar read such a schema in the same way. To JSON Schema an object may have members
that no keyword names, but the authors of functions hardly ever mean that.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from lmx.worker.formats.forms.arguments import ANNOTATIONS

_OPENED: Final = frozenset({"additionalProperties", "unevaluatedProperties"})
# Keywords of which each holds for the same value as its neighbours.
_UNIONS: Final = ("anyOf", "oneOf")
_IN_PLACE: Final = ("allOf", *_UNIONS)
_CONDITIONS: Final = ("not", "if", "then", "else")
_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions")
_MEMBERS: Final = ("properties", "patternProperties")
_REFERENCES: Final = ("$ref", "$dynamicRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_NO_PARTS: Final = ANNOTATIONS | {"type", "$defs", "definitions", "$schema", "$id", *_ANCHORS}


class _Place(NamedTuple):
    """A schema inside another."""

    keys: tuple[str | int, ...]
    """The keys that lead there from the outer schema."""
    schema: Any
    alone: bool
    """Whether no other schema holds for the same value."""


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema in which each object with ``properties`` accepts only those, unless its
    ``additionalProperties`` allows others.

    An object that several schemas describe together (``allOf`` and the like) stays as it is:
    closing one of them would forbid members that the others require. Every object stays as it is if
    a reference is an address that no ``$id`` has. Raises ``RecursionError``.
    """
    joined = _joined(schema)
    result: dict[str, Any] = dict(schema) if joined is None else _close(schema, "#", True, joined)
    return result


def _close(schema: Any, pointer: str, alone: bool, joined: set[str]) -> Any:
    if not isinstance(schema, dict):
        return schema
    alone = alone and pointer not in joined
    result = dict(schema)
    for keys, part, part_alone in _places(schema, alone):
        holder = result
        # Each is copied once on the way down, because the caller still uses its own.
        for key in keys[:-1]:
            if holder[key] is schema[key]:
                holder[key] = holder[key].copy()
            holder = holder[key]
        holder[keys[-1]] = _close(part, _pointer(pointer, keys), part_alone, joined)
    if (
        alone
        and isinstance(schema.get("properties"), dict)
        and not _OPENED & schema.keys()
        # These look into the schemas for the same value, of which none is alone.
        and not (_described_again(schema) or _asks_for_others(schema))
    ):
        result["additionalProperties"] = False
    return result


def _joined(schema: Mapping[str, Any]) -> set[str] | None:
    """Return the pointers to schemas that hold together with another one for the same value. None
    if a reference is an address that no ``$id`` has: what it refers to is not known here."""
    following: dict[str, list[str]] = {}
    waiting = list(_references(schema, "#", following))
    for pointer in (*waiting, *chain.from_iterable(following.values())):
        if not pointer.startswith("#") and pointer not in following:
            return None
    joined: set[str] = set()
    while waiting:
        pointer = waiting.pop()
        if pointer not in joined:
            joined.add(pointer)
            waiting += following.get(pointer, ())
    return joined


def _references(schema: Any, pointer: str, following: dict[str, list[str]]) -> Iterator[str]:
    """Yield the pointers to schemas that hold together with another one wherever they are used. Add
    to ``following``, by the pointer or the name of a schema, those that do if it does itself."""
    if not isinstance(schema, dict):
        return
    only = _sides(schema) == 1
    references = [schema.get(key) for key in _REFERENCES]
    same = [unquote(one) for one in references if isinstance(one, str)]
    for key in _ANCHORS:
        if isinstance(anchor := schema.get(key), str):
            following[f"#{anchor}"] = [pointer]
    if isinstance(identifier := schema.get("$id"), str):
        following[identifier] = [pointer]
    for keys, part, alone in _places(schema, True):
        at = _pointer(pointer, keys)
        if keys[0] in _IN_PLACE:
            same.append(at)
        elif not alone:
            yield at
        yield from _references(part, at, following)
    if only:
        following[pointer] = same
    else:
        yield from same


def _places(schema: Mapping[str, Any], alone: bool) -> Iterator[_Place]:
    # One member may be described by its name and by patterns.
    patterns = schema.get("patternProperties")
    several = isinstance(patterns, dict) and len(patterns) + ("properties" in schema) > 1
    for key in _BY_NAME:
        if isinstance(named := schema.get(key), dict):
            once = not (several and key in _MEMBERS)
            yield from (_Place((key, name), one, once) for name, one in named.items())
    for key in ("items", "prefixItems"):
        if isinstance(listed := schema.get(key), list):
            yield from (_Place((key, index), one, True) for index, one in enumerate(listed))
    for key in ("items", "additionalProperties", "contains"):
        if isinstance(one := schema.get(key), dict):
            yield _Place((key,), one, True)
    only = alone and _sides(schema) == 1
    for key in _IN_PLACE:
        if isinstance(listed := schema.get(key), list):
            yield from (_Place((key, index), one, only) for index, one in enumerate(listed))
    for key in _CONDITIONS:
        if isinstance(one := schema.get(key), dict):
            yield _Place((key,), one, False)


def _sides(schema: Mapping[str, Any]) -> int:
    """Return how many schemas hold for the same value: its own keywords are one of them."""
    every = schema.get("allOf")
    sides = len(every) if isinstance(every, list) else 0
    sides += sum(key in schema for key in (*_UNIONS, *_REFERENCES))
    return sides + bool(schema.keys() - _NO_PARTS - {*_IN_PLACE, *_REFERENCES})


def _described_again(schema: Mapping[str, Any]) -> bool:
    """Return whether more than ``properties`` may name members of the same object."""
    if any(key in schema for key in (*_REFERENCES, "dependentSchemas", "dependencies")):
        return True
    listed = [schema.get(key) for key in _IN_PLACE]
    parts = [one for group in listed if isinstance(group, list) for one in group]
    parts += [schema[key] for key in _CONDITIONS if key in schema]
    return any(
        isinstance(one, dict)
        and ("properties" in one or "patternProperties" in one or _described_again(one))
        for one in parts
    )


def _asks_for_others(schema: Mapping[str, Any]) -> bool:
    """Return whether the schema requires members that ``properties`` does not name."""
    named = schema.get("properties")
    return isinstance(named, dict) and not _required(schema) <= named.keys()


def _required(schema: Any) -> set[str]:
    """Return the names that a schema may require of the same object."""
    if not isinstance(schema, dict):
        return set()
    lists = [schema.get("required")]
    if isinstance(dependent := schema.get("dependentRequired"), dict):
        lists += dependent.values()
    names = {name for one in lists if isinstance(one, list) for name in one if type(name) is str}
    parts = [schema.get(key) for key in ("then", "else")]
    for key in _IN_PLACE:
        if isinstance(listed := schema.get(key), list):
            parts += listed
    return names.union(*map(_required, parts))


def _pointer(pointer: str, keys: tuple[str | int, ...]) -> str:
    escaped = (str(key).replace("~", "~0").replace("/", "~1") for key in keys)
    return "/".join((pointer, *escaped))
