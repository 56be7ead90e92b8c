"""GET /admin/live: the route, and the table of its topics."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from aiohttp import web

from lmx.router.http.sse import EventStream
from lmx.router.operators.events import EventLine
from lmx.router.operators.live.batches import BatchesTopic, LiveBatches
from lmx.router.operators.live.events import EventTopic
from lmx.router.operators.live.feed import LiveFeed, Reader, Topic, event_text
from lmx.router.operators.live.figures import FiguresTopic, LiveFigures
from lmx.router.operators.live.requests import LiveRequestsShown, RequestsTopic
from lmx.router.operators.live.status import LiveStatus, StatusTopic
from lmx.router.operators.logs import LogLine, last_lines, log_path, more_lines
from lmx.router.schema.requests.operators import LiveQuery
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES, Services

LIVE: Final = web.AppKey("live", LiveFeed)

LiveEvent = LiveStatus | LiveFigures | LiveRequestsShown | LiveBatches | EventLine | LogLine
"""The data of the stream's events."""

_LOOK_S: Final = 0.5
"""How often a stream without news looks whether the router stops, and for new lines of a log."""

_FIRST_LINES: Final = 200
_FIRST_S: Final = 5.0
"""How long who does not follow waits for the first values."""


def live_topics(services: Services) -> Sequence[Topic]:
    """Return the stream's topics, in the order in which they are looked at. A new topic is a line
    here, and a shape in ``LiveEvent``."""
    status = StatusTopic(services.supervisor)
    return (
        status,
        FiguresTopic(lambda: status.models, services.metrics.latest, services.queues.waiting),
        RequestsTopic(services.live),
        BatchesTopic(services),
        EventTopic(services.events),
    )


async def stream_live(request: web.Request) -> web.StreamResponse:
    """Send all that changes, as events with names: `status`, `figures`, `requests`, `batches`,
    `event`, and with `logs` in the query `log`.

    The whole values come first, and again for a client that has fallen behind: events that it had
    may come again then, so it goes by `epoch` and `seq`. Each topic sends at most once a second,
    and only what is new. The stream ends when the client leaves, when the router stops, and with
    ``follow=false`` after the first values. While the supervisor does not answer, `status` says
    so. Raises MODEL_NOT_FOUND for the log of a model that there is not, and SUPERVISOR_UNAVAILABLE
    if it is not known which there are.
    """
    services = request.app[SERVICES]
    query = validated(LiveQuery, dict(request.query))
    log = None
    if query.logs is not None:
        directory = await services.supervisor.directory()
        log = log_path(directory, Path(services.spec.logs_dir), query.logs)
    with request.app[LIVE].reading() as reader:
        stream = EventStream(request, services.spec.stall_timeout_s)
        events = _events(services, reader, log, follow=query.follow)
        await stream.send_and_end(events, services.spec.ping_interval_s)
    return stream.response


async def _events(
    services: Services, reader: Reader, log: Path | None, *, follow: bool
) -> AsyncIterator[bytes]:
    """Yield what is new, until the router stops."""
    look_s = min(_LOOK_S, services.spec.ping_interval_s)
    wait_s, lines, place = look_s if follow else _FIRST_S, list[str](), None
    while not services.traffic.closed:
        yield await reader.next_events(wait_s)
        if log is not None:
            if place is None:
                lines, place = await asyncio.to_thread(last_lines, log, _FIRST_LINES)
            else:
                lines, place = await asyncio.to_thread(more_lines, log, place)
            yield b"".join(event_text("log", LogLine(line=line)) for line in lines)
            # There may be more lines than one read has.
            wait_s = 0.0 if lines else look_s
        if not follow:
            return
