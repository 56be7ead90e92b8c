"""How many files a process may open."""

import resource

import pytest

from lmx.protocol.host.limits import UNLIMITED, file_limit, open_files_limit

ANY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("wanted", "allowed", "kernel", "limit"),
    [
        (65_536, ANY, None, 65_536),
        (65_536, 4096, None, 4096),
        (65_536, ANY, 10_240, 10_240),  # a Mac of 8 GB, whatever getrlimit says
        (65_536, 1024, 61_440, 1024),
        (UNLIMITED, ANY, 0, UNLIMITED),
    ],
)
def test_the_least_of_all_limits_holds(
    wanted: int, allowed: int, kernel: int | None, limit: int
) -> None:
    assert file_limit(wanted, allowed, kernel) == limit


def test_this_process_may_open_files() -> None:
    assert open_files_limit() > 0
