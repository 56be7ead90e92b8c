"""What a handler may use, in one place on the application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from lmx.protocol.specs import RouterSpec
from lmx.router.event_feed import EventFeed
from lmx.router.farewell import Farewell
from lmx.router.generation import Dispatcher
from lmx.router.job_store import JobStore
from lmx.router.kept_counts import KeptCounts
from lmx.router.live_requests import LiveRequests
from lmx.router.rate_limits import RateLimiter
from lmx.router.request_metrics import RequestMetrics
from lmx.router.supervisor_link import SupervisorLink
from lmx.router.tasks import TaskDispatcher
from lmx.router.traffic import Traffic
from lmx.router.waiting_room import WaitingRoom


@dataclass(frozen=True, slots=True)
class Services:
    spec: RouterSpec
    supervisor: SupervisorLink
    room: WaitingRoom
    traffic: Traffic
    dispatcher: Dispatcher
    tasks: TaskDispatcher
    metrics: RequestMetrics
    live: LiveRequests
    jobs: JobStore
    events: EventFeed
    limiter: RateLimiter
    counts: KeptCounts
    farewell: Farewell


SERVICES: Final = web.AppKey("services", Services)
