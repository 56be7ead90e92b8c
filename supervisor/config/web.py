"""Kinds of values in the configuration: names of hosts and origins of web pages."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from lmx.protocol.web_origins import NULL_ORIGIN, parse_host_pattern, parse_origin_pattern


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
