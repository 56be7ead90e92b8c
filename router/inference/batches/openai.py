"""POST and GET /v1/batches, GET /v1/batches/{id} and POST /v1/batches/{id}/cancel: OpenAI's
batches."""

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal, NoReturn

import orjson
from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError, UnavailableError
from lmx.router.files import batch_tables
from lmx.router.files.batch_tables import BATCH_ID, ENDED, BatchRow, BatchStatus
from lmx.router.files.store import FileStore, check_cancelling, input_name
from lmx.router.files.tables import FileRow, Page
from lmx.router.http.bodies.json_body import read_object
from lmx.router.http.outcome import CONTEXT, note_ignored
from lmx.router.http.responses import Answer, ListPage, json_page, json_value
from lmx.router.inference.batches.lines import MOST_INPUT_BYTES
from lmx.router.inference.batches.validation import linked
from lmx.router.inference.named_files import missing_file, named_file
from lmx.router.schema.requests.batches import BatchesQuery, BatchRequest
from lmx.router.schema.requests.unsupported import ignored_fields
from lmx.router.schema.validation import invalid, short, validated
from lmx.router.services import SERVICES

API: Final = "openai"
WINDOW_S: Final = 86_400
_MOST_UNDER_WAY: Final = 100
"""How many batches of a key may be under way."""


class BatchErrorObject(Answer):
    """What is wrong with a line of the input."""

    code: str
    message: str
    param: str | None
    line: int | None
    """The line's number, from 1. Null: it is the whole input."""


class BatchErrors(Answer):
    """Why a batch did not begin."""

    object: Literal["list"]
    data: list[BatchErrorObject]


class RequestCounts(Answer):
    """How many lines of a batch there are, and what became of them."""

    total: int
    completed: int
    failed: int


class InputTokenDetails(Answer):
    """What the tokens of prompts were."""

    cached_tokens: int


class OutputTokenDetails(Answer):
    """What the tokens of answers were."""

    reasoning_tokens: int


class BatchUsage(Answer):
    """The tokens of all lines that were answered."""

    input_tokens: int
    input_tokens_details: InputTokenDetails
    output_tokens: int
    output_tokens_details: OutputTokenDetails
    total_tokens: int


class BatchObject(Answer):
    """A batch, as OpenAI's API shows it. Times are seconds since 1970; null: not yet, or never."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    """The model of all lines. Null: they name several, or they were not read yet."""
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: BatchStatus
    output_file_id: str | None
    """The file with the answers. Null: not yet, or there is none."""
    error_file_id: str | None
    """The file with the lines that were refused or not answered. Null likewise."""
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(ListPage):
    """A page of batches, the newest first."""

    data: list[BatchObject]


async def create_batch(request: web.Request) -> web.Response:
    """Make a batch of an uploaded file. Its lines are looked at after this has been answered."""
    services, context = request.app[SERVICES], request[CONTEXT]
    body = await read_object(request, services.spec.body_limit_bytes)
    wanted = validated(BatchRequest, body)
    note_ignored(request, ignored_fields(body, BatchRequest, {}))
    file = await named_file(request, wanted.input_file_id, "input_file_id")
    if file.purpose != "batch":
        raise invalid(
            "input_file_id",
            f"names a file with the purpose {file.purpose!r}: upload it with the purpose 'batch'.",
        )
    if file.bytes > MOST_INPUT_BYTES:
        raise invalid(
            "input_file_id", f"names a file of {file.bytes} bytes: the lines of a batch may have "
            f"{MOST_INPUT_BYTES}.",
        )  # fmt: skip
    now_s, expiry = int(time.time()), wanted.output_expires_after
    row = BatchRow(
        new_batch_id(),
        context.owner,
        API,
        wanted.endpoint,
        file.id,
        BatchStatus.VALIDATING,
        now_s,
        now_s + WINDOW_S,
        None if wanted.metadata is None else orjson.dumps(wanted.metadata),
        None if expiry is None else expiry.seconds,
    )
    with refused(services.files, "input_file_id"):
        if not await services.files.perform(_adding_with_input(services.files, row, file)):
            raise missing_file(file.id, "input_file_id")
    services.files.changed.set()
    return json_value(batch_object(row))


async def list_batches(request: web.Request) -> web.Response:
    """List the batches of the caller's key."""
    query = validated(BatchesQuery, dict(request.query))
    page = Page(request[CONTEXT].owner, query.limit, query.after)
    found = await request.app[SERVICES].files.perform(
        lambda records: batch_tables.listed(records, page, API)
    )
    if found is None:
        raise invalid("after", f"is not the id of one of the batches: {short(query.after)}.")
    rows, has_more = found
    return json_page([(row.id, batch_object(row)) for row in rows], has_more=has_more)


