"""In which units, and in which order, the tests go to the processes of pytest-xdist.

A file is a unit: its tests stay together, in order, because they share what they have started. So
is the whole of a folder whose files share servers: they would be started in each process, and again
whenever a process came back to the folder. The folders of long tests come first. A long file that
begins last would keep one process busy while the others have nothing left to do.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SHARING = ("tests/e2e/clients/", "tests/e2e/")
"""Folders whose ``conftest.py`` has servers for all of their files. The clients, which are half of
the tests there, are started servers of their own: all of them in one process would be the last to
end."""

LONG_FIRST = (
    "tests/e2e/",
    "tests/engine/memory/",
    "tests/process/faults/",
    "tests/process/",
    "tests/engine/",
    "tests/wire/",
)
"""The rest are files of seconds. They fill up the end of a run."""


def unit_of(test_id: str) -> str:
    """Return the unit that a test belongs to: its file, or the folder of files that share."""
    file = test_id.partition("::")[0]
    return next((folder for folder in SHARING if file.startswith(folder)), file)


def rank_of(unit: str) -> int:
    """Return the place of a unit in the order; units of the same place keep their order."""
    ranks = (rank for rank, folder in enumerate(LONG_FIRST) if unit.startswith(folder))
    return next(ranks, len(LONG_FIRST))


class FileQueue(LoadFileScheduling):  # type: ignore[misc]
    """pytest-xdist's ``--dist loadfile`` with these units, in this order. Left to itself, it begins
    with the files that have the most tests, and the longest tests of lmx are alone in theirs."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=rank_of), last=False)
        super()._assign_work_unit(node)
