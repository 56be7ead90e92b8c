"""POST and GET /v1/messages/batches, GET and DELETE /v1/messages/batches/{id}, POST .../cancel and
GET .../results: Anthropic's batches of messages, over the same records as OpenAI's."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NoReturn

import orjson
from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.files import batch_tables
from lmx.router.files.batch_tables import ENDED, BatchRow, BatchStatus
from lmx.router.files.store import Upload, input_name
from lmx.router.files.tables import Page
from lmx.router.http.bodies.json_body import next_step, read_object
from lmx.router.http.outcome import CONTEXT, note_ignored
from lmx.router.http.responses import Answer, PageEnds, json_value, page_ends
from lmx.router.inference.batches.lines import ANTHROPIC_ENDPOINT
from lmx.router.inference.batches.openai import (
    WINDOW_S,
    adding,
    found_batch,
    new_batch_id,
    refused,
)
from lmx.router.inference.files import send_file
from lmx.router.rendering.envelope import utc_text
from lmx.router.schema.requests.batches import (
    MessageBatchesQuery,
    MessageBatchLine,
    MessageBatchRequest,
)
from lmx.router.schema.requests.responses.responses import json_of
from lmx.router.schema.requests.unsupported import ignored_fields
from lmx.router.schema.validation import invalid, short, validated
from lmx.router.services import SERVICES

API: Final = "anthropic"
_WRITTEN_AT_ONCE: Final = 500


class MessageCounts(Answer):
    """How many requests of a batch are where. All are `processing` until it has ended."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(Answer):
    """A batch of messages, as Anthropic's API shows it."""

    id: str
    type: Literal["message_batch"]
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageCounts
    created_at: str
    """A time by RFC 3339, as are the next ones. Null: not yet, or never."""
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None
    results_url: str | None
    """Where the results are, once it has ended."""


class MessageBatchList(PageEnds):
    """A page of batches, the newest first."""

    data: list[MessageBatch]


class DeletedMessageBatch(Answer):
    """A batch that was removed."""

    id: str
    type: Literal["message_batch_deleted"]


async def create_message_batch(request: web.Request) -> web.Response:
    """Make a batch of the requests in the body."""
    services, context = request.app[SERVICES], request[CONTEXT]
    body = await read_object(request, services.spec.body_limit_bytes)
    await next_step(request)
    wanted = validated(MessageBatchRequest, body)
    note_ignored(request, ignored_fields(body, MessageBatchRequest, {}))
    await next_step(request)
    _check(wanted.requests)
    now_s, batch_id = int(time.time()), new_batch_id("msgbatch_")
    name = input_name(batch_id)
    row = BatchRow(
        batch_id,
        context.owner,
        API,
        ANTHROPIC_ENDPOINT,
        name,
        BatchStatus.VALIDATING,
        now_s,
        now_s + WINDOW_S,
        total=len(wanted.requests),
    )
    files = services.files
    async with files.writing(name) as writer:
        upload = Upload(writer)
        for lines in _lines(wanted.requests):
            await upload.write(lines)
        add = adding(files, row, upload.size_bytes)
        with refused(files, "requests"):
            await files.perform(lambda records: writer.commit(lambda: add(records)))
    files.changed.set()
    return json_value(_shown(row))


async def list_message_batches(request: web.Request) -> web.Response:
    """List the batches of the caller's key."""
    query = validated(MessageBatchesQuery, dict(request.query))
    if query.after_id is not None and query.before_id is not None:
        raise invalid("before_id", "can't be there together with `after_id`: send one of them.")
    newest_first = query.before_id is None
    after = query.after_id if newest_first else query.before_id
    page = Page(request[CONTEXT].owner, query.limit, after, newest_first)
    found = await request.app[SERVICES].files.perform(
        lambda records: batch_tables.listed(records, page, API)
    )
    if found is None:
        name = "after_id" if newest_first else "before_id"
        raise invalid(name, f"is not the id of one of the batches: {short(after)}.")
    rows, has_more = found
    return json_value(
        {
            "data": [_shown(row) for row in rows],
            **page_ends([row.id for row in rows], has_more=has_more),
        }
    )


async def get_message_batch(request: web.Request) -> web.Response:
    """Show a batch."""
    return json_value(_shown(await _batch(request)))


