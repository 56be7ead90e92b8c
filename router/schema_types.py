"""What the request schemas are made of: strict models, bounds, and unions told apart by type."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from lmx.router.invalid import NUMBER_SIZE

# The tag of a union member becomes part of an error's location; a name in angle brackets can
# be no field's, so that `invalid.param_path` can leave it out.
TEXT: Final = "<text>"
LIST: Final = "<list>"
OBJECT: Final = "<object>"

MAX_COUNT: Final = 2**31 - 1
"""For counts and token ids: far beyond any that there are, within what every layer can hold."""

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
_UINT64_MAX: Final = 2**64 - 1

MAX_FREE_VALUES: Final = 50_000
"""In an object that only a worker or a template understands. Each is looked at here, and sent."""

_STEP_SHOWN: Final = 40
"""Characters of a key that an error's path repeats."""


class Strict(BaseModel):
    """A boolean is no integer, "1" no number; fields that are not known are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


def _text_or_list(value: object) -> str | None:
    if isinstance(value, str):
        return TEXT
    return LIST if isinstance(value, list) else None


def _text_or_object(value: object) -> str | None:
    if isinstance(value, str):
        return TEXT
    return OBJECT if isinstance(value, dict | BaseModel) else None


TEXT_OR_LIST: Final = Discriminator(
    _text_or_list,
    custom_error_type="text_or_list",
    custom_error_message="a string or an array",
)
TEXT_OR_OBJECT: Final = Discriminator(
    _text_or_object,
    custom_error_type="text_or_object",
    custom_error_message="a string or an object",
)


def _sane(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse more than can be looked at in a moment, and the numbers that messages and schemas
    can't carry: beyond 64 bits, or infinite."""
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
            elif (kind is int or kind is float) and not _fits(item):
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
"""An object of which only a worker, or a model's template, knows what it may hold."""

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
NonEmpty = Annotated[str, Field(min_length=1)]

TextOrObject = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[FreeObject, Tag(OBJECT)], TEXT_OR_OBJECT
]
