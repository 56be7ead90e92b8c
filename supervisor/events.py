"""Keeps what happened lately for `lmx events`, in a ring in memory, and writes it to the log and to
a file (:mod:`lmx.supervisor.state.event_file`)."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final, Protocol

import structlog

from lmx.protocol.free_text import clamp, clamp_values
from lmx.protocol.messages.control import EarlierEvents, Event, EventList

_KEPT: Final = 2000

_WARNINGS: Final = frozenset(
    {
        "config.rejected", "key.odd", "model.not_started", "model.quarantined", "model.shadowed",
        "router.not_replaced", "router.unresponsive", "routing.incomplete", "supervisor.notice",
        "worker.stuck",
    }
)  # fmt: skip
"""The events that the log has as warnings: what a person may have to do something about."""

log = structlog.get_logger()


class Events(Protocol):
    """Takes events that people may want to know about."""

    def note(self, name: str, model_id: str | None, detail: str, **data: Any) -> None:
        """Keep an event. ``name`` is ``subject.what_happened``, and ``detail`` is a sentence for
        people. ``data`` has plain values, with units in their names."""


class EventLog:
    """Numbers the events from 1 within an epoch, and keeps the latest. Only the supervisor's event
    loop writes to it. ``keep(epoch, event)`` puts an event where it outlives the supervisor, and
    never raises. ``earlier`` are the events of supervisors before, with their epochs,
    the oldest first."""

    def __init__(
        self,
        epoch: str,
        keep: Callable[[str, Event], None] = lambda _epoch, _event: None,
        earlier: Sequence[tuple[str, Event]] = (),
    ) -> None:
        self._epoch = epoch
        self._keep = keep
        self._earlier = tuple(earlier)[-_KEPT:]
        self._seq = 0
        self._events: deque[Event] = deque(maxlen=_KEPT)

    def note(self, name: str, model_id: str | None, detail: str, **data: Any) -> None:
        """Keep an event, and write it to the log. Detail and data may quote what others wrote, and
        are cut."""
        self._seq += 1
        detail, data = clamp(detail), clamp_values(data)
        event = Event(self._seq, time.time(), name, model_id, detail, data)
        self._events.append(event)
        self._keep(self._epoch, event)
        write = log.warning if name in _WARNINGS else log.info
        write(name, model=model_id, detail=detail or None, **data)

    def after(self, seq: int, limit: int, *, earlier: bool = False) -> EventList:
        """Return the latest events after ``seq``, at most ``limit`` of them, the oldest first. With
        ``earlier`` those of supervisors before come too, as far as the limit allows."""
        found = [event for event in self._events if event.seq > seq][-limit:] if limit > 0 else []
        left = limit - len(found) if earlier else 0
        before = self._earlier[-left:] if left > 0 else ()
        epochs = tuple(
            EarlierEvents(epoch, tuple(event for _, event in events))
            for epoch, events in groupby(before, key=lambda each: each[0])
        )
        return EventList(self._epoch, self._seq, tuple(found), epochs)
