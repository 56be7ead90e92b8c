"""Processes that an earlier supervisor left without a record that can be read."""

import contextlib
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages import control
from lmx.protocol.states import WorkerState
from lmx.protocol.wire.endpoints import RunDirectory
from lmx.supervisor.router.guard import RouterGuard
from lmx.supervisor.service.adoption import Adoption, _is_bound
from lmx.supervisor.state.disk_retry import change_once
from lmx.supervisor.state.process_records import Records
from tests.support.rigs.core_rig import CoreRig

INSTANCE = "0badcafe"


@pytest.mark.parametrize(
    ("said_bytes", "planned", "reserved_bytes"),
    [(90, True, 600), (700, True, 700), (90, False, 90)],
)
def test_a_worker_without_a_record_holds_what_its_start_would_reserve(
    tmp_path: Path, said_bytes: int, planned: bool, reserved_bytes: int
) -> None:
    rig = CoreRig({"a": 600, "b": 500})
    if not planned:
        rig.actions.estimate_error = OperationError(ErrorCode.MODEL_SOURCE_INVALID, "no folder")
    records = Records(tmp_path)
    adoption = _adoption(rig, records, tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()", INSTANCE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # Before, the system may not show its arguments.
        hello = control.WorkerHello(INSTANCE, "a", process.pid, WorkerState.READY, said_bytes)
        assert adoption.admits_worker(hello, 0.0)
        process.kill()
    assert rig.core.ledger.reserved_by(INSTANCE) == reserved_bytes
    assert [record.reserved_bytes for record in records.workers()] == [reserved_bytes]


def _adoption(rig: CoreRig, records: Records, folder: Path) -> Adoption:
    unused: Any = None
    guard = RouterGuard(unused, rig.settings)
    return Adoption(
        rig.core, guard, records, RunDirectory(folder), lambda _instance, _pid: None,
        lambda _pid: None, change_once, lambda _instance, _what: None,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform == "darwin", reason="there a full backlog refuses at once")
def test_a_worker_that_accepts_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with contextlib.ExitStack() as opened:
        stopped = opened.enter_context(socket.socket(socket.AF_UNIX))
        stopped.bind("w-1")
        stopped.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = opened.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect("w-1")
        assert _is_bound(Path("w-1"))
    assert not _is_bound(Path("w-1"))
