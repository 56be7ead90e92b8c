"""How many files a process may open."""

import asyncio
import errno
import resource
from typing import Any

import pytest

from lmx.protocol.host.limits import UNLIMITED, file_limit, open_files_limit, report_shortage_rarely

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


async def test_connections_that_wait_are_logged_rarely(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    context: dict[str, Any] = {
        "message": "socket.accept() out of system resource",
        "exception": OSError(errno.EMFILE, "Too many open files"),
    }
    try:
        report_shortage_rarely(loop)
        for _ in range(5000):
            loop.call_exception_handler(context)
        assert [record.name for record in caplog.records] == ["lmx.protocol.host.limits"]
        loop.call_exception_handler({"message": "another", "exception": RuntimeError("a bug")})
        assert "a bug" in caplog.text
    finally:
        loop.set_exception_handler(None)
