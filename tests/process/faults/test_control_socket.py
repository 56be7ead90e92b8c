"""What clients of the control socket may do to the supervisor: nothing."""

import contextlib
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from lmx.protocol.errors import OperationError
from lmx.protocol.states import ModelState
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.supervisor.sockets.client import ControlClient
from lmx.supervisor.state.home import Home
from tests.support.rigs.rig import Rig, rig, scripted, wait_until


@pytest.fixture
def lmx() -> Iterator[Rig]:
    with rig({"models": [scripted("good")]}) as running:
        yield running


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="another process's limits are changed")
def test_a_hundred_clients_and_few_descriptors(lmx: Rig) -> None:
    lmx.wait_state("good", "ready")
    assert lmx.supervisor is not None
    pid = lmx.status()["supervisor"]["pid"]
    usual = descriptors(pid)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64))
    run = RunDirectory(lmx.home / "run")
    context = zmq.Context()
    try:
        for endpoint in (run.control, run.events):
            for _ in range(100):
                client = context.socket(zmq.SUB if endpoint == run.events else zmq.DEALER)
                client.connect(endpoint)
        plain = [socket.socket(socket.AF_UNIX) for _ in range(100)]
        for each in plain:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # too many at once
                each.connect(str(run.control_socket))
        # The question may be lost among so many.
        with contextlib.suppress(OperationError), ControlClient(Home(lmx.home), 5.0) as asking:
            status = asking.status()
            assert status.supervisor.pid == pid
            assert [worker.state for worker in status.workers] == [ModelState.READY]
        for each in plain:
            each.close()
    finally:
        context.destroy(linger=0)
    assert lmx.cli("status").returncode == 0
    lmx.cli("restart", "good")
    assert lmx.wait_state("good", "ready")
    assert lmx.status()["supervisor"]["pid"] == pid
    wait_until(lambda: descriptors(pid) <= usual + 5, "those of the clients are closed")
    assert lmx.stop(signal.SIGTERM) == 0
