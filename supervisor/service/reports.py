"""Takes reports about processes and models' files to all parts that they concern."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lmx.protocol.errors import LmxError
from lmx.protocol.states import LoadPhase
from lmx.protocol.wire.endpoints import router_identity
from lmx.supervisor.config.sources import HubSource, parse_source
from lmx.supervisor.control.remote_ranks import RemoteRanks
from lmx.supervisor.core.core import Core
from lmx.supervisor.decisions.worker import Worker
from lmx.supervisor.inventory.downloads import Downloads
from lmx.supervisor.memory.inspection import Inspection
from lmx.supervisor.memory.watch import MemoryWatch
from lmx.supervisor.router.counts import RouterCounts
from lmx.supervisor.router.guard import RouterGuard
from lmx.supervisor.service.shutdown import Shutdown


@dataclass(eq=False, repr=False)
class Reports:
    """Each method handles one report completely, and publishes what follows from it."""

    _core: Core
    _guard: RouterGuard
    _memory: MemoryWatch
    _counts: RouterCounts
    _downloads: Downloads
    _shutdown: Shutdown
    _remote: RemoteRanks

    def worker_exited(self, instance: str, status: int | None) -> None:
        """A worker's process has ended. ``status`` is as in ``Popen.returncode``."""
        now_s = time.monotonic()
        self._remote.worker_exited(instance)
        by_system = self._memory.killed_by_system(status, now_s)
        self._core.worker_exited(instance, status, now_s, out_of_memory=by_system)
        self._core.flush(now_s)
        self._shutdown.exited()

    def worker_left(self, worker: Worker, reserved_bytes: int) -> None:
        """A worker is gone, and its memory must be seen to come back."""
        self._memory.left(worker, reserved_bytes, time.monotonic())

    def router_exited(self, pid: int, status: int | None) -> None:
        """A router's process has ended. ``status`` is as in ``Popen.returncode``."""
        now_s = time.monotonic()
        self._guard.exited(pid, now_s, status)
        self._counts.router_ended(pid)
        self._core.withdraw_all(router_identity(pid), now_s)
        self._core.flush(now_s)
        self._shutdown.exited()

    def inspected(self, model_id: str, found: Inspection) -> None:
        """A model's files have been read."""
        now_s = time.monotonic()
        self._core.inspected(model_id, found, now_s)
        self._core.flush(now_s)

    def fetch_advanced(self, model_id: str, phase: LoadPhase, fraction: float | None) -> None:
        """A load's fetch has made progress."""
        self._core.fetch_advanced(model_id, phase, fraction, time.monotonic())

    async def fetch_ended(
        self, model_id: str, outcome: Path | LmxError | OSError, unfetched: Mapping[str, str]
    ) -> None:
        """A load's fetch has ended. The outcome and ``unfetched`` are those of
        :meth:`Core.fetch_ended`."""
        now_s = time.monotonic()
        slot = self._core.slots.get(model_id)
        source = None if slot is None else parse_source(slot.model.source)
        self._core.fetch_ended(model_id, outcome, now_s, unfetched)
        self._core.flush(now_s)
        if isinstance(outcome, Path) and isinstance(source, HubSource):
            await self._downloads.completed_elsewhere(source.repo_id, source.revision, outcome)
