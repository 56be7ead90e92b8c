"""Kinds of values in the configuration: times, sizes, names, and how people may write them."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    WithJsonSchema,
)

from lmx.protocol.models.keep_alive import keep_alive_text, parse_keep_alive

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Size = Annotated[
    ByteSize,
    Field(gt=0),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^\s*\d*\.?\d+\s*[A-Za-z]*\s*$"},
            ]
        }
    ),
]
"""Bytes. People may write ``16MiB`` or ``8GB``."""


def _read_keep_alive(value: Any) -> Any:
    seconds = parse_keep_alive(value)
    if isinstance(seconds, str) and seconds.replace(".", "", 1).isdecimal():
        seconds = float(seconds)
    if not isinstance(seconds, float) or not math.isfinite(seconds):
        raise ValueError(
            "is not a time: write seconds (300), a duration (90s, 5m, 1h30m), 0 for not at all, "
            "or forever"
        )
    return seconds


KeepAlive = Annotated[
    float,
    BeforeValidator(_read_keep_alive),
    PlainSerializer(keep_alive_text, return_type=str, when_used="json"),
    WithJsonSchema({"type": ["number", "string"]}, mode="validation"),
]
"""Seconds; negative: forever. People read and write durations."""

Name = Annotated[
    str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")
]

Names = Annotated[
    tuple[Name, ...],
    BeforeValidator(
        lambda value: (value,) if isinstance(value, str) else value,
        json_schema_input_type=str | tuple[Name, ...],
    ),
]
"""One name may stand without a list."""

_KEY_LENGTH: Final = 16


def _check_key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if len(text) < _KEY_LENGTH or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(
            f"a key has at least {_KEY_LENGTH} characters, ASCII and without spaces: for example "
            "what `openssl rand -hex 24` prints"
        )
    return key


def _refuse_number(value: Any) -> Any:
    if isinstance(value, int | float):
        raise ValueError("is read as a number: write the key in quotes")
    return value


Key = Annotated[SecretStr, BeforeValidator(_refuse_number), AfterValidator(_check_key)]
"""A secret that travels in an HTTP header. Never shown."""


class Section(BaseModel):
    """Keys of the configuration: none but the known ones, never changed.

    The docstring below a key is its meaning, for the documents and for editors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
