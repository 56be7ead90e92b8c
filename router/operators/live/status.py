"""The topic ``status``: the models and the system, and of the models those that have changed."""

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.status import (
    ModelStatus,
    RouterStatus,
    SupervisorStatus,
    SystemStatus,
    WorkerFigures,
)
from lmx.protocol.wire.codec import to_map
from lmx.router.http.responses import Answer
from lmx.router.operators.live.feed import Topic, event_text
from lmx.router.supervisor.directory import Directory
from lmx.router.supervisor.link import SupervisorLink
from lmx.router.supervisor.queries import live_status


class LiveStatus(Answer):
    """An event `status` of GET /admin/live.

    Durations (`idle_s`, `expires_in_s`, `retry_in_s`, `stalled_s`, `uptime_s`) are those at `at_s`,
    and continue from there: what only grows or shrinks with the time is not sent again. Nor are
    sizes of processes and of the machine that change by little.
    """

    at_s: float
    """When this was so, in Unix time."""
    whole: bool
    """Whether `models` has all models: then the reader forgets those that it had."""
    problem: str | None
    """Why the values are not current: the supervisor does not answer. Null if they are."""
    system: dict[str, Any] | None
    """`supervisor` and `router` as `lmx status --json` has them. Null if they are not known."""
    models: list[dict[str, Any]]
    """The models that have changed, each as one of `workers` of `lmx status --json`."""
    order: list[str] | None
    """The ids of all models that there are, in the configuration's order. Null if they are the same
    as before."""


_SAME_MOMENT_S: Final = 2.0
"""A duration that differs by less from what it must have become is still the same one: it was
measured by another process, in a message that took its time."""

_SAME_BYTES: Final = 16 * 1024**2
"""A process's memory that differs by less is the same."""

_SAME_MACHINE_BYTES: Final = 64 * 1024**2
"""The machine's memory in use that differs by less is the same."""

_STALLED_S: Final = 5.0
"""A worker that makes no progress for longer is shown as stalled, and is sent when that begins and
ends."""

_PAST: Final = ("idle_s", "stalled_s", "uptime_s")
_COMING: Final = ("expires_in_s", "retry_in_s")
_SAME_WATTS: Final = 2.0
"""A power that differs by less is the same."""

_SIZES: Final = {
    "memory_bytes": _SAME_BYTES,
    "decoder_bytes": _SAME_BYTES,
    "machine_used_bytes": _SAME_MACHINE_BYTES,
    "machine_available_bytes": _SAME_MACHINE_BYTES,
    "machine_watts": _SAME_WATTS,
    # They always grow.
    "machine_energy_joules": math.inf,
    "energy_joules": math.inf,
}

_Part = TypeVar("_Part", ModelStatus, SupervisorStatus, RouterStatus, WorkerFigures)


def is_same(before: _Part, now: _Part, passed_s: float) -> bool:
    """Return whether a part of a status says what it said ``passed_s`` ago, but for what changes by
    itself. Pure."""
    return before == now or before == dataclasses.replace(
        now, **dict(_unchanged(before, now, passed_s))
    )


def _unchanged(before: _Part, now: _Part, passed_s: float) -> Iterator[tuple[str, Any]]:
    for each in dataclasses.fields(now):
        name = each.name
        was, value = getattr(before, name), getattr(now, name)
        if name in _SIZES:
            known = was is not None and value is not None
            same = abs(value - was) < _SIZES[name] if known else was is value
        elif name == "figures":
            same = is_same(was, value, passed_s)
        elif name == "ranks":
            # What they take is in the model's memory.
            same = [one.pid for one in was] == [one.pid for one in value]
        elif name in _PAST or name in _COMING:
            # None, and 0 of what is not running, is no duration.
            runs = bool(was) and bool(value)
            moved_s = value - was + (passed_s if name in _COMING else -passed_s) if runs else 0.0
            same = runs and abs(moved_s) < _SAME_MOMENT_S
            if name == "stalled_s":
                # A reader must not take a step that is longer than usual for a stall.
                same = same and (value > _STALLED_S) == (was > _STALLED_S)
        else:
            continue
        if same:
            yield name, was


