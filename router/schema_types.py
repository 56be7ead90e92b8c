"""What the request schemas are made of: strict models, bounds, and unions told apart by type."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

# The tag of a union member becomes part of an error's location; a name in angle brackets can
# be no field's, so that `invalid.param_path` can leave it out.
TEXT: Final = "<text>"
LIST: Final = "<list>"
OBJECT: Final = "<object>"

MAX_COUNT: Final = 2**31 - 1
"""For counts and token ids: far beyond any that there are, within what every layer can hold."""

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


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

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
NonEmpty = Annotated[str, Field(min_length=1)]

TextOrObject = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[dict[str, Any], Tag(OBJECT)], TEXT_OR_OBJECT
]
