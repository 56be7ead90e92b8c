"""The spare worker: a process that is started before it is known for which model, so that a load
does not wait for Python's imports. :mod:`lmx.supervisor.decisions.spare` says when there is one."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import structlog

from lmx.protocol.messages.specs import SPARE, WorkerSpec
from lmx.protocol.models.default_engine import MLX_ENGINE
from lmx.protocol.wire import codec
from lmx.protocol.wire.endpoints import new_instance_id
from lmx.supervisor.config.model import ModelConfig
from lmx.supervisor.processes.child import fits_pipe, give, signal_group
from lmx.supervisor.processes.launcher import Exited, Launcher
from lmx.supervisor.state.home import Home

log = structlog.get_logger()

_GONE_S: Final = 5.0


@dataclass(eq=False)
class _Process:
    child: subprocess.Popen[bytes]
    instance: str
    fixed: tuple[str, ...]
    """What it can't change any more: see :func:`_fixed`."""
    exited: Exited | None = None
    """Who handles its end since it serves a model; None: it is a spare."""
    unwanted: bool = False


class SpareWorker:
    """Begins, passes on and ends it. Event loop only. There is at most one; one that was passed on
    is a worker like any other."""

    def __init__(self, launcher: Launcher, home: Home, wire: Callable[[], str]) -> None:
        self._launcher = launcher
        self._home = home
        self._wire = wire
        self._spare: _Process | None = None
        self.ended = 0
        """How many in a row ended by themselves."""
        self.ended_at_s = 0.0

    @property
    def pid(self) -> int | None:
        """The process; None: there is none."""
        return None if self._spare is None else self._spare.child.pid

    def instance_for(self, model: ModelConfig) -> str:
        """Return the instance id of a model's next worker: that of the spare worker if the model
        can take it. The id of a process is fixed when it starts."""
        spare = self._spare
        if spare is not None and takes_spare(model):
            return spare.instance
        return new_instance_id()

    def begin(self, now_s: float) -> None:
        """Start one. One that can't be started counts as one that ended."""
        instance, fixed = new_instance_id(), self._fixed()
        path = self._home.spare_log
        names = (SPARE, fixed[0], instance)
        try:
            with contextlib.suppress(OSError):
                path.unlink()  # What the last one said.
            child = self._launcher.start_waiting(
                "lmx.worker", names, path, lambda _pid, status: self._exited(one, status)
            )
        except OSError as error:
            log.warning("spare.not_started", error=str(error))
            self.ended, self.ended_at_s = self.ended + 1, now_s
            return
        one = self._spare = _Process(child, instance, fixed)
        log.info("spare.spawned", worker_pid=child.pid, instance=instance)

    def take(self, spec: WorkerSpec, exited: Exited) -> int | None:
        """Let the spare worker of this instance be the worker of a model, and return its pid. None
        if that is not possible: then it is ended, and another process may have its instance id.
        Raises what encoding a spec raises."""
        spare = self._spare
        if spare is None or spare.instance != spec.instance:
            return None
        payload = codec.encode(spec)
        pid = spare.child.pid
        if (
            spare.fixed != self._fixed()
            or not fits_pipe(payload)
            or not _runs(pid)
            or not give(spare.child, payload)
        ):
            self.end("it can't be used")
            return None
        self._spare = None
        self.ended = 0
        spare.exited = exited
        return pid

    def is_outdated(self) -> bool:
        """Return whether a worker that is started now would differ from the spare worker."""
        return self._spare is not None and self._spare.fixed != self._fixed()

    def end(self, why: str) -> None:
        """End it, if there is one. It has nothing to close, so that SIGKILL is enough."""
        spare, self._spare = self._spare, None
        if spare is not None:
            log.info("spare.ended", worker_pid=spare.child.pid, why=why)
            spare.unwanted = True
            _close_stdin(spare.child)
            signal_group(spare.child.pid, signal.SIGKILL)

    async def close(self) -> None:
        """End it, and wait a moment until it is gone: nobody after this supervisor knows it."""
        spare = self._spare
        self.end("lmx ends")
        if spare is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(spare.child.wait, _GONE_S)

    def _exited(self, one: _Process, status: int | None) -> None:
        if one.exited is not None:
            one.exited(one.child.pid, status)
        elif not one.unwanted:
            self._spare = None
            _close_stdin(one.child)
            self.ended, self.ended_at_s = self.ended + 1, time.monotonic()
            log.warning(
                "spare.lost",
                worker_pid=one.child.pid,
                status=status,
                output=str(self._home.spare_log),
            )

    def _fixed(self) -> tuple[str, ...]:
        """Return what a worker's process has for good when it has imported its libraries: how its
        memory is wired, and which packages are installed. All else that it has from its start is
        the same for all models: the environment, the limits, the folder of temporary files."""
        return (self._wire(), *map(_changed_at, _packages()))


def takes_spare(model: ModelConfig) -> bool:
    """Return whether a model's worker imports what a spare worker has imported. Ranks have an
    environment of their own."""
    return model.engine == MLX_ENGINE and model.ranks == 1


def _close_stdin(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    with contextlib.suppress(OSError):
        child.stdin.close()


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _packages() -> list[Path]:
    return [folder for folder in map(Path, sys.path) if folder.name == "site-packages"]


def _changed_at(folder: Path) -> str:
    """Return when something was installed into a folder: an installer replaces folders in it."""
    try:
        return str(folder.stat().st_mtime_ns)
    except OSError:
        return ""