class StatusChanges:
    """Knows what was sent, and finds what must be sent. Pure."""

    def __init__(self) -> None:
        self._sent: dict[str, tuple[ModelStatus, float]] = {}
        self._system: tuple[SupervisorStatus, RouterStatus, float] | None = None
        self._order: Sequence[str] = ()
        self._problem: str | None = None
        self._failed_s = 0.0
        self._latest: tuple[SystemStatus, float] | None = None

    def take(self, status: SystemStatus, at_s: float) -> LiveStatus | None:
        """Return what has changed since the last one, None if nothing has."""
        changed = [model for model in status.workers if self._differs(model, at_s)]
        order = [model.model for model in status.workers]
        whole, moved = self._system is None, order != self._order
        if not (whole or moved or changed or self._problem or self._system_differs(status, at_s)):
            self._latest = (status, at_s)
            return None
        self._latest, self._problem = (status, at_s), None
        self._system = (status.supervisor, status.router, at_s)
        if moved:
            there = set(order)
            self._sent = {name: sent for name, sent in self._sent.items() if name in there}
            self._order = order
        self._sent |= {model.model: (model, at_s) for model in changed}
        return self._message(changed, order if moved or whole else None, whole=whole)

    def failed(self, problem: str, at_s: float) -> LiveStatus | None:
        """Take that there is no status. Returns what must be sent, None if that was sent."""
        if self._problem is not None:
            return None
        self._problem, self._failed_s = problem, at_s
        return self._message((), None, whole=False, at_s=at_s)

    def whole(self) -> LiveStatus | None:
        """Return all that is known; None if that is nothing."""
        if self._latest is None:
            if self._problem is None:
                return None
            return self._message((), None, whole=False, at_s=self._failed_s)
        return self._message(self._latest[0].workers, list(self._order), whole=True)

    @property
    def models(self) -> Sequence[ModelStatus]:
        """The models as they were reported last; none while the supervisor does not answer."""
        return () if self._latest is None or self._problem else self._latest[0].workers

    def _differs(self, model: ModelStatus, at_s: float) -> bool:
        sent = self._sent.get(model.model)
        return sent is None or not is_same(sent[0], model, at_s - sent[1])

    def _system_differs(self, status: SystemStatus, at_s: float) -> bool:
        if self._system is None:
            return True
        supervisor, router, sent_s = self._system
        passed_s = at_s - sent_s
        return not (
            is_same(supervisor, status.supervisor, passed_s)
            and is_same(router, status.router, passed_s)
        )

    def _message(
        self,
        models: Sequence[ModelStatus],
        order: list[str] | None,
        *,
        whole: bool,
        at_s: float | None = None,
    ) -> LiveStatus:
        system: Mapping[str, Any] | None = None
        if self._latest is not None:
            status, latest_s = self._latest
            at_s = latest_s if at_s is None else at_s
            system = {"supervisor": to_map(status.supervisor), "router": to_map(status.router)}
        return LiveStatus(
            at_s=round(at_s or 0.0, 3),
            whole=whole,
            problem=self._problem,
            system=None if system is None else dict(system),
            models=[to_map(model) for model in models],
            order=order,
        )


_MODELS_A_SECOND: Final = 100
"""A status of 500 models takes 20 ms to read. With more models than these the router asks less
often, unless its snapshot says that something other than a figure has changed."""


class StatusTopic(Topic):
    """Asks the supervisor once for all readers."""

    def __init__(self, supervisor: SupervisorLink) -> None:
        self._supervisor = supervisor
        self._changes = StatusChanges()
        self._directory: Directory | None = None
        self._due_s = 0.0

    @property
    def models(self) -> Sequence[ModelStatus]:
        """The models as the supervisor reported them last; none while it does not answer."""
        return self._changes.models

    async def look(self) -> bytes:
        directory, now_s = self._supervisor.latest, time.monotonic()
        if self._supervisor.alive and directory is self._directory and now_s < self._due_s:
            return b""
        self._directory = directory
        try:
            status = await live_status(self._supervisor)
            self._due_s = now_s + len(status.workers) // _MODELS_A_SECOND
        except LmxError as error:
            self._due_s = now_s
            return _text(self._changes.failed(error.message, time.time()))
        return _text(self._changes.take(status, time.time()))

    def whole(self) -> bytes:
        return _text(self._changes.whole())


def _text(message: LiveStatus | None) -> bytes:
    return b"" if message is None else event_text("status", message)
