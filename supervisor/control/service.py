"""Answers the questions of routers and the CLI about the supervisor itself: status, events, reload,
restarts and shutdown. Questions about models belong to :mod:`lmx.supervisor.control.models`."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from lmx.protocol.errors import ErrorCode, LmxError, OperationError, UnavailableError
from lmx.protocol.messages import control
from lmx.protocol.messages.status import GetStatus, Status, SystemStatus
from lmx.protocol.states import WorkerState
from lmx.supervisor.control.handlers import Handler, replacing
from lmx.supervisor.control.reload import Reloader
from lmx.supervisor.core.core import Core
from lmx.supervisor.events import EventLog
from lmx.supervisor.processes.handover import Invocation
from lmx.supervisor.router.guard import RouterGuard

_TAKE_OVER_S: Final = 100.0
"""How long a new router has to take over. It starts within a second or two, but not on a machine
that is busy with something else. The CLI waits longer than this."""

_POLL_S: Final = 0.05
_ON_THEIR_WAY_OUT: Final = (WorkerState.DRAINING, WorkerState.STOPPING)


class ServiceActions(Protocol):
    """What these answers need from the running service."""

    def status(self, now_s: float) -> SystemStatus:
        """Return the status of all of lmx."""

    def stop(self, why: str) -> None:
        """Begin to stop."""

    def replace(self) -> None:
        """Begin to put a new program in the place of this one."""

    @property
    def replacing(self) -> bool:
        """Whether that has begun."""


@dataclass(eq=False, repr=False)
class ServiceCommands:
    """Answers questions about the supervisor. A restart is answered when its outcome is known."""

    _service: ServiceActions
    _core: Core
    _guard: RouterGuard
    _events: EventLog
    _reloader: Reloader
    _invocation: Invocation

    @property
    def handlers(self) -> dict[type, Handler]:
        """The handlers by the kinds of questions."""
        return {
            GetStatus: lambda _question, now_s: Status(self._service.status(now_s)),
            control.GetEvents: lambda asked, _now_s: self._events.after(
                asked.after_seq, asked.limit, earlier=asked.earlier
            ),
            control.ReloadConfig: self._reload,
            control.RestartRouter: self._restart_router,
            control.RestartSupervisor: self._restart_supervisor,
            control.StopAll: self._stop_all,
            control.DrainMachine: self._drain,
        }

    def _drain(self, question: control.DrainMachine, now_s: float) -> control.Done:
        self._core.drain(question.drained, now_s)
        if question.drained:
            return control.Done(
                "the machine is drained: its models take no requests until `lmx undrain --machine`"
            )
        return control.Done("the machine takes requests again")

    def _stop_all(self, _question: control.StopAll, _now_s: float) -> control.Done:
        self._service.stop("an operator requested it")
        return control.Done("stopping")

    def _reload(
        self, _question: control.ReloadConfig, now_s: float
    ) -> control.Reloaded | Coroutine[Any, Any, control.Reloaded]:
        self._refuse_while_replacing()
        reloaded = self._reloader.reload("an operator requested it", now_s)
        return reloaded if self._guard.settled else self._in_effect(reloaded)

    async def _in_effect(self, reloaded: control.Reloaded) -> control.Reloaded:
        """Wait until no router with older settings takes requests any more, so that a client can
        then rely on the new ones."""
        await self._serving(self._guard.newest)
        if self._guard.settled:
            return reloaded
        return replace(
            reloaded,
            changes=(
                *reloaded.changes,
                "not all of it is in effect yet: an earlier router still serves",
            ),
        )

    async def _restart_router(self, _question: control.RestartRouter, now_s: float) -> control.Done:
        self._core.refuse_while_stopping()
        self._refuse_while_replacing()
        try:
            pid = self._guard.replace(now_s)
        except OSError as error:
            message = f"can't start a new router: {error.strerror or error}"
            raise OperationError(ErrorCode.INTERNAL, message) from error
        serving = await self._serving(self._guard.newest)
        if serving is None:
            return control.Done("a new router is starting", pid)
        return control.Done("a new router serves", serving)

    async def _serving(self, number: int) -> int | None:
        """Wait until the router of a number serves, or one that was started later in its place, and
        those before it take no more requests. Returns its pid, None if that takes too long. Raises
        :class:`OperationError` when it has ended."""
        deadline_s = time.monotonic() + _TAKE_OVER_S
        while time.monotonic() < deadline_s:
            serving = self._guard.process
            if serving is not None and serving.number >= number and self._guard.settled:
                return serving.pid
            if serving is not None and serving.number < number and self._guard.successor is None:
                raise OperationError(
                    ErrorCode.INTERNAL,
                    "the new router ended at its start, so the old one still serves: see "
                    "`lmx logs --router`",
                )
            await asyncio.sleep(_POLL_S)
        return None

    async def _restart_supervisor(
        self, _question: control.RestartSupervisor, _now_s: float
    ) -> control.Done:
        self._refuse_while_changing()
        await self._invocation.check_successor()
        self._refuse_changed_config()
        self._refuse_while_changing()
        self._service.replace()
        return control.Done("the supervisor replaces itself")

    def _refuse_while_replacing(self) -> None:
        """Refuse to start a router that the next supervisor would take for an old one."""
        if self._service.replacing:
            raise replacing()

    def _refuse_while_changing(self) -> None:
        """Refuse while models end or a router is being replaced. A new supervisor would not know
        why the models end and would start them again, and it would continue with the old router."""
        self._core.refuse_while_stopping()
        if self._guard.successor is not None:
            raise UnavailableError(
                ErrorCode.MODEL_LOADING,
                "a new router is starting: try again when it serves",
                retry_after_s=1.0,
            )
        leaving = [w.model_id for w in self._core.workers if w.state in _ON_THEIR_WAY_OUT]
        if leaving:
            raise UnavailableError(
                ErrorCode.MODEL_LOADING,
                f"{', '.join(leaving)} is being unloaded: try again when that is done",
                retry_after_s=1.0,
            )

    def _refuse_changed_config(self) -> None:
        """Refuse while the file differs from the configuration in effect, because the new program
        would use the file only for what it starts next. A file that only the new program
        understands can't be compared, and is left to it."""
        try:
            sections = self._reloader.differs()
        except LmxError:
            return
        if sections:
            raise OperationError(
                ErrorCode.CONFIG_INVALID,
                f"the configuration has changed ({', '.join(sections)}) and is not in effect: "
                "run `lmx reload` first",
            )
