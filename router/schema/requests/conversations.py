"""What requests about conversations may hold."""

from typing import Annotated, Any, Final

from pydantic import Field

from lmx.router.schema.requests.generation import Labels
from lmx.router.schema.requests.responses.items import Item
from lmx.router.schema.requests.responses.responses import InputItemsQuery
from lmx.router.schema.validation import Strict

_MOST_AT_ONCE: Final = 20
"""OpenAI's limit."""

_Items = Annotated[list[Item], Field(max_length=_MOST_AT_ONCE, fail_fast=True)]


class ConversationRequest(Strict):
    """The body of POST /v1/conversations."""

    items: _Items | None = None
    """The first items, in the forms of `input` in `/v1/responses`: up to 20. Default: none."""
    metadata: Labels | None = None
    """Up to 16 names of up to 64 characters, each with a string of up to 512. They are shown again.
    Default: none."""


class ConversationUpdate(Strict):
    """The body of POST /v1/conversations/{id}."""

    metadata: Labels | None = Field(...)
    """What comes in the place of all its metadata. Null: none."""


class ConversationItemsRequest(Strict):
    """The body of POST /v1/conversations/{id}/items."""

    items: Annotated[_Items, Field(min_length=1)]
    """Items that come after those that are there: 1 to 20."""


class ConversationItemsQuery(InputItemsQuery):
    """The query of GET /v1/conversations/{id}/items."""

    include: Any = None
    """It is accepted, and changes nothing: all that is kept is shown."""
