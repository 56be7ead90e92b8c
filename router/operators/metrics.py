"""GET /metrics, /admin/metrics and /admin/metrics/json: figures for Prometheus and for dashboards.

None of them wakes a model or waits for a worker: they show what the supervisor and this router know
already.
"""

import asyncio
import sqlite3
import time
from typing import Any, Final, TypeVar

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.inventory import Downloads, GetDownloads
from lmx.protocol.messages.status import GetStatus, Status
from lmx.router.files import batch_tables
from lmx.router.http.responses import Answer, json_value
from lmx.router.metrics.exposition import Scrape, exposition
from lmx.router.metrics.peers import PeerFigures
from lmx.router.metrics.requests import NONE
from lmx.router.services import SERVICES, Services
from lmx.router.supervisor.queries import ask

_DEADLINE_S: Final = 2.0
"""A scrape must end soon, even while the supervisor hangs and does not count as gone yet."""


_Reply = TypeVar("_Reply")


class ModelFigures(Answer):
    """Requests of one model since lmx was started."""

    requests: int
    errors: int
    completion_tokens: int


class MetricsAnswer(Answer):
    """The answer of GET /admin/metrics/json. The totals include models that are gone, and requests
    that named no existing model."""

    total_requests: int
    total_errors: int
    total_stream_requests: int
    total_prompt_tokens: int
    total_completion_tokens: int
    per_model: dict[str, ModelFigures]
    uptime_seconds: float


async def metrics(request: web.Request) -> web.Response:
    """Return the metrics. ``/metrics`` needs no key on loopback until models need one."""
    services = request.app[SERVICES]
    status, downloads, batches = await asyncio.gather(
        _answered(services, GetStatus(), Status),
        _answered(services, GetDownloads(), Downloads),
        _batches(services),
    )
    await services.counts.settled()
    directory = services.supervisor.latest
    models = () if directory is None else directory.bases
    forwarded_to = services.metrics.forwarded_to
    scrape = Scrape(
        version=services.spec.version,
        status=None if status is None else status.status,
        models=models,
        waiting={model.model_id: services.queues.waiting(model.model_id) for model in models},
        downloads=downloads,
        requests=services.metrics.read(),
        batches=batches[0],
        batch_lines_left=batches[1],
        peers=[
            PeerFigures(link.name, link.answers, link.running, forwarded_to(link.name))
            for link in services.peers.links
        ],
    )
    body = await asyncio.to_thread(exposition, scrape)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def admin_metrics_json(request: web.Request) -> web.Response:
    """Return the sums of all that was counted since lmx started, in total and for each model."""
    services = request.app[SERVICES]
    await services.counts.settled()
    reading = services.metrics.read()
    return json_value(
        MetricsAnswer(
            total_requests=reading.totals.requests,
            total_errors=reading.totals.errors,
            total_stream_requests=reading.totals.streams,
            total_prompt_tokens=reading.totals.prompt_tokens,
            total_completion_tokens=reading.totals.completion_tokens,
            per_model={
                model_id: ModelFigures(
                    requests=tally.requests,
                    errors=tally.errors.total(),
                    completion_tokens=tally.completion_tokens,
                )
                for model_id, tally in reading.models.items()
                if model_id != NONE
            },
            uptime_seconds=round(time.time() - services.counts.since_s, 3),
        )
    )


async def _batches(services: Services) -> tuple[dict[str, int] | None, int]:
    def read(records: sqlite3.Connection) -> tuple[dict[str, int], int]:
        return batch_tables.statuses(records), batch_tables.lines_left(records)

    try:
        async with asyncio.timeout(_DEADLINE_S):
            return await services.files.perform(read)
    except (LmxError, TimeoutError):
        return None, 0


async def _answered(services: Services, question: Any, kind: type[_Reply]) -> _Reply | None:
    try:
        return await ask(services.supervisor, question, kind, _DEADLINE_S)
    except LmxError:
        return None
