"""Watches one lmx from outside while it is in use: its ledger, and which processes there are.

What it finds wrong is kept, never raised: the test asks for ``wrongs`` in the end.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import psutil

from lmx.protocol.messages.status import SystemStatus
from lmx.supervisor.sockets.client import ControlClient
from lmx.supervisor.state.home import Home
from tests.support.rigs.rig import ANSWER_S, Rig


class Observer:
    """A thread that looks on, as long as its block lasts. ``failure`` is what ended it early: one
    that saw nothing has proved nothing."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)
        self.failure: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(90)

    def _run(self) -> None:
        try:
            self._look_on()
        except Exception as error:
            self.failure = error

    def _look_on(self) -> None:
        """Look while :meth:`_is_due`."""
        raise NotImplementedError

    def _is_due(self) -> bool:
        return not self._ended.wait(self._every_s)


class Watch(Observer):
    """A thread that looks every 100 ms, or ``every_s``, as long as its block lasts.

    ``wrongs`` is what may never be: a worker process that no slot has, two of one model.
    ``over_budget`` has the reservations by instance of each look at which they exceeded the
    budget: only measurements of loaded models may bring that about. ``looks`` counts;
    ``most_bytes`` is the most that was reserved; ``pids`` are all the worker processes that there
    were.
    """

    def __init__(self, lmx: Rig, every_s: float = 0.1) -> None:
        super().__init__(every_s)
        self._lmx = lmx
        self._instance_of: dict[tuple[int, float], tuple[str, str] | None] = {}
        self.looks = 0
        self.most_bytes = 0
        self.wrongs: list[str] = []
        self.over_budget: list[dict[str, int]] = []

    @property
    def pids(self) -> set[int]:
        """Of every worker process that was seen."""
        return {pid for (pid, _), names in self._instance_of.items() if names is not None}

    def _look_on(self) -> None:
        with ControlClient(Home(self._lmx.home), ANSWER_S) as client:
            while self._is_due():
                before = client.status()
                processes = self._workers()
                after = client.status()
                self._check_ledger(before)
                self._check_ledger(after)
                self._check_processes(processes, before, after)
                self.looks += 1

    def _check_ledger(self, status: SystemStatus) -> None:
        supervisor = status.supervisor
        reserved_bytes, budget_bytes = supervisor.reserved_bytes, supervisor.budget_bytes
        self.most_bytes = max(self.most_bytes, reserved_bytes)
        if reserved_bytes > budget_bytes:
            self.over_budget.append(
                {m.instance: m.reserved_bytes for m in status.workers if m.instance}
            )
        lines = sum(model.reserved_bytes for model in status.workers)
        if lines > reserved_bytes:
            self.wrongs.append(f"the workers hold {lines} bytes, of {reserved_bytes} in all")

    def _check_processes(
        self, processes: list[tuple[str, str]], before: SystemStatus, after: SystemStatus
    ) -> None:
        """A process of neither moment lives without a slot: only one that was spawned after
        the first and gone before the second could be innocent, and none is so quick."""
        known = {model.instance for status in (before, after) for model in status.workers}
        for model, instance in processes:
            if instance not in known:
                self.wrongs.append(f"a process of {model} ({instance}) has no slot")
        models = [model for model, _ in processes]
        for model in set(models):
            if models.count(model) > 1:
                instances = [instance for name, instance in processes if name == model]
                self.wrongs.append(f"{len(instances)} processes of {model} live: {instances}")

    def _workers(self) -> list[tuple[str, str]]:
        """Return model and instance of each living worker process of this home."""
        found = []
        for process in psutil.process_iter():
            try:
                key = (process.pid, process.create_time())
                if key not in self._instance_of:
                    self._instance_of[key] = self._identify(process)
                names = self._instance_of[key]
                if names is not None and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(names)
            except psutil.Error:
                continue
        return found

    def _identify(self, process: psutil.Process) -> tuple[str, str] | None:
        """Return the names that stand in a worker's command line; None of other processes.

        Between fork and exec a process shows its parent's command line: a worker shows the
        supervisor's, and a worker's own child (a media decoder) the worker's. Neither is its
        final name, so that such a process is looked at again each time.
        """
        arguments = process.cmdline()
        if "lmx.supervisor" in arguments or not arguments:
            raise psutil.NoSuchProcess(process.pid)
        if "lmx.worker" not in arguments:
            return None
        parent = process.parent()
        if parent is None or parent.cmdline() == arguments:
            raise psutil.NoSuchProcess(process.pid)
        if process.environ().get("LMX_HOME") != str(self._lmx.home):
            return None
        model, instance = arguments[-2:]
        return model, instance
