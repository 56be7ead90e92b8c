"""The queries of the routes of kept responses."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from lmx.router.schema.validation import Strict


class RetrieveQuery(Strict):
    """The query of GET /v1/responses/{id}."""

    model_config = ConfigDict(strict=False)

    stream: bool | None = None
    """Whether the events of the response are sent again. Default: false."""
    starting_after: Annotated[int, Field(ge=0)] | None = None
    """The number of the event after which the events begin. Default: from the first on."""


class InputItemsQuery(Strict):
    """The query of GET /v1/responses/{id}/input_items."""

    model_config = ConfigDict(strict=False)

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    """How many items are listed at most. Default: 20."""
    order: Literal["asc", "desc"] = "desc"
    """`asc`: the oldest first. Default: `desc`."""
    after: str | None = None
    """The id of the item after which the list begins. Default: from the first on."""
