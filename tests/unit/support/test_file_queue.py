"""Which tests go together, and in which order they are handed out."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.rigs.file_queue import FileQueue, computes_first, rank_of, unit_of

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

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.units: list[list[str]] = []

    def send_runtest_some(self, places: list[int]) -> None:
        self.units.append([TESTS[place] for place in places])

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_folder_that_shares_servers_is_one_unit() -> None:
    assert unit_of("tests/e2e/test_a.py::test_one[x::y]") == "tests/e2e/"
    assert unit_of("tests/e2e/clients/test_a.py::test_one") == "tests/e2e/clients/"
    assert unit_of("tests/e2e/test_documents.py::test_one") == "tests/e2e/test_documents.py"
    assert unit_of("tests/unit/test_many.py::Class::test") == "tests/unit/test_many.py"


def test_long_files_come_before_those_with_many_tests() -> None:
    config: Any = SimpleNamespace(
        getvalue=lambda _: ["popen", "popen"], option=SimpleNamespace(loadscopereorder=True)
    )
    queue = FileQueue(config)
    processes: list[Any] = [Process("a"), Process("b")]
    for process in processes:
        queue.add_node(process)
        queue.add_node_collection(process, TESTS)
    queue.schedule()
    waiting, computing = processes
    assert waiting.units[0] == [TESTS[0], TESTS[5]], "all that share servers, in one process"
    assert waiting.units[1] == [TESTS[1]]
    assert computing.units[0] == TESTS[2:5], "a file stays together"
    queue.mark_test_complete(computing, 2)
    handed_out = [unit for process in processes for unit in process.units]
    assert sorted(test for unit in handed_out for test in unit) == sorted(TESTS)


def test_units_that_take_long_have_the_first_places() -> None:
    waiting = ["tests/e2e/", "tests/process/faults/x.py", "tests/process/x.py"]
    computing = ["tests/engine/memory/x.py", "tests/engine/x.py", "tests/unit/x.py"]
    assert sorted(computing + waiting, key=rank_of) == waiting + computing
    in_order = sorted(waiting + computing, key=lambda unit: rank_of(unit, computing=True))
    assert in_order == computing + waiting


@pytest.mark.parametrize(
    ("processes", "computing"), [(1, []), (2, [1]), (3, [2]), (4, [3]), (8, [6, 7])]
)
def test_a_quarter_of_the_processes_computes_first(processes: int, computing: list[int]) -> None:
    places = range(processes)
    assert [place for place in places if computes_first(place, processes)] == computing
