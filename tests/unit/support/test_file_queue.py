"""Which tests go together, and in which order they are handed out."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.rigs.file_queue import (
    EVERYTHING,
    FileQueue,
    computes_first,
    folders_of,
    imported_first,
    rank_of,
    unit_of,
    within,
)

ROOT = Path(__file__).resolve().parents[3]
TESTS = [
    "tests/e2e/test_a.py::test_one",
    "tests/process/faults/test_long.py::test_one",
    "tests/unit/test_many.py::test_one",
    "tests/unit/test_many.py::test_two[a::b]",
    "tests/unit/test_many.py::test_three",
    "tests/e2e/test_b.py::test_one",
    "tests/process/router/test_other.py::test_one",
]


class Process:
    """One of pytest-xdist's; notes the tests that it is to run."""

    shutting_down = False

    def __init__(self, name: str, tests: Sequence[str] = TESTS) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.tests = list(tests)
        self.units: list[list[str]] = []

    def send_runtest_some(self, places: list[int]) -> None:
        self.units.append([self.tests[place] for place in places])

    def shutdown(self) -> None:
        self.shutting_down = True


def filled_queue(*processes: Any) -> tuple[FileQueue, list[Any], SimpleNamespace]:
    """Return a queue whose processes have collected; the reports of failed collection, and the
    session of pytest."""
    reports: list[Any] = []
    session = SimpleNamespace(testscollected=0)
    config: Any = SimpleNamespace(
        getvalue=lambda _: ["popen"] * len(processes),
        pluginmanager=SimpleNamespace(getplugin={"session": session}.get),
        hook=SimpleNamespace(pytest_collectreport=lambda report: reports.append(report)),
    )
    queue = FileQueue(config)
    for process in processes:
        queue.add_node(process)
    for process in processes:
        queue.add_node_collection(process, process.tests)
    queue.schedule()
    return queue, reports, session


def run_next(queue: FileQueue, process: Any) -> str:
    """Have a process end the first test that it was given and has not ended."""
    test: str = next(test for tests in queue.assigned_work[process].values() for test in tests)
    queue.mark_test_complete(process, process.tests.index(test))
    return test


def run_all(queue: FileQueue, *processes: Any) -> list[str]:
    """Have processes end their tests in turns until none has another."""
    ran: list[str] = []
    while queue.has_pending:
        before = len(ran)
        ran += [run_next(queue, each) for each in processes if queue.assigned_work[each]]
        assert len(ran) > before, "nobody runs what is left"
    return ran


def test_a_folder_that_shares_servers_is_one_unit() -> None:
    assert unit_of("tests/e2e/test_a.py::test_one[x::y]") == "tests/e2e/"
    assert unit_of("tests/e2e/clients/test_a.py::test_one") == "tests/e2e/clients/"
    assert unit_of("tests/e2e/test_documents.py::test_one") == "tests/e2e/test_documents.py"
    assert unit_of("tests/unit/test_many.py::Class::test") == "tests/unit/test_many.py"


def test_long_files_come_before_those_with_many_tests() -> None:
    waiting, computing = Process("gw0"), Process("gw1")
    queue, _, session = filled_queue(waiting, computing)
    assert waiting.units[0] == [TESTS[0], TESTS[5]], "all that share servers, in one process"
    assert waiting.units[1] == [TESTS[1]]
    assert computing.units[0] == TESTS[2:5], "a file stays together"
    assert sorted(run_all(queue, waiting, computing)) == sorted(TESTS)
    assert session.testscollected == len(TESTS)


def test_a_process_runs_what_it_has_collected_and_ends() -> None:
    waiting = Process("gw0", [test for test in TESTS if "unit" not in test])
    computing = Process("gw1", TESTS[2:5])
    queue, reports, session = filled_queue(waiting, computing)
    assert computing.units == [TESTS[2:5]]
    assert computing.shutting_down, "there is nothing more for it than it has"
    assert not waiting.shutting_down
    assert sorted(run_all(queue, waiting, computing)) == sorted(TESTS)
    assert waiting.shutting_down
    assert session.testscollected == len(TESTS)
    assert reports == []


def test_what_a_crashed_process_leaves_is_run_by_the_one_that_replaces_it() -> None:
    waiting = Process("gw0", [test for test in TESTS if "unit" not in test])
    computing = Process("gw1", TESTS[2:5])
    queue, _, _ = filled_queue(waiting, computing)
    run_next(queue, computing)
    assert queue.remove_node(computing) == TESTS[3]
    replacing = Process("gw2")
    queue.add_node(replacing)
    queue.schedule()
    assert replacing.units == [], "it has not collected"
    queue.add_node_collection(replacing, replacing.tests)
    queue.schedule()
    assert TESTS[3:5] in replacing.units
    assert sorted(run_all(queue, waiting, replacing)) == sorted(set(TESTS) - {TESTS[2]})


def test_processes_that_collect_a_unit_must_have_the_same_tests_in_it() -> None:
    processes = Process("gw0"), Process("gw1", [TESTS[1], "tests/unit/test_many.py::test_x"])
    queue, reports, _ = filled_queue(*processes)
    (report,) = reports
    assert report.failed
    assert "gw1 has collected other tests of tests/unit/test_many.py" in report.longrepr
    assert sorted(run_all(queue, *processes)) == sorted(TESTS)


@pytest.mark.parametrize("processes", range(1, 13))
def test_each_file_of_tests_is_collected_by_a_process(processes: int) -> None:
    places = range(processes)
    folders = [folders_of(place, processes) for place in places]
    paths = (ROOT / "tests").rglob("test_*.py")
    files = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    assert len(files) > 400
    imported = [file for place in places for file in imported_first(files, place, folders)]
    assert sorted(imported) == files, "each is imported first by one"
    for place in places:
        own = imported_first(files, place, folders)
        assert all(within(file, folders[place]) for file in own)
    if processes > 1:
        waiting = [place for place in places if not computes_first(place, processes)]
        assert any(within("tests/process/test_x.py", folders[place]) for place in waiting)


def test_one_that_replaces_another_collects_everything() -> None:
    assert folders_of(6, 6) == EVERYTHING
    assert within("tests/unit/test_x.py", EVERYTHING)
    assert within(".", ("tests/unit/",)) and within("tests", ("tests/unit/",))
    assert not within("tests/unity", ("tests/unit/",))


def test_units_that_take_long_have_the_first_places() -> None:
    waiting = ["tests/e2e/", "tests/process/faults/x.py", "tests/process/x.py"]
    computing = ["tests/engine/memory/x.py", "tests/engine/x.py", "tests/unit/x.py"]
    assert sorted(computing + waiting, key=rank_of) == waiting + computing
    in_order = sorted(waiting + computing, key=lambda unit: rank_of(unit, computing=True))
    assert in_order == computing + waiting


@pytest.mark.parametrize(
    ("processes", "computing"), [(1, []), (2, [1]), (3, [2]), (4, [3]), (6, [4, 5]), (7, [5, 6])]
)
def test_a_third_of_the_processes_computes_first(processes: int, computing: list[int]) -> None:
    places = range(processes)
    assert [place for place in places if computes_first(place, processes)] == computing
