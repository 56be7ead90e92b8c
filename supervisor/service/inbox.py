"""Sorts the messages that arrive on the control socket: facts of workers, heartbeats of routers,
and questions."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from lmx.protocol.messages import control
from lmx.protocol.messages.ranks import WantFollowers
from lmx.protocol.states import WorkerState
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.control.handlers import Handlers
from lmx.supervisor.core.core import Core
from lmx.supervisor.decisions.slots.demand import Requester
from lmx.supervisor.events import Events
from lmx.supervisor.router.guard import RouterGuard
from lmx.supervisor.service.adoption import Adoption


@dataclass(eq=False, repr=False)
class Inbox:
    """Takes each message to its owner, and answers heartbeats. A message that is not a fact is a
    question."""

    _core: Core
    _guard: RouterGuard
    _handlers: Handlers
    _adoption: Adoption
    _send: Callable[[bytes, Any], None]
    _settings: Settings
    _keyring: Callable[[], str]
    """The digest of the keyring in effect."""
    _peers: Callable[[], str]
    """The digest of the list of peers in effect."""
    _events: Events
    _computing_watts: Callable[[float], float | None]
    """What :class:`lmx.protocol.messages.control.BeatSeen` tells workers."""
    _want_followers: Callable[[WantFollowers], None]
    _flush_due: asyncio.Handle | None = field(default=None, init=False)

    def take(self, identity: bytes, message: Any, correlation: int) -> None:
        """Handle one message completely. What has changed is published at once, but after beats
        once for all those that have come by then."""
        now_s = time.monotonic()
        match message:
            case control.WorkerHello():
                if self._adoption.admits_worker(message, now_s):
                    self._core.worker_reported(message.instance, message, now_s)
            case control.WorkerBeat():
                self._worker_beat(identity, message, now_s)
                self._flush_soon()
                return
            case (
                control.LoadAdvanced()
                | control.Loaded()
                | control.LoadFailed()
                | control.DrainRefused()
                | control.Drained()
            ):
                if self._core.has_worker(message.instance):
                    self._core.worker_reported(message.instance, message, now_s)
            case WantFollowers():
                self._want_followers(message)
            case control.RouterHello():
                self._adoption.admit_router(message, self._settings.current.server.host, now_s)
            case control.RouterBeat():
                known = self._guard.has_router(message.pid)
                self._guard.beat(message, now_s)
                seen = replace(self._seen(), keyring=self._keyring(), peers=self._peers())
                self._send(identity, seen if known else self._identify())
                self._flush_soon()
                return
            case control.BatchChanged():
                self._note_batch(message)
            case control.Withdraw(model_id):
                self._core.withdraw(model_id, identity, now_s)
            case _:
                self._handlers.answer(Requester(identity, correlation), message, now_s)
        self._flush()

    def _flush_soon(self) -> None:
        # The loop calls this after it has read from every connection from which something has come.
        if self._flush_due is None:
            self._flush_due = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._flush_due is not None:
            self._flush_due.cancel()
            self._flush_due = None
        self._core.flush(time.monotonic())

    def _note_batch(self, batch: control.BatchChanged) -> None:
        if batch.status == "in_progress":
            name, detail = "batch.began", f"{batch.batch_id} has {batch.lines:,} lines"
        else:
            name = "batch.ended"
            detail = f"{batch.batch_id} is {batch.status}: {batch.completed:,} lines completed, "
            detail += f"{batch.failed:,} failed, of {batch.lines:,}"
        self._events.note(
            name,
            batch.model_id,
            detail,
            batch=batch.batch_id,
            status=batch.status,
            lines=batch.lines,
            completed=batch.completed,
            failed=batch.failed,
        )

    def _worker_beat(self, identity: bytes, beat: control.WorkerBeat, now_s: float) -> None:
        if not self._core.has_worker(beat.instance):
            self._send(identity, self._identify())
            return
        worker = self._core.worker(beat.instance)
        self._core.worker_reported(beat.instance, beat, now_s)
        if worker.state is WorkerState.STARTING:
            # A hello comes before the first heartbeat: an earlier supervisor got it, or it was
            # lost.
            self._send(identity, self._identify())
        seen = replace(self._seen(), computing_watts=self._computing_watts(now_s))
        self._send(identity, seen)

    def _seen(self) -> control.BeatSeen:
        return control.BeatSeen(self._core.epoch, self._core.revision)

    def _identify(self) -> control.Identify:
        return control.Identify(self._core.epoch)
