"""Sorts what arrives on the control socket: workers' facts, routers' beats, questions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lmx.protocol.messages import control
from lmx.protocol.states import WorkerState
from lmx.supervisor.control.disk import QUESTIONS as DISK_QUESTIONS
from lmx.supervisor.control.disk import DiskCommands
from lmx.supervisor.control.inventory import QUESTIONS as INVENTORY_QUESTIONS
from lmx.supervisor.control.inventory import InventoryCommands
from lmx.supervisor.control.models import Commands
from lmx.supervisor.control.service import QUESTIONS, ServiceCommands
from lmx.supervisor.core.core import Core
from lmx.supervisor.core.slot import Asker
from lmx.supervisor.router.counts import QUESTIONS as COUNT_QUESTIONS
from lmx.supervisor.router.counts import RouterCounts
from lmx.supervisor.router.guard import RouterGuard
from lmx.supervisor.service.adoption import Adoption


class Inbox:
    """Takes each message to its owner, and answers beats."""

    def __init__(
        self,
        core: Core,
        guard: RouterGuard,
        commands: Commands,
        service_commands: ServiceCommands,
        inventory_commands: InventoryCommands,
        disk_commands: DiskCommands,
        router_counts: RouterCounts,
        adoption: Adoption,
        send: Callable[[bytes, Any], None],
        host: Callable[[], str],
    ) -> None:
        self._core = core
        self._guard = guard
        self._commands = commands
        self._service_commands = service_commands
        self._inventory_commands = inventory_commands
        self._disk_commands = disk_commands
        self._router_counts = router_counts
        self._adoption = adoption
        self._send = send
        self._host = host

    def take(self, identity: bytes, message: Any, correlation: int) -> None:
        """Take one message to its end."""
        now_s = time.monotonic()
        match message:
            case control.WorkerHello():
                if self._adoption.admits_worker(message, now_s):
                    self._core.worker_said(message.instance, message, now_s)
            case control.WorkerBeat():
                self._worker_beat(identity, message, now_s)
            case (
                control.LoadAdvanced()
                | control.Loaded()
                | control.LoadFailed()
                | control.DrainRefused()
                | control.Drained()
            ):
                if self._core.knows(message.instance):
                    self._core.worker_said(message.instance, message, now_s)
            case control.RouterHello():
                self._adoption.admit_router(message, self._host(), now_s)
            case control.RouterBeat():
                known = self._guard.knows(message.pid)
                self._guard.beat(message, now_s)
                self._send(identity, self._seen() if known else self._identify())
            case control.Withdraw(model_id):
                self._core.withdraw(model_id, identity, now_s)
            case _ if isinstance(message, QUESTIONS):
                self._service_commands.answer(Asker(identity, correlation), message, now_s)
            case _ if isinstance(message, INVENTORY_QUESTIONS):
                self._inventory_commands.answer(Asker(identity, correlation), message, now_s)
            case _ if isinstance(message, DISK_QUESTIONS):
                self._disk_commands.answer(Asker(identity, correlation), message)
            case _ if isinstance(message, COUNT_QUESTIONS):
                self._router_counts.answer(Asker(identity, correlation), message, now_s)
            case _:
                self._commands.answer(Asker(identity, correlation), message, now_s)
        self._core.flush(now_s)

    def _worker_beat(self, identity: bytes, beat: control.WorkerBeat, now_s: float) -> None:
        if not self._core.knows(beat.instance):
            self._send(identity, self._identify())
            return
        worker = self._core.worker(beat.instance)
        self._core.worker_said(beat.instance, beat, now_s)
        if worker.adopted and worker.state is WorkerState.STARTING:
            self._send(identity, self._identify())
        self._send(identity, self._seen())

    def _seen(self) -> control.BeatSeen:
        return control.BeatSeen(self._core.epoch, self._core.revision)

    def _identify(self) -> control.Identify:
        return control.Identify(self._core.epoch)
