"""The ends of processes, as Linux tells them and as macOS does."""

import asyncio
import errno
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lmx.supervisor.processes.exit_watch import ExitQueue, ExitWatch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a kqueue made of pidfds")


class FakeKqueue:
    """A kqueue of macOS, made of pidfds: it knows one process of each pid, and reports it once."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._descriptors: dict[int, int] = {}

    def add(self, pid: int) -> None:
        if pid in self._descriptors.values():
            return  # The event that is there already is changed, and belongs to the first process.
        descriptor = os.pidfd_open(pid)
        self._descriptors[descriptor] = pid
        self._epoll.register(descriptor, select.EPOLLIN)

    def take(self) -> list[int]:
        pids = []
        for descriptor, _ in self._epoll.poll(0):
            self._epoll.unregister(descriptor)
            os.close(descriptor)
            pids.append(self._descriptors.pop(descriptor))
        return pids

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._epoll.close()


class Gone(FakeKqueue):
    """The same, after a pid went that is being asked for."""

    def add(self, pid: int) -> None:
        raise ProcessLookupError


class FullAtFirst(FakeKqueue):
    """The same; the system has no memory for the first process."""

    failed = False

    def add(self, pid: int) -> None:
        if not self.failed:
            self.failed = True
            raise OSError(errno.ENOMEM, "no memory")
        super().add(pid)


async def test_a_process_that_could_not_be_watched_can_be_at_the_next_try(sleeper: int) -> None:
    watch = ExitWatch(asyncio.get_running_loop(), FullAtFirst())
    ended = asyncio.Event()
    with pytest.raises(OSError, match="no memory"):
        watch.watch(sleeper, None, lambda _: pytest.fail("nobody waits for it"))
    watch.watch(sleeper, None, lambda _: ended.set())
    os.kill(sleeper, signal.SIGTERM)
    await asyncio.wait_for(ended.wait(), 90)
    watch.close()


@pytest.fixture(params=["pidfd", "kqueue"])
async def watch(request: pytest.FixtureRequest) -> ExitWatch:
    queue: ExitQueue | None = FakeKqueue() if request.param == "kqueue" else None
    return ExitWatch(asyncio.get_running_loop(), queue)


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that this program did not start as a Popen."""
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)
    yield pid
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


async def test_each_end_is_reported_once_with_its_status(watch: ExitWatch) -> None:
    children = [subprocess.Popen(["/bin/sleep", "60"], start_new_session=True) for _ in range(3)]
    ends: asyncio.Queue[tuple[int, int | None]] = asyncio.Queue()

    def watched(child: subprocess.Popen[bytes]) -> None:
        watch.watch(child.pid, child, lambda status: ends.put_nowait((child.pid, status)))

    for child in children:
        watched(child)
    children[1].terminate()
    assert await asyncio.wait_for(ends.get(), 90) == (children[1].pid, -signal.SIGTERM)
    children[0].kill()
    children[2].terminate()
    rest = {await asyncio.wait_for(ends.get(), 90) for _ in range(2)}
    assert rest == {(children[0].pid, -signal.SIGKILL), (children[2].pid, -signal.SIGTERM)}
    assert ends.empty()
    watch.close()


async def test_a_pid_that_was_given_again_is_another_process(
    watch: ExitWatch, sleeper: int
) -> None:
    """The end of the first may be seen only after the second has its pid."""
    ends: asyncio.Queue[str] = asyncio.Queue()
    watch.watch(sleeper, None, lambda _: ends.put_nowait("first"))
    watch.watch(sleeper, None, lambda _: ends.put_nowait("second"))
    os.kill(sleeper, signal.SIGTERM)
    seen = {await asyncio.wait_for(ends.get(), 90) for _ in range(2)}
    assert seen == {"first", "second"}
    watch.close()


class Reused(FakeKqueue):
    """The same; whoever asks for ``pid`` again asks for another process, which has it by now."""

    def __init__(self, pid: int, by_now: int) -> None:
        super().__init__()
        self._pid, self._by_now = pid, by_now
        self._asked = False

    def add(self, pid: int) -> None:
        super().add(self._by_now if self._asked else pid)
        self._asked = True


async def test_the_first_end_of_a_pid_is_not_the_seconds(sleeper: int) -> None:
    child = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
    watch = ExitWatch(asyncio.get_running_loop(), Reused(child.pid, sleeper))
    ends: asyncio.Queue[str] = asyncio.Queue()
    watch.watch(child.pid, child, lambda _: ends.put_nowait("first"))
    watch.watch(child.pid, None, lambda _: ends.put_nowait("second"))
    child.terminate()
    assert await asyncio.wait_for(ends.get(), 90) == "first"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ends.get(), 0.1)
    watch.close()


async def test_what_has_come_by_then_is_read_before_an_end_is_reported(watch: ExitWatch) -> None:
    """A supervisor that stood still finds the last words of a worker together with its end."""
    loop, order, ended = asyncio.get_running_loop(), list[str](), asyncio.Event()
    child = subprocess.Popen(["/bin/sleep", "0"], start_new_session=True)

    def end(_: int | None) -> None:
        order.append("end")
        ended.set()

    def read() -> None:
        order.append("message")
        loop.remove_reader(ours)

    watch.watch(child.pid, child, end)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop.add_reader(ours, read)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # the loop stands still
        theirs.send(b"x")
        await asyncio.wait_for(ended.wait(), 90)
    assert order == ["message", "end"]
    watch.close()


async def test_one_that_is_gone_is_reported_too(watch: ExitWatch) -> None:
    child = subprocess.Popen(["/bin/sleep", "0"], start_new_session=True)
    child.wait()
    for watching in (watch, ExitWatch(asyncio.get_running_loop(), Gone())):
        ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        watching.watch(child.pid, child, ended.set_result)
        assert await asyncio.wait_for(ended, 90) == 0
        watching.close()
