"""What a request waits for on its way to a worker's row, as the router sees it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lmx.router.workers.phased_timeout import PhasedTimeout


@dataclass(slots=True)
class Waits:
    """The waits of one request until its worker has taken it. The dispatcher notes them; whoever
    shows the request reads them. Times are on the monotonic clock."""

    arrived_s: float = 0.0
    """Since when it is in line for the model that is tried now."""
    load_s: float = 0.0
    """How long it has waited for its models to be ready, in all waits that are over."""
    loading_since_s: float | None = None
    """Since when it waits for a model to be ready; None while it does not."""
    turn: PhasedTimeout | None = None
    """Its turn at the worker that it was sent to last."""
    sent_s: float | None = None
    """When it was sent to that worker."""
    accepted_s: float | None = None
    """When that worker had rendered the prompt and accepted it."""

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Count the block as a wait for the model. A worker that had the request has it no more."""
        self.turn = self.sent_s = self.accepted_s = None
        began_s = self.loading_since_s = time.monotonic()
        try:
            yield
        finally:
            self.loading_since_s = None
            self.load_s += time.monotonic() - began_s

    def sent(self, turn: PhasedTimeout) -> None:
        """Note that the request was sent to a worker, where it waits for its ``turn``."""
        self.turn, self.sent_s = turn, time.monotonic()

    def accepted(self) -> None:
        """Note that the worker has accepted the request."""
        self.accepted_s = time.monotonic()
