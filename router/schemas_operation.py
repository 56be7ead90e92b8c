"""Queries of lmx's own routes for operators."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lmx.router.schema_types import Strict


class LogsQuery(Strict):
    """GET /admin/logs: how many lines that there are come first, and whether to go on."""

    lines: Annotated[int, Field(ge=0, le=10_000, strict=False)] = 100
    follow: Annotated[bool, Field(strict=False)] = True


class EventsQuery(Strict):
    """GET /admin/events: of one model (its id or alias), and of one name or all below it
    (``worker`` has ``worker.ready``). ``last``: how many that there are come first."""

    model: str | None = None
    name: str | None = None
    last: Annotated[int, Field(ge=0, le=2000, strict=False)] = 50
    follow: Annotated[bool, Field(strict=False)] = True
