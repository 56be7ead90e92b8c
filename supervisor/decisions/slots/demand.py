"""The requests and operators that wait for a model, as a value. This module is pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

MAX_WAITERS: Final = 1000

_ASKS_AGAIN_S: Final = 2.0
"""A router that has learned that a load takes longer asks again at once, if the model is still
wanted. Its place in the queue is kept for this long."""


@dataclass(frozen=True, slots=True)
class Requester:
    """The process that asked a question on the control socket, and the number of the question."""

    identity: bytes
    correlation: int


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request that waits until its model is ready."""

    requester: Requester
    deadline_s: float
    since_s: float
    """Since when the request has waited, with the time before it asked, as it says."""


@dataclass(frozen=True, slots=True)
class Demand:
    """All requests and operators that wait for one model. Times are monotonic seconds."""

    waiters: tuple[Waiter, ...] = ()
    ordered_at_s: float | None = None
    """Since when an operator has waited for the model. An operator waits for ever."""
    lapsed_since_s: float = 0.0
    """Since when the oldest of the requests had waited whose time to wait ended last."""
    lapsed_at_s: float | None = None
    """When the time of these requests ended."""
    joined: bool = False
    """Whether the model was on its way already when the first of them began to wait."""

    @property
    def is_full(self) -> bool:
        """Whether no other request may wait."""
        return len(self.waiters) >= MAX_WAITERS

    def requested_at_s(self, now_s: float) -> float | None:
        """Return since when somebody has waited for the model, None if nobody waits."""
        asked = [waiter.since_s for waiter in self.waiters]
        if self.ordered_at_s is not None:
            asked.append(self.ordered_at_s)
        if self.lapsed_at_s is not None and now_s < self.lapsed_at_s + _ASKS_AGAIN_S:
            asked.append(self.lapsed_since_s)
        return min(asked, default=None)

    def with_waiter(self, waiter: Waiter) -> Demand:
        """Return the demand with one more request."""
        return replace(self, waiters=(*self.waiters, waiter))

    def without(self, identity: bytes) -> Demand:
        """Return the demand without the requests of one asker, which need no reply."""
        left = tuple(waiter for waiter in self.waiters if waiter.requester.identity != identity)
        return replace(self, waiters=left)

    def lapse(self, now_s: float) -> tuple[Demand, tuple[Waiter, ...]]:
        """Return the demand without the requests whose time to wait is over, and those requests.
        The place of the oldest one is kept for a moment."""
        overdue = tuple(waiter for waiter in self.waiters if now_s >= waiter.deadline_s)
        if not overdue:
            return self, ()
        left = replace(
            self,
            waiters=tuple(waiter for waiter in self.waiters if now_s < waiter.deadline_s),
            lapsed_since_s=min(waiter.since_s for waiter in overdue),
            lapsed_at_s=now_s,
        )
        return left, overdue
