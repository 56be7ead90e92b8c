"""What requests have come to, counted since this router started."""

from __future__ import annotations

from lmx.router.endpoint import Endpoint
from lmx.router.traffic import Record


class RequestMetrics:
    """Counts requests that have ended. Used from one event loop only."""

    def __init__(self) -> None:
        self.requests_total = 0

    def request_ended(self, record: Record, endpoint: Endpoint | None, status: int) -> None:
        """Take a request's end; ``endpoint`` None: it was for no route."""
        if endpoint is not None and not endpoint.quiet and record.model is not None and status:
            self.requests_total += 1
