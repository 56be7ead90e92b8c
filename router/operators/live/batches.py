"""The topic ``batches``: the batches of all keys, and how far each is."""

import time

from lmx.protocol.errors import LmxError
from lmx.router.http.responses import Answer
from lmx.router.operators.batches import BatchShown, batches_shown
from lmx.router.operators.live.feed import Topic, event_text
from lmx.router.services import Services


class LiveBatches(Answer):
    """An event `batches` of GET /admin/live. It has all of them each time."""

    at_s: float
    batches: list[BatchShown]
    """Those under way, and then the last ones that have ended, as GET /admin/batches has them."""


class BatchesTopic(Topic):
    """Reads the records, once for all readers."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._sent: list[BatchShown] | None = None

    async def look(self) -> bytes:
        try:
            shown = await batches_shown(self._services)
        except LmxError:
            return b""  # They are shown again when the records can be read.
        if shown == (self._sent or []):
            return b""
        self._sent = shown
        return self.whole()

    def whole(self) -> bytes:
        if self._sent is None:
            return b""
        return event_text("batches", LiveBatches(at_s=round(time.time(), 3), batches=self._sent))
