"""A loaded model at work: it handles every request, of all kinds. Event loop only."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from lmx.protocol.messages.data import Cancel, Credit, Generate
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.messages.tasks import Task
from lmx.worker.engine.interfaces import Engine
from lmx.worker.media.decoder import MediaDecoder
from lmx.worker.scheduling.progress import InFlight
from lmx.worker.scheduling.thread import EngineThread
from lmx.worker.service.admission import IdleClock, LifetimeCounts, Power
from lmx.worker.service.fair_thread import FairThread
from lmx.worker.service.generations import Generations
from lmx.worker.service.open_requests import OpenRequests
from lmx.worker.service.tasks import Tasks

RouterMessage = Generate | Task | Credit | Cancel
"""The messages that a router sends to a worker."""


class Serving:
    """Handles the requests of a loaded model. It is made when the model is loaded, since there can
    be no request before.

    ``send`` and ``became_idle`` are described at :class:`OpenRequests`.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        engine: Engine,
        prompts: FairThread,
        media: FairThread,
        checks: FairThread,
        decoder: MediaDecoder,
        thread: EngineThread,
        in_flight: InFlight,
        counts: LifetimeCounts,
        idle_clock: IdleClock,
        power: Power,
        send: Callable[[bytes, Any], bool],
        became_idle: Callable[[], None],
    ) -> None:
        needs = engine.facts.media
        self.open = OpenRequests(
            spec, prompts, media, checks, decoder, needs, in_flight, send, became_idle
        )
        self._generations = Generations(spec, engine, thread, self.open, counts, idle_clock, power)
        self._tasks = Tasks(engine, thread, self.open, counts, idle_clock)
        thread.report_to(self._generations.deliver, self._tasks.computed)
        idle_clock.loaded(time.monotonic())

    def receive(self, router: bytes, message: RouterMessage, blobs: Sequence[bytes] = ()) -> None:
        """Handle a router's message. ``blobs`` are the bytes of its media."""
        match message:
            case Generate():
                self._generations.submit(router, message, blobs)
            case Credit(stream_id, deltas):
                self._generations.credit(router, stream_id, deltas)
            case Cancel(stream_id):
                self.open.cancel(router, stream_id)
            case _:
                self._tasks.submit(router, message, blobs)