async def cancel_message_batch(request: web.Request) -> web.Response:
    """Cancel a batch. One that is at its end ends as it was to."""
    asked = await _batch(request)
    row = await request.app[SERVICES].files.cancel_batch(asked.id)
    return json_value(_shown(row or _missing(asked.id)))


async def delete_message_batch(request: web.Request) -> web.Response:
    """Remove a batch that has ended, with its results."""
    files, row = request.app[SERVICES].files, await _batch(request)
    if row.status not in ENDED:
        raise RequestError(
            ErrorCode.BATCH_ENDED,
            f"The batch {row.id} has not ended: cancel it first, or wait for its end.",
        )
    output = row.output_file_id
    gone = [] if output is None else [output]
    await files.perform(lambda records: batch_tables.remove(records, row.id, gone))
    if output is not None:
        await asyncio.to_thread((files.folder / output).unlink, missing_ok=True)
    return json_value(DeletedMessageBatch(id=row.id, type="message_batch_deleted"))


async def message_batch_results(request: web.Request) -> web.StreamResponse:
    """Send the results of a batch, a line of JSON for each request."""
    files, row = request.app[SERVICES].files, await _batch(request)
    file = None
    if row.output_file_id is not None:
        file = await files.get(row.output_file_id, row.owner)
    if file is None:
        raise RequestError(
            ErrorCode.NOT_FOUND,
            f"There are no results of {row.id}: it has not ended, or they were deleted.",
            param="id",
        )
    return await send_file(request, file, "application/x-jsonl")


def _check(requests: Sequence[MessageBatchLine]) -> None:
    known: set[str] = set()
    for place, one in enumerate(requests):
        if one.custom_id in known:
            raise invalid(
                f"requests[{place}].custom_id",
                f"is that of an earlier request, and must be unique: {short(one.custom_id)}.",
            )
        known.add(one.custom_id)
        for name in ("stream", "background"):
            if one.params.get(name):
                raise invalid(f"requests[{place}].params.{name}", "is not supported in a batch.")
        if not isinstance(one.params.get("model"), str | None):
            raise invalid(f"requests[{place}].params.model", "must be a string.")


def _lines(requests: Sequence[MessageBatchLine]) -> Iterator[bytes]:
    for begin in range(0, len(requests), _WRITTEN_AT_ONCE):
        yield b"".join(
            orjson.dumps(
                {
                    "custom_id": one.custom_id,
                    "method": "POST",
                    "url": ANTHROPIC_ENDPOINT,
                    "body": orjson.Fragment(json_of(one.params, f"requests[{place}].params")),
                },
                option=orjson.OPT_APPEND_NEWLINE,
            )
            for place, one in enumerate(requests[begin : begin + _WRITTEN_AT_ONCE], begin)
        )


def _shown(row: BatchRow) -> MessageBatch:
    status = BatchStatus(row.status)
    over = status in ENDED
    canceling = status is BatchStatus.CANCELLING or (
        status is BatchStatus.FINALIZING and row.end == BatchStatus.CANCELLED
    )
    left = row.left if over else 0
    # Of a batch that failed, none was answered.
    errored = left if status is BatchStatus.FAILED else 0
    expired = left if status is BatchStatus.EXPIRED else 0
    # Clients complete it by the address that they know: behind a proxy this router knows another.
    results = f"/v1/messages/batches/{row.id}/results"
    return MessageBatch(
        id=row.id,
        type="message_batch",
        processing_status="ended" if over else "canceling" if canceling else "in_progress",
        request_counts=MessageCounts(
            processing=0 if over else row.total,
            succeeded=row.completed if over else 0,
            errored=row.failed + errored if over else 0,
            canceled=left - expired - errored,
            expired=expired,
        ),
        created_at=utc_text(row.created_s),
        expires_at=utc_text(row.expires_s),
        ended_at=None if row.ended_s is None else utc_text(row.ended_s),
        cancel_initiated_at=None if row.cancelling_s is None else utc_text(row.cancelling_s),
        archived_at=None,
        results_url=results if row.output_file_id is not None else None,
    )


async def _batch(request: web.Request) -> BatchRow:
    return await found_batch(request, API) or _missing(request.match_info["id"])


def _missing(batch_id: str) -> NoReturn:
    raise RequestError(ErrorCode.NOT_FOUND, f"There is no batch {short(batch_id)}.", param="id")
