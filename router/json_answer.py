"""Answers that are made of their descriptions, and the units of their sizes."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from lmx.router.answer_types import Answer

_GIB: Final = 1024**3
_MIB: Final = 1024**2


def json_answer(answer: Answer, status: int = 200) -> web.Response:
    """Return an answer as JSON, without the fields that it was not given."""
    return web.Response(
        status=status,
        body=answer.model_dump_json(exclude_unset=True).encode(),
        content_type="application/json",
    )


def to_gb(size_bytes: int) -> float:
    """Return bytes in the unit of the fields in ``_gb``: GiB, of which a Mac that is sold with
    128 GB of memory has 128."""
    return round(size_bytes / _GIB, 4)


def to_mb(size_bytes: int) -> int:
    """Return bytes in the unit of the fields in ``_mb``: whole MiB, rounded up, so that what is
    small is not nothing."""
    return -(-size_bytes // _MIB)
