"""The bodies and queries of the routes of batches."""

from typing import Annotated, Any, Literal

from pydantic import Field

from lmx.router.schema.requests.files import ExpiresAfter
from lmx.router.schema.requests.generation import Labels
from lmx.router.schema.validation import Strict


class BatchRequest(Strict):
    """The body of POST /v1/batches."""

    input_file_id: str
    """The id of an uploaded file with the purpose `batch`. Each of its lines is a request:
    `custom_id`, `method` (`POST`), `url` (the endpoint) and `body`; up to 50,000 of them, and 200
    MB."""
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
    """The route that all lines are for."""
    completion_window: Literal["24h"]
    """In what time the batch is done or expires: there is only `24h`."""
    metadata: Labels | None = None
    """Up to 16 texts by their names, which are kept with the batch. Default: none."""
    output_expires_after: ExpiresAfter | None = None
    """When the files of its output are removed. Default: after 30 days."""


class BatchesQuery(Strict):
    """GET /v1/batches."""

    after: str | None = Field(
        None, description="The list begins after the batch with this id. Default: with the first."
    )
    limit: int = Field(20, ge=1, le=100, strict=False, description="The most batches to list.")


class MessageBatchLine(Strict):
    """One request of a batch of messages."""

    custom_id: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    """What its result is found by: letters, digits, `_` and `-`, another one in each request."""
    params: dict[str, Any]
    """The body of a request to `/v1/messages`, without `stream`."""


class MessageBatchRequest(Strict):
    """The body of POST /v1/messages/batches."""

    requests: Annotated[
        list[MessageBatchLine], Field(min_length=1, max_length=10_000, fail_fast=True)
    ]
    """The requests. All of them are at most as large as any body: `server.body_limit_bytes`, and
    150,000 strings, arrays and objects, names of fields included, which is 15 for the smallest
    request."""


class MessageBatchesQuery(Strict):
    """GET /v1/messages/batches."""

    after_id: str | None = Field(
        None, description="The page begins after the batch with this id. Default: with the newest."
    )
    before_id: str | None = Field(None, description="The page ends before the batch with this id.")
    limit: int = Field(20, ge=1, le=1000, strict=False, description="The most batches of a page.")
