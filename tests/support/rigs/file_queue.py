"""In which units, and in which order, the tests go to the processes of pytest-xdist, and which of
them each process collects.

A file is a unit: its tests stay together, in order, because they share what they have started. So
is the whole of a folder whose files share servers: they would be started in each process, and again
whenever a process came back to the folder.

Half of the tests compute, and half wait for processes that they have started. Some processes of
pytest-xdist run those that compute, and the others those that wait: at any time there is something
to compute while the rest waits. Among each kind the folders of long tests come first. A long file
that begins last would keep one process busy while the others have nothing left to do.

To collect all tests takes 20 seconds of the processor and 800 MB, most of it for what they import.
So each of several processes collects only the folders of the tests that it runs.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SHARING = (
    "tests/e2e/test_documents.py",
    "tests/e2e/test_agent_session.py",
    "tests/e2e/clients/",
    "tests/e2e/pages/",
    "tests/e2e/",
    "tests/process/requests/",
)
"""Folders whose ``conftest.py`` has servers for all of their files. The clients and the pages,
which are most of the tests there, are started servers of their own, and some files start what they
need: all of them in one process would be the last to end."""

WAITING = (
    "tests/e2e/",
    "tests/process/requests/",
    "tests/process/faults/",
    "tests/process/",
    "tests/unit/router/",
)
"""Folders of tests that wait for processes, and for deadlines of the router, those of long tests
first."""

COMPUTING = (
    "tests/engine/ranks/",
    "tests/engine/media/",
    "tests/engine/memory/",
    "tests/engine/speech/",
    "tests/engine/decoding/",
    "tests/engine/",
    "tests/wire/",
)
"""Folders of tests that compute, those of long tests first. The rest are files of seconds. They
fill up the end of a run."""


FEWEST_PENDING = 2
"""A process with no more tests than these gets another unit: it runs its last test only when it
knows the next one, or that there is none."""

FEWEST_DIVIDED = 4
"""From so many processes on, each collects only the folders that it runs tests of."""

EVERYTHING = ("",)


def unit_of(test_id: str) -> str:
    """Return the unit that a test belongs to: its file, or the folder of files that share."""
    file = test_id.partition("::")[0]
    return next((shared for shared in SHARING if file.startswith(shared)), file)


def rank_of(unit: str, *, computing: bool = False) -> int:
    """Return the place of a unit in the order of a process that runs those first that compute, or
    those that wait. Units of the same place keep their order."""
    order = COMPUTING + WAITING if computing else WAITING + COMPUTING
    # What is in none of the folders computes too.
    behind = len(COMPUTING) if computing else len(order)
    ranks = (
        rank + (rank >= behind) for rank, folder in enumerate(order) if unit.startswith(folder)
    )
    return next(ranks, behind)


def computes_first(place: int, processes: int) -> bool:
    """Return whether the process at a place of so many runs those first that compute."""
    return place > 0 and place >= processes - max(1, processes // 3)


def folders_of(place: int, processes: int) -> tuple[str, ...]:
    """Return the folders that the process at a place of so many collects in a run of all tests. One
    that replaces a process that has crashed has a place behind all others, and collects everything:
    the other may have been of either kind."""
    if processes < FEWEST_DIVIDED or place >= processes:
        return EVERYTHING
    if computes_first(place, processes):
        return ("tests/engine/", "tests/unit/", "tests/wire/")
    # The clients of tests/e2e take as long to import as all of tests/process, and are few units.
    return (*(("tests/e2e/",) if place < 2 else ()), "tests/process/", "tests/unit/router/")


def within(path: str, folders: tuple[str, ...]) -> bool:
    """Return whether a file or folder is in one of some folders, or holds one of them."""
    whole = "" if path == "." else f"{path}/"
    return any(whole.startswith(folder) or folder.startswith(whole) for folder in folders)


def imported_first(
    files: Sequence[str], place: int, folders: Sequence[tuple[str, ...]]
) -> list[str]:
    """Return the files that the process at a place is to import before its others, where each
    collects its own ``folders``. Each file is imported first by one of those that collect it."""
    first = []
    for number, file in enumerate(files):
        owners = [each for each, collected in enumerate(folders) if within(file, collected)]
        if owners and owners[number % len(owners)] == place:
            first.append(file)
    return first


def place_of(worker_id: str) -> int:
    """Return the place of one of pytest-xdist's processes, of which ``gw0`` is the first."""
    return int(worker_id.removeprefix("gw"))


class FileQueue(LoadFileScheduling):  # type: ignore[misc]
    """pytest-xdist's ``--dist loadfile`` with these units, in this order. A process gets units that
    it has collected. Left to itself, it has all processes collect everything, and begins with the
    files that have the most tests; the longest tests of lmx are alone in theirs."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self.collection: list[str] | None = None
        self._units: dict[str, list[str]] = {}
        self._places: dict[WorkerController, dict[str, int]] = {}
        self._collected: dict[WorkerController, frozenset[str]] = {}

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Note what a process has collected. A unit of which it has other tests than another
        process fails the run, as with pytest-xdist's own, and is left to the other."""
        units: dict[str, list[str]] = {}
        for test in collection:
            units.setdefault(unit_of(test), []).append(test)
        different = [unit for unit in units if units[unit] != self._units.get(unit, units[unit])]
        for unit in different:
            text = f"{node.gateway.id} has collected other tests of {unit} than another process"
            failed = pytest.CollectReport(node.gateway.id, "failed", text, [])
            self.config.hook.pytest_collectreport(report=failed)
        self._units = units | self._units
        self._places[node] = {test: place for place, test in enumerate(collection)}
        self._collected[node] = frozenset(units.keys() - different)
        self.registered_collections[node] = list(collection)

    def schedule(self) -> None:
        """Hand out units: the first when all processes have collected their tests."""
        if self.collection is None:
            longest_first = sorted(self._units.items(), key=lambda unit: -len(unit[1]))
            self.workqueue.update(
                (unit, dict.fromkeys(tests, False)) for unit, tests in longest_first
            )
            self.collection = [test for tests in self._units.values() for test in tests]
            session = self.config.pluginmanager.getplugin("session")
            # What is shown as the share of the tests that have ended is a share of these.
            session.testscollected = len(self.collection)
        # Twice, because the first unit may be short.
        for _ in range(2):
            for node in self.nodes:
                self._reschedule(node)

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Forget a test that has ended: what is looked at after each test stays short."""
        test = self.registered_collections[node][item_index]
        unit = unit_of(test)
        del self.assigned_work[node][unit][test]
        if not self.assigned_work[node][unit]:
            del self.assigned_work[node][unit]
        self._reschedule(node)

    def _reschedule(self, node: WorkerController) -> None:
        # One that replaces a process that crashed may not have collected yet.
        if node not in self._collected or node.shutting_down:
            return
        if self._collected[node].isdisjoint(self.workqueue):
            node.shutdown()
        elif self._pending_of(self.assigned_work[node]) <= FEWEST_PENDING:
            self._assign_work_unit(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        computing = computes_first(place_of(node.gateway.id), self.numnodes)
        unit = min(
            (unit for unit in self.workqueue if unit in self._collected[node]),
            key=lambda unit: rank_of(unit, computing=computing),
        )
        tests = self.workqueue.pop(unit)
        self.assigned_work[node][unit] = tests
        node.send_runtest_some([self._places[node][test] for test in tests])
