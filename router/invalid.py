"""From what pydantic finds wrong to an error that says what is allowed and what was given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.body_limits import no_collection

_GIVEN_LIMIT: Final = 60
"""Characters of an offending value that an error repeats."""

_TYPES: Final = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    # Of a query, whose values are all strings.
    "int_parsing": "an integer",
    "bool_parsing": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "text_or_list": "a string or an array",
    "text_or_object": "a string or an object",
    "prompt_type": "a string, an array of strings, an array of tokens or an array of such arrays",
}

NUMBER_SIZE: Final = "number_size"
"""For a number that no other program would take, somewhere in a free object: its context's
``path`` leads from the field to it."""

_RANGES: Final = {
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}

_LENGTHS: Final = {
    "string_too_short": "must not be empty",
    "too_short": "must hold at least {min_length} element(s), got {actual_length}",
    "too_long": "must hold at most {max_length} elements, got {actual_length}",
    "too_many_values": "must hold at most {most} values",
    "too_many_items": "must hold at most {max_items} parts and tool calls in all, got {items}",
    "string_too_long": "must hold at most {max_length} characters",
    "keep_alive_form": 'must be seconds, or a duration such as "5m" or "1h30m", or -1 or '
    '"forever", got {given}',
    "string_pattern_mismatch": "must match {pattern}",
}

_Checked = TypeVar("_Checked", bound=BaseModel)


def validated(schema: type[_Checked], body: dict[str, Any]) -> _Checked:
    """Return the body as ``schema``. Raises :class:`RequestError` (400) for the first fault."""
    try:
        with no_collection():
            return schema.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise describe_invalid(
            first["type"], first["loc"], first.get("ctx", {}), first["input"]
        ) from error


def describe_invalid(
    kind: str, location: Sequence[str | int], context: Mapping[str, Any], given: object
) -> RequestError:
    """Return the error for one finding of pydantic (its type, loc, ctx and input).

    A kind without a text of its own still gives a 400 that names the field and the value.
    """
    param = param_path(location)
    if kind == "missing":
        return RequestError(
            ErrorCode.MISSING_PARAMETER, f"`{param}` is required but missing.", param=param
        )
    if kind in _TYPES:
        code, rule = ErrorCode.INVALID_TYPE, f"must be {_TYPES[kind]}, got {short(given)}"
    elif kind in _RANGES:
        bound = _RANGES[kind].format_map({name: _number(limit) for name, limit in context.items()})
        code, rule = ErrorCode.INVALID_VALUE, f"must be {bound}, got {short(given)}"
    elif kind in _LENGTHS:
        code, rule = ErrorCode.INVALID_VALUE, _LENGTHS[kind].format_map(context)
    elif kind == NUMBER_SIZE:
        param += context["path"]
        code, rule = (
            ErrorCode.INVALID_VALUE,
            f"must be a number within 64 bits, got {short(context['number'])}",
        )
    elif kind == "literal_error" and "content" in location:
        code = ErrorCode.UNSUPPORTED_VALUE
        rule = f"must be 'text': this model takes text only, got {short(given)}"
    elif kind == "literal_error":
        code, rule = (
            ErrorCode.INVALID_VALUE,
            f"must be one of {context['expected']}, got {short(given)}",
        )
    else:
        code, rule = ErrorCode.INVALID_VALUE, f"is not valid, got {short(given)}"
    return RequestError(code, f"`{param}` {rule}.", param=param)


def param_path(location: Sequence[str | int]) -> str:
    """Return a location as a path: ``messages[2].content[0].type``. Leaves out union tags."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("<"):
            path += f".{step}" if path else step
    return path


def short(value: object) -> str:
    """Return a value as JSON, cut so that an error stays readable."""
    # A long value is cut before it is written out where that is possible: it may be megabytes.
    if isinstance(value, str):
        value = value[: _GIVEN_LIMIT + 1]
    elif isinstance(value, list):
        return f"an array of {len(value)}"
    elif isinstance(value, dict):
        return f"an object of {len(value)}"
    elif isinstance(value, float) and math.isinf(value):
        return "a number that is too large"
    # orjson takes no integer beyond 64 bits.
    text = str(value) if type(value) is int else orjson.dumps(value).decode()
    return text if len(text) <= _GIVEN_LIMIT else f"{text[:_GIVEN_LIMIT]}..."


def _number(limit: object) -> object:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit
