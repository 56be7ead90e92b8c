"""GET /admin/batches and POST /admin/batches/{id}/cancel: batches of all keys, for operators."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import structlog
from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.router.files import batch_tables
from lmx.router.files.batch_tables import BATCH_ID, BatchRow, BatchStatus
from lmx.router.files.store import check_cancelling
from lmx.router.http.outcome import CONTEXT
from lmx.router.http.responses import Answer, json_value
from lmx.router.schema.validation import short
from lmx.router.services import SERVICES, Services

MOST_SHOWN: Final = 100

_log = structlog.get_logger()


class BatchShown(Answer):
    """A batch of any key. Times are seconds since 1970; null: not yet."""

    id: str
    api: Literal["openai", "anthropic"]
    """By whose API it was made."""
    endpoint: str
    model: str | None
    """The model of all lines. Null: they name several, or they were not read yet."""
    key: str | None
    """The name of its key, or what identifies it. Null: it came without one."""
    status: BatchStatus
    created: int
    expires: int
    ended: int | None
    total: int
    """How many lines it has; 0 while they were not read yet."""
    completed: int
    failed: int
    """Lines that were refused, and those that were not answered before its end."""


class BatchesShown(Answer):
    """The batches under way, and then the last ones that have ended, a hundred together at most."""

    object: Literal["list"]
    data: list[BatchShown]


async def list_all_batches(request: web.Request) -> web.Response:
    """List the batches of all keys."""
    shown = await batches_shown(request.app[SERVICES])
    return json_value(BatchesShown(object="list", data=shown))


async def cancel_any_batch(request: web.Request) -> web.Response:
    """Cancel a batch of any key."""
    services, batch_id = request.app[SERVICES], request.match_info["id"]
    row = None
    if BATCH_ID.fullmatch(batch_id):
        row = await services.files.cancel_batch(batch_id)
    if row is None:
        raise RequestError(
            ErrorCode.NOT_FOUND,
            f"There is no batch {short(batch_id)}: GET /admin/batches lists the latest.",
            param="id",
        )
    check_cancelling(row)
    _log.info("batches.cancelled", batch=row.id, by=request[CONTEXT].shown_key)
    return await list_all_batches(request)


async def batches_shown(services: Services) -> list[BatchShown]:
    """Return the batches as operators see them. Raises FILES_UNAVAILABLE."""
    rows = await services.files.perform(lambda records: batch_tables.latest(records, MOST_SHOWN))
    names = {key.owner: key.shown_name for key in services.keys.ring.keys}
    return [_shown(row, names) for row in rows]


def _shown(row: BatchRow, names: Mapping[str, str]) -> BatchShown:
    api: Any = row.api
    return BatchShown(
        id=row.id,
        api=api,
        endpoint=row.endpoint,
        model=row.model or None,
        key=None if row.owner is None else names.get(row.owner, row.owner),
        status=BatchStatus(row.status),
        created=row.created_s,
        expires=row.expires_s,
        ended=row.ended_s,
        total=row.total,
        completed=row.completed,
        failed=row.failed + row.cut,
    )
