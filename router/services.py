"""What a handler may use, in one place on the application."""

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from lmx.protocol.messages.specs import RouterSpec
from lmx.router.http.rate_limits import RateLimiter
from lmx.router.http.traffic import Traffic
from lmx.router.jobs.event_logs import EventLogs
from lmx.router.jobs.hang_notice import HangNotice
from lmx.router.jobs.live import LiveRequests
from lmx.router.jobs.store import JobStore
from lmx.router.media.reader import MediaReader
from lmx.router.metrics.requests import RequestMetrics
from lmx.router.metrics.shared_counts import SharedCounts
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


SERVICES: Final = web.AppKey("services", Services)
