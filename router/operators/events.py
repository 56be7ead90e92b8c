"""GET /admin/events: the supervisor's events as server-sent events."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final

import orjson
from aiohttp import web

from lmx.protocol.messages.control import Event, event_object
from lmx.router.http.responses import Answer
from lmx.router.http.sse import EventStream
from lmx.router.schema.requests.operators import EventsQuery
from lmx.router.schema.validation import validated
from lmx.router.services import SERVICES, Services
from lmx.router.supervisor.event_feed import FeedEvent, Listener

_LOOK_S: Final = 0.5
"""How often a stream without news looks whether the router stops."""

_Filter = Callable[[Iterable[FeedEvent]], Sequence[FeedEvent]]


class EventLine(Answer):
    """An event of GET /admin/events."""

    epoch: str
    """The id of the supervisor that sent it: another supervisor begins another epoch."""
    seq: int
    """The event's number. It counts within an epoch."""
    at_s: float
    name: str
    model: str | None
    """The model that it is about. Null if it is about no model."""
    detail: str
    data: dict[str, Any]


async def stream_events(request: web.Request) -> web.StreamResponse:
    """Send the latest events, then each new one.

    Those of supervisors before are among them, as far as they are kept. An event's id is its epoch
    and its number. With it in ``Last-Event-ID`` all later events are sent. The
    stream ends when the client leaves, when the router stops, and with ``follow=false`` after the
    last event. Raises MODEL_NOT_FOUND, SUPERVISOR_UNAVAILABLE.
    """
    services = request.app[SERVICES]
    query = validated(EventsQuery, dict(request.query))
    model_id = None
    if query.model is not None:
        directory = await services.supervisor.directory()
        model_id = directory.base(directory.resolve(query.model)).model_id
    wanted = _filter(model_id, query.name)
    since = _since(request.headers.get("Last-Event-ID"))
    async with services.events.listen() as listener:
        found = wanted(await listener.next_batch(0))
        found = found[max(0, len(found) - query.last) :] if since is None else missed(found, *since)
        stream = EventStream(request, services.spec.stall_timeout_s)
        batches = _batches(services, found, listener, wanted, follow=query.follow)
        await stream.send_and_end(batches, services.spec.ping_interval_s)
    return stream.response


async def _batches(
    services: Services,
    found: Sequence[FeedEvent],
    listener: Listener,
    wanted: _Filter,
    *,
    follow: bool,
) -> AsyncIterator[bytes]:
    """Yield the events in ``found``, then new ones, until the router stops."""
    wait_s = min(_LOOK_S, services.spec.ping_interval_s)
    while True:
        yield b"".join(map(_event, found))
        if not follow or services.traffic.closed:
            return
        found = wanted(await listener.next_batch(wait_s))


def missed(found: Sequence[FeedEvent], epoch: str, seq: int) -> Sequence[FeedEvent]:
    """Return the events that came after a given one; all of them if nothing of its epoch is
    known."""
    seen = [
        index for index, each in enumerate(found) if each.epoch == epoch and each.event.seq <= seq
    ]
    return found[seen[-1] + 1 :] if seen else found


def _since(last_event_id: str | None) -> tuple[str, int] | None:
    epoch, _, seq = (last_event_id or "").rpartition("-")
    # An id in another form is ignored: a client sends the last id that it saw, perhaps elsewhere.
    return (
        (epoch, int(seq)) if epoch and seq.isascii() and seq.isdecimal() and len(seq) < 20 else None
    )


def _filter(model_id: str | None, name: str | None) -> _Filter:
    def fits(event: Event) -> bool:
        return (model_id is None or event.model_id == model_id) and (
            name is None or event.name == name or event.name.startswith(f"{name}.")
        )

    return lambda found: [each for each in found if fits(each.event)]


def _event(happening: FeedEvent) -> bytes:
    epoch, event = happening.epoch, happening.event
    body = event_object(epoch, event)
    return b"id: %s-%d\ndata: %s\n\n" % (epoch.encode(), event.seq, orjson.dumps(body))
