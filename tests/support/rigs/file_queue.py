"""In which units, and in which order, the tests go to the processes of pytest-xdist.

A file is a unit: its tests stay together, in order, because they share what they have started. So
is the whole of a folder whose files share servers: they would be started in each process, and again
whenever a process came back to the folder.

Half of the tests compute, and half wait for processes that they have started. A quarter of the
processes of pytest-xdist run those that compute first, and the others those that wait: at any time
there is something to compute while the rest waits. Among each kind the folders of long tests come
first. A long file that begins last would keep one process busy while the others have nothing left
to do.
"""

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
)
"""Folders of tests that wait for processes, those of long tests first."""

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
    return place > 0 and place >= processes - max(1, processes // 4)


class FileQueue(LoadFileScheduling):  # type: ignore[misc]
    """pytest-xdist's ``--dist loadfile`` with these units, in this order. Left to itself, it begins
    with the files that have the most tests, and the longest tests of lmx are alone in theirs."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        nodes = self.nodes
        computing = computes_first(nodes.index(node), len(nodes))
        first = min(self.workqueue, key=lambda unit: rank_of(unit, computing=computing))
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)
