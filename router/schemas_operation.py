"""Queries of lmx's own routes for operators. Their values are strings, so numbers and booleans
are read from these."""

from __future__ import annotations

from pydantic import Field

from lmx.router.schema_types import Strict

_FOLLOW = "Whether the stream goes on with what comes, until the client leaves."


class LogsQuery(Strict):
    """GET /admin/logs."""

    lines: int = Field(
        100, ge=0, le=10_000, strict=False, description="So many lines that there are come first."
    )
    follow: bool = Field(True, strict=False, description=_FOLLOW)


class EventsQuery(Strict):
    """GET /admin/events."""

    model: str | None = Field(
        None, description="Events of this model alone: its id, alias or source."
    )
    name: str | None = Field(
        None,
        description="Events of this name alone, and of all below it: `worker` has `worker.ready`.",
    )
    last: int = Field(
        50,
        ge=0,
        le=2000,
        strict=False,
        description="So many events that there are come first, unless Last-Event-ID says which.",
    )
    follow: bool = Field(True, strict=False, description=_FOLLOW)