async def get_batch(request: web.Request) -> web.Response:
    """Show a batch."""
    return json_value(batch_object(await _batch(request)))


async def cancel_batch(request: web.Request) -> web.Response:
    """Cancel a batch. What was answered until now is in its output."""
    asked = await _batch(request)
    row = await request.app[SERVICES].files.cancel_batch(asked.id)
    if row is None:
        _missing(asked.id)
    check_cancelling(row)
    return json_value(batch_object(row))


def new_batch_id(prefix: str = "batch_") -> str:
    """Return the id of a new batch."""
    return f"{prefix}{secrets.token_hex(12)}"


def adding(
    files: FileStore, row: BatchRow, input_bytes: int
) -> Callable[[sqlite3.Connection], bool]:
    """Return what adds a batch with an input of that size, within :func:`refused`, and returns
    True."""
    return lambda records: batch_tables.add(records, row, input_bytes, _MOST_UNDER_WAY, files.quota)


def _adding_with_input(
    files: FileStore, row: BatchRow, file: FileRow
) -> Callable[[sqlite3.Connection], bool]:
    """Return what adds a batch that has its input for itself, so that its client may delete the
    file once this was answered, and returns whether the file was still there."""
    add = adding(files, row, file.bytes)

    def added(records: sqlite3.Connection) -> bool:
        path = files.folder / input_name(row.id)
        if not linked(files.path(file), path):
            return False
        try:
            return add(records)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    return added


@contextmanager
def refused(files: FileStore, param: str) -> Iterator[None]:
    """Raise for clients why a batch was not added: QUEUE_FULL, or REQUEST_TOO_LARGE about the field
    ``param``."""
    try:
        yield
    except batch_tables.TooManyError as error:
        raise UnavailableError(
            ErrorCode.QUEUE_FULL,
            f"{_MOST_UNDER_WAY} batches of this key are under way, as many as may be: try again "
            "when one has ended.",
            retry_after_s=60.0,
        ) from error
    except batch_tables.NoRoomError as error:
        raise files.no_room(error.limit_bytes, param) from error


def batch_object(row: BatchRow) -> BatchObject:
    """Return a batch as a client gets it."""
    status = BatchStatus(row.status)
    ends = dict.fromkeys(ENDED, None) | {status: row.ended_s}
    errors: BatchErrors | None = None
    if row.errors is not None:
        errors = BatchErrors(object="list", data=orjson.loads(row.errors))
    return BatchObject(
        id=row.id,
        object="batch",
        endpoint=row.endpoint,
        model=row.model,
        errors=errors,
        input_file_id=row.input_file_id,
        completion_window="24h",
        status=status,
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        created_at=row.created_s,
        in_progress_at=row.in_progress_s,
        expires_at=row.expires_s,
        finalizing_at=row.finalizing_s,
        completed_at=ends[BatchStatus.COMPLETED],
        failed_at=ends[BatchStatus.FAILED],
        expired_at=ends[BatchStatus.EXPIRED],
        cancelling_at=row.cancelling_s,
        cancelled_at=ends[BatchStatus.CANCELLED],
        request_counts=RequestCounts(
            total=row.total, completed=row.completed, failed=row.failed + row.cut
        ),
        usage=BatchUsage(
            input_tokens=row.input_tokens,
            input_tokens_details=InputTokenDetails(cached_tokens=row.cached_tokens),
            output_tokens=row.output_tokens,
            output_tokens_details=OutputTokenDetails(reasoning_tokens=row.reasoning_tokens),
            total_tokens=row.input_tokens + row.output_tokens,
        ),
        metadata=None if row.metadata is None else orjson.loads(row.metadata),
    )


async def found_batch(request: web.Request, api: str) -> BatchRow | None:
    """Return the batch that a route names; None if the caller's key has none of this API."""
    batch_id, owner = request.match_info["id"], request[CONTEXT].owner
    if not BATCH_ID.fullmatch(batch_id):
        return None
    return await request.app[SERVICES].files.perform(
        lambda records: batch_tables.get(records, batch_id, owner, api)
    )


async def _batch(request: web.Request) -> BatchRow:
    return await found_batch(request, API) or _missing(request.match_info["id"])


def _missing(batch_id: str) -> NoReturn:
    # OpenAI's words.
    raise RequestError(
        ErrorCode.NOT_FOUND, f"No batch found with id {short(batch_id)}.", param="id"
    )
