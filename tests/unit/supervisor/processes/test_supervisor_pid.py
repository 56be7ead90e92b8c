"""How a supervisor is, as it is seen from outside."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from lmx.protocol.errors import ErrorCode, LmxError, OperationError, ProtocolError
from lmx.protocol.host.processor_wait import Observed, Turns
from lmx.supervisor.cli.serving import rescue
from lmx.supervisor.processes import supervisor_pid
from lmx.supervisor.processes.hang_detection import LATE_S
from lmx.supervisor.processes.supervisor_pid import probe_supervisor
from lmx.supervisor.sockets.client import ControlClient
from lmx.supervisor.state.home import Home


@pytest.mark.parametrize(
    ("error", "answers"),
    [
        (OperationError(ErrorCode.SHUTTING_DOWN, "denied"), True),
        (OperationError(ErrorCode.INTERNAL, "denied"), True),
        (ProtocolError("of another version"), True),
        (OperationError(ErrorCode.NOT_RUNNING, "nobody"), False),
        (OperationError(ErrorCode.SUPERVISOR_UNAVAILABLE, "nobody"), False),
    ],
)
def test_a_denial_is_an_answer_and_no_answer_is_silence(
    error: LmxError, answers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ControlClient, "status", Mock(side_effect=error))
    assert (probe_supervisor(Home(tmp_path)) is None) is answers


def test_a_look_at_one_that_spins_is_not_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits_s: list[float] = []

    def answers(_home: Home, limit_s: float) -> bool:
        limits_s.append(limit_s)
        return False

    used_s = iter(range(10))
    monkeypatch.setattr(supervisor_pid, "_answers", answers)
    monkeypatch.setattr(supervisor_pid, "_cpu_s", lambda _holder: float(next(used_s)))
    assert probe_supervisor(Home(tmp_path)) is not None
    assert len(limits_s) == 2
    assert sum(limits_s) + rescue._LOOK_S <= LATE_S - 1.0


@pytest.mark.parametrize(("waits_s", "answers"), [(0.9, True), (0.0, False)])
def test_one_that_waits_for_a_processor_gets_longer_to_answer(
    waits_s: float, answers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([Observed(0.0, {}), Observed(1.0, {1: Turns(0.001, waits_s)})])
    monkeypatch.setattr(supervisor_pid, "_observed", lambda _holder: next(looks))
    monkeypatch.setattr(supervisor_pid, "_answers", lambda _home, limit_s: limit_s > 1.0)
    assert (probe_supervisor(Home(tmp_path)) is None) is answers


def test_a_supervisor_that_starts_is_not_asked_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Home] = []

    def probe(home: Home) -> str:
        looks.append(home)
        return "silent"

    monkeypatch.setattr(rescue, "probe_supervisor", probe)
    monkeypatch.setattr(rescue, "_START_S", 0.3)
    rescue._see_up(Home(tmp_path), cast(Any, SimpleNamespace(pid=4242, poll=lambda: None)))
    assert len(looks) <= 2 + 0.3 / (rescue._LOOK_S / 10)
