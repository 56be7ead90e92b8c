"""The base of the request schemas, and their errors.

It has strict models, bounds, and unions that are distinguished by type. It turns the faults that
pydantic finds into errors that say what is allowed and what the request had.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, TypeVar

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.http.bodies.form import Upload

_GIVEN_LIMIT: Final = 60
"""How many characters of an offending value an error repeats."""

_TYPES: Final = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    # This is for a query, whose values are all strings.
    "int_parsing": "an integer",
    "bool_parsing": "a boolean",
    "list_type": "an array",
    "tuple_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "file_type": "a file",
    "text_or_list": "a string or an array",
    "text_or_object": "a string or an object",
    "text_or_switch": "a boolean or a string",
    "prompt_type": "a string, an array of strings, an array of tokens or an array of such arrays",
}

BLOCK_TYPE: Final = "block_type"
"""The type of the error for a block of content of a type that is unknown, or of none."""

PART_TYPE: Final = "part_type"
"""The type of the error for a part of a message of a type that is unknown, or of none."""

NUMBER_SIZE: Final = "number_size"
"""The type of the error for a number that no other program would take, somewhere in a free object.
Its context's ``path`` leads from the field to it."""

_RANGES: Final = {
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}

_LENGTHS: Final = {
    "string_too_short": "must not be empty",
    "empty": "is empty: send at least {min_length}",
    "too_short": "must hold at least {min_length} elements, got {actual_length}",
    "too_long": "must hold at most {max_length} elements, got {actual_length}",
    "too_many_values": "must hold at most {most} values",
    "too_many_items": "must hold at most {max_items} parts and tool calls in all, got {items}",
    "string_too_long": "must hold at most {max_length} characters",
    "no_tokens": "must be -1 or at least 1, got 0",
    "keep_alive_form": 'must be seconds, or a duration such as "5m" or "1h30m", or -1 or '
    '"forever", got {given}',
    "string_pattern_mismatch": "must match {pattern}",
}

_Checked = TypeVar("_Checked", bound=BaseModel)


def invalid(param: str, text: str, code: ErrorCode = ErrorCode.INVALID_VALUE) -> RequestError:
    """Return the error (400) for a field. ``text`` follows its name in the message."""
    return RequestError(code, f"`{param}` {text}", param=param)


def unsupported(param: str, text: str) -> RequestError:
    """Return the same for what lmx can't do."""
    return invalid(param, text, ErrorCode.UNSUPPORTED_VALUE)


def missing(param: str, text: str = "is required but missing.") -> RequestError:
    """Return the same for what the request lacks."""
    return invalid(param, text, ErrorCode.MISSING_PARAMETER)


def validated(schema: type[_Checked], body: dict[str, Any]) -> _Checked:
    """Return the body as ``schema``. Raises :class:`RequestError` (400) for the first fault."""
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise describe_invalid(
            first["type"], first["loc"], first.get("ctx", {}), first["input"]
        ) from error


def describe_invalid(
    kind: str, location: Sequence[str | int], context: Mapping[str, Any], given: object
) -> RequestError:
    """Return the error for one fault that pydantic found (its type, loc, ctx and input).

    A type of fault without a text of its own still gives a 400 that names the field and the value.
    """
    is_name = bool(location) and location[-1] == "[key]"
    param = param_path(location[:-1] if is_name else location)
    if kind == "missing":
        return missing(param)
    if kind in _TYPES:
        code, rule = ErrorCode.INVALID_TYPE, f"must be {_TYPES[kind]}, got {short(given)}"
    elif kind in _RANGES:
        bound = _RANGES[kind].format_map({name: _number(limit) for name, limit in context.items()})
        code, rule = ErrorCode.INVALID_VALUE, f"must be {bound}, got {short(given)}"
    elif kind in _LENGTHS:
        length = "empty" if kind == "too_short" and not context["actual_length"] else kind
        code, rule = ErrorCode.INVALID_VALUE, _LENGTHS[length].format_map(context)
        rule = rule.removesuffix(", got None")  # nobody has counted further
        if is_name:
            rule = f"has a name that {rule}"
    elif kind == BLOCK_TYPE:
        found = given.get("type") if isinstance(given, dict) else None
        code = ErrorCode.UNSUPPORTED_VALUE if isinstance(found, str) else ErrorCode.INVALID_TYPE
        rule = (
            f"is a block of the type {short(found)}, which is not taken here"
            if isinstance(found, str)
            else f"must be an object with a `type`, got {short(given)}"
        )
    elif kind == PART_TYPE:
        return _unknown_part(param, given)
    elif kind == NUMBER_SIZE:
        param += context["path"]
        code, rule = (
            ErrorCode.INVALID_VALUE,
            f"must be a number within 64 bits, got {short(context['number'])}",
        )
    elif kind == "literal_error":
        code, rule = (
            ErrorCode.INVALID_VALUE,
            f"must be one of {context['expected']}, got {short(given)}",
        )
    else:
        code, rule = ErrorCode.INVALID_VALUE, f"is not valid, got {short(given)}"
    return invalid(param, f"{rule}.", code)


