"""Kinds of values in the configuration: times, sizes, names, hosts, origins, and how people may
write them."""

import math
from datetime import date
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    SecretStr,
    WithJsonSchema,
)
from pydantic_core import core_schema

from lmx.protocol.models.keep_alive import keep_alive_text, parse_keep_alive
from lmx.protocol.models.ranks import MOST_RANKS
from lmx.protocol.web_origins import NULL_ORIGIN, parse_host_pattern, parse_origin_pattern
from lmx.supervisor.config.sources import NAME_CHARACTERS_MOST, NAME_PATTERN


def server_address(text: str, wanted: str, has_user: str) -> str:
    """Return an HTTP address as it is. ``wanted`` says what it is the address of, with an example,
    and ``has_user`` what is wrong with a user or password in it. Raises ``ValueError``."""
    try:
        url = urlsplit(text)
        known = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:
        known = False
    if not known or url.query or url.fragment:
        raise ValueError(f"is the address of {wanted}")
    if url.username or url.password:
        raise ValueError(has_user)
    return text


DURATION_PATTERN: Final = r"^\s*(\d+(\.\d+)?(ms|s|m|h)?)+\s*$"


def _read_duration(value: Any) -> Any:
    """Return the seconds of a text with units; other values as they are."""
    if not isinstance(value, str):
        return value
    seconds = parse_keep_alive(value)
    if isinstance(seconds, float) and seconds >= 0:
        return seconds
    if isinstance(seconds, str) and seconds.replace(".", "", 1).isdecimal():
        return seconds
    raise ValueError("is not a time: write seconds (300) or a duration (90s, 5m, 1h30m)")


class _Duration:
    """Lets people write a number of seconds with units as well."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(_read_duration, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "string", "pattern": DURATION_PATTERN}]}


DURATION: Final = _Duration()
"""It stands behind the bounds of a number of seconds."""

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False), DURATION]
"""A time of up to a day. People may write ``300``, ``90s``, ``5m`` or ``1h30m``."""

SecondsFromZero = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False), DURATION]
"""The same, and 0."""

MOST_BYTES: Final = 2**60
"""More than any machine has. Processes send each other numbers of at most 64 bits."""

Size = Annotated[
    ByteSize,
    Field(gt=0, le=MOST_BYTES),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MOST_BYTES},
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

Name = Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MOST, pattern=NAME_PATTERN)]

RdmaDevices = Annotated[
    tuple[Annotated[str, Field(max_length=32, pattern=r"^rdma_[a-z0-9]+$")] | None, ...],
    Field(max_length=MOST_RANKS),
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

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)


_MOST_LEVELS: Final = 32
"""How deeply values that lmx does not know may be nested. An alias of YAML can hold itself."""


def _check_sendable(value: dict[str, Any]) -> dict[str, Any]:
    """Return values whose keys lmx does not know as they are. Raises ``ValueError`` for what can't
    be sent to a process, or is no JSON."""
    _check_inner(value, "")
    return value


def _check_inner(value: Any, place: str, levels: int = _MOST_LEVELS) -> None:
    problem = ""
    match value:
        case _ if levels == 0:
            raise ValueError(f"{place[:_MOST_CHARACTERS]} is nested too deeply")
        case dict():
            for name, inner in value.items():
                if not isinstance(name, str):
                    problem = f"the key {name!r} is not a word"
                    break
                _check_inner(name, place)
                _check_inner(inner, f"{place}.{name}" if place else name, levels - 1)
        case list() | tuple():
            for number, inner in enumerate(value):
                _check_inner(inner, f"{place}.{number}", levels - 1)
        case str():
            if any("\ud800" <= character <= "\udfff" for character in value):
                problem = "it has half of a surrogate pair: write the character itself"
        case int():
            if not -(2**63) <= value < 2**64:
                problem = "it is a whole number of more than 64 bits"
        case date():
            problem = "it is read as a date: write it in quotes"
        case float() if not math.isfinite(value):
            problem = "it is not a finite number"
        case None | float():
            pass
        case _:
            problem = "it must be a text, a number, true, false, null, a list or a section"
    if problem:
        where = f"{place}: " if place else ""
        raise ValueError(f"{where}{problem} (given: {given_text(value)})")


FreeValues = Annotated[dict[str, Any], AfterValidator(_check_sendable)]
"""Values whose keys lmx does not know. They are sent to a worker and written as JSON."""

_MOST_CHARACTERS: Final = 80


def given_text(value: Any) -> str:
    """Return what was given, for an error. Of a long text it keeps both ends: the end of a path
    says more than its middle."""
    text = repr(value)
    if len(text) <= _MOST_CHARACTERS:
        return text
    half = (_MOST_CHARACTERS - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def _one_or_more(value: Any) -> Any:
    """Accept one value without a list. A text with commas is not a list."""
    if not isinstance(value, str):
        return value
    if "," in value:
        raise ValueError("several are a list: write [A, B]")
    return (value,)


def _text_of_null(value: Any) -> Any:
    """Return the text `null` for None, because YAML reads the origin `null` as None."""
    return NULL_ORIGIN if value is None else value


def _check_origin(text: str) -> str:
    parse_origin_pattern(text)
    return text.strip()


AllowedHosts = Annotated[
    tuple[Annotated[str, AfterValidator(parse_host_pattern)], ...],
    BeforeValidator(_one_or_more, json_schema_input_type=str | tuple[str, ...]),
]
CorsOrigins = Annotated[
    tuple[Annotated[str, BeforeValidator(_text_of_null), AfterValidator(_check_origin)], ...],
    BeforeValidator(_one_or_more, json_schema_input_type=str | tuple[str | None, ...] | None),
]
