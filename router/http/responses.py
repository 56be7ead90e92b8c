"""Makes HTTP responses of JSON, above all of answers that are described by a class.

It also holds the base class of those answers and the units of their sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """An object in an answer. A field without a default is always present; a field with the default
    None may be left out. Tests see to it that an answer has these fields and no other; clients are
    told that more may be added."""

    # A validator is made when the first answer of its kind is. Most of them describe answers that
    # other modules write, and would take a tenth of a router's start.
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", defer_build=True)


_GIB: Final = 1024**3
_MIB: Final = 1024**2


def json_answer(answer: Answer, status: int = 200) -> web.Response:
    """Return an answer as JSON, without the fields that it was not given."""
    return json_text(answer.model_dump_json(exclude_unset=True).encode(), status)


def json_array(answers: Iterable[Answer]) -> web.Response:
    """Return answers as a JSON array, each without the fields that it was not given."""
    return json_value([answer.model_dump(exclude_unset=True) for answer in answers])


def json_value(value: Any) -> web.Response:
    """Return a value as JSON."""
    return json_text(orjson.dumps(value))


def json_text(text: bytes, status: int = 200) -> web.Response:
    """Return text that is JSON already."""
    return web.Response(status=status, body=text, content_type="application/json")


def add_vary(response: web.StreamResponse, *names: str) -> None:
    """Say that the response depends on headers of the request, besides those that it named before.
    A cache keeps one response for each of their values."""
    known = [name.strip() for name in response.headers.get("Vary", "").split(",") if name.strip()]
    taken = {name.lower() for name in known}
    known += [name for name in names if name.lower() not in taken]
    response.headers["Vary"] = ", ".join(known)


def to_gb(size_bytes: int) -> float:
    """Return bytes in the unit of the fields in ``_gb``. The unit is GiB: a Mac that is sold with
    128 GB of memory has 128 of them."""
    return round(size_bytes / _GIB, 4)


def to_mb(size_bytes: int) -> int:
    """Return bytes in the unit of the fields in ``_mb``: whole MiB, rounded up, so that a small
    size does not become 0."""
    return -(-size_bytes // _MIB)
