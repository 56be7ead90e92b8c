"""What a handler may use, in one place on the application."""

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from lmx.protocol.messages.specs import RouterSpec
from lmx.router.files.store import FileStore
from lmx.router.http.access import key_of_open_route
from lmx.router.http.keys import Keys
from lmx.router.http.outcome import CONTEXT
from lmx.router.http.rate_limits import RateLimiter
from lmx.router.http.traffic import Traffic
from lmx.router.jobs.event_logs import EventLogs
from lmx.router.jobs.hang_notice import HangNotice
from lmx.router.jobs.live import LiveRequests
from lmx.router.jobs.store import JobStore
from lmx.router.media.reader import MediaReader
from lmx.router.metrics.requests import RequestMetrics
from lmx.router.metrics.shared_counts import SharedCounts
from lmx.router.peers.forwarded import FORWARDED_HEADER
from lmx.router.peers.peers import Peers
from lmx.router.supervisor.directory import Directory
from lmx.router.supervisor.event_feed import EventFeed
from lmx.router.supervisor.link import SupervisorLink
from lmx.router.supervisor.model_queues import ModelQueues
from lmx.router.usage.store import UsageStore
from lmx.router.workers.dispatch import Dispatcher, TaskDispatcher


@dataclass(frozen=True, slots=True)
class Services:
    """All that handlers share. The process makes it once, and no handler changes it."""

    spec: RouterSpec
    supervisor: SupervisorLink
    queues: ModelQueues
    traffic: Traffic
    dispatcher: Dispatcher
    tasks: TaskDispatcher
    metrics: RequestMetrics
    live: LiveRequests
    jobs: JobStore
    event_logs: EventLogs
    events: EventFeed
    limiter: RateLimiter
    counts: SharedCounts
    hang_notice: HangNotice
    media: MediaReader
    usage: UsageStore
    files: FileStore
    keys: Keys
    peers: Peers


SERVICES: Final = web.AppKey("services", Services)


async def directory_for(request: web.Request) -> Directory:
    """Return the models that a request may use: those that its key is for. Raises as
    :meth:`SupervisorLink.directory` does."""
    directory = await request.app[SERVICES].supervisor.directory()
    return directory.limited_to(request[CONTEXT].grant)


async def listed_for(request: web.Request, *, openai: bool = True) -> Directory:
    """Return the models that a request may name, those of peers among them, and unless ``openai``
    is false those of servers that have OpenAI's API alone. A peer gets those of this machine alone.
    Raises as :func:`directory_for` does."""
    services, key = request.app[SERVICES], request[CONTEXT].grant
    directory = await services.supervisor.directory()
    if FORWARDED_HEADER not in request.headers:
        directory = await services.peers.listed(directory, key, openai=openai)
    return directory.limited_to(key)


def directory_without_key(request: web.Request) -> tuple[Directory | None, bool]:
    """Return the directory for a route that needs no key, and whether the answer may have names of
    models. A key that is sent all the same limits them to its own."""
    services = request.app[SERVICES]
    directory = services.supervisor.latest
    names, key = key_of_open_route(request, services.keys.ring)
    return None if directory is None else directory.limited_to(key), names
