"""The query of the list of models."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from lmx.router.schema.validation import Strict


class ModelsQuery(Strict):
    """The query of GET /v1/models with the header `anthropic-version`; else it is ignored."""

    model_config = ConfigDict(strict=False)

    limit: Annotated[int, Field(ge=1, le=1000)] | None = None
    """How many models a page has at most. Default: all are on one page."""
    after_id: str | None = None
    """The id of the model after which the page begins: the `last_id` of the page before."""
    before_id: str | None = None
    """The id of the model before which the page ends: the `first_id` of the page after."""