def _unknown_part(path: str, given: object) -> RequestError:
    if not isinstance(given, dict):
        return invalid(path, f"must be an object, got {short(given)}.", ErrorCode.INVALID_TYPE)
    param = f"{path}.type"
    if "type" not in given:
        return missing(param)
    return unsupported(
        param,
        "must be text, image_url, input_audio, audio_url, audio, video_url, video, "
        f"input_video, file or refusal, got {short(given['type'])}.",
    )


def param_path(location: Sequence[str | int]) -> str:
    """Return a location as a path: ``messages[2].content[0].type``. It leaves out union tags."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("<"):
            # It may be a key of the client's own.
            path += f".{step[:_STEP_SHOWN]}" if path else step[:_STEP_SHOWN]
    return path


def short(value: object) -> str:
    """Return a value as JSON, cut so that an error stays readable."""
    # If possible, a long value is cut before it is written out: it may have megabytes.
    if isinstance(value, str):
        value = value[: _GIVEN_LIMIT + 1]
    elif isinstance(value, list):
        return f"an array of {len(value)}"
    elif isinstance(value, dict):
        return f"an object of {len(value)}"
    elif isinstance(value, Upload):
        return "a file"
    elif isinstance(value, float) and math.isinf(value):
        return "a number that is too large"
    # orjson takes no integer beyond 64 bits.
    text = str(value) if type(value) is int else orjson.dumps(value).decode()
    return text if len(text) <= _GIVEN_LIMIT else f"{text[:_GIVEN_LIMIT]}..."


def _number(limit: object) -> object:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def type_of(value: object) -> Any:
    """Return the ``type`` of a part or an item, checked or not; None if it has none."""
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


# The tag of a union member becomes part of an error's location; a name in angle brackets can
# be no field's, so that `invalid.param_path` can leave it out.
TEXT: Final = "<text>"
LIST: Final = "<list>"
OBJECT: Final = "<object>"

MAX_COUNT: Final = 2**31 - 1
"""The limit for counts and token ids: far above any real one, and within what every layer can
hold."""

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
_UINT64_MAX: Final = 2**64 - 1

MAX_FREE_VALUES: Final = 50_000
"""The most values in an object that only a worker or a template understands. Each is checked here,
and sent."""

_STEP_SHOWN: Final = 40
"""How many characters of a key an error's path repeats."""


class Strict(BaseModel):
    """The base of all requests. A boolean is no integer, and "1" is no number. Unknown fields are
    ignored.

    The docstring below a field is its description, in the API's own description and in the
    documents.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", defer_build=True)


def _text_or_list(value: object) -> str | None:
    if isinstance(value, str):
        return TEXT
    return LIST if isinstance(value, list) else None


def _text_or_object(value: object) -> str | None:
    if isinstance(value, str):
        return TEXT
    return OBJECT if isinstance(value, dict | BaseModel) else None


TEXT_OR_LIST: Final = Discriminator(
    _text_or_list, custom_error_type="text_or_list", custom_error_message="a string or an array"
)
TEXT_OR_OBJECT: Final = Discriminator(
    _text_or_object,
    custom_error_type="text_or_object",
    custom_error_message="a string or an object",
)


def _sane(value: dict[str, Any], *, is_text: bool = False) -> dict[str, Any]:
    """Refuse more values than can be checked in a moment, and numbers that messages and schemas
    can't carry: beyond 64 bits, or infinite. What becomes text may have integers of any size."""
    # Not recursive, though the depth has a limit.
    held = 0
    left: list[Any] = [value]
    while left:
        found = left.pop()
        items = found.values() if type(found) is dict else found
        held += len(items)
        if held > MAX_FREE_VALUES:
            raise PydanticCustomError("too_many_values", "values", {"most": MAX_FREE_VALUES})
        for item in items:
            kind = type(item)
            if kind is str:
                continue
            if kind is dict or kind is list:
                left.append(item)
            elif (kind is float or (kind is int and not is_text)) and not _fits(item):
                raise PydanticCustomError(
                    NUMBER_SIZE, "number size", {"path": _path_to(value, item), "number": item}
                )
    return value


def _fits(number: float) -> bool:
    if isinstance(number, float):
        return not math.isinf(number)
    return INT64_MIN <= number <= _UINT64_MAX


def _path_to(value: Any, wanted: object) -> str:
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        path, found = left.pop()
        if found is wanted:
            return path
        if type(found) is dict:
            left.extend((f"{path}.{key[:_STEP_SHOWN]}", item) for key, item in found.items())
        elif type(found) is list:
            left.extend((f"{path}[{index}]", item) for index, item in enumerate(found))
    return ""


FreeObject = Annotated[dict[str, Any], AfterValidator(_sane)]
"""An object whose allowed content only a worker, or a model's template, knows."""

CallArguments = Annotated[dict[str, Any], AfterValidator(partial(_sane, is_text=True))]
"""The arguments of a call. They may have integers of any size, since models write such."""


def arguments_text(arguments: dict[str, Any]) -> str:
    """Return the arguments of a call as JSON."""
    # orjson takes no integer beyond 64 bits.
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
NonEmpty = Annotated[str, Field(min_length=1)]

TextOrObject = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[FreeObject, Tag(OBJECT)], TEXT_OR_OBJECT
]
