"""``stop``, and what it says, where a supervisor or what it left does not do as it should."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError, ProtocolError
from lmx.protocol.messages import control
from lmx.protocol.messages.status import Status
from lmx.supervisor.cli import without_supervisor
from lmx.supervisor.cli.without_supervisor import stop
from lmx.supervisor.config.schema import TimingConfig
from lmx.supervisor.config.shutdown_timeout import ROUTER_EXIT_S, term_grace_s
from lmx.supervisor.sockets.client import ControlClient
from lmx.supervisor.state.home import Home
from tests.support.fakes.admin_lines import reported_status


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.prepare()
    home.lock.touch()
    return home


class _Supervisor:
    """Answers, and ends by SIGTERM, or by the question if it takes it."""

    pid = 4242

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusal: Exception, state: str) -> None:
        self.signals: list[signal.Signals] = []
        self.asked = 0
        self.looks = 0
        self._refusal, self._state = refusal, state
        for name, value in {
            "supervisor_process": lambda _home: self,
            "probe_supervisor": lambda _home: None,
            "is_stopped": lambda _holder: False,
            "is_running": self._lives,
            "_end_rest": lambda *_args, **_options: [],
        }.items():
            monkeypatch.setattr(without_supervisor, name, value)
        monkeypatch.setattr(ControlClient, "ask", lambda _client, question: self._ask(question))

    def send_signal(self, number: signal.Signals) -> None:
        self.signals.append(number)

    def _lives(self, _holder: Any) -> bool:
        self.looks += 1
        assert self.looks < 20, "nobody told it to stop"
        stops_by_itself = self._state == "stopping" and self.looks > 3
        return not stops_by_itself and signal.SIGTERM not in self.signals

    def _ask(self, question: Any) -> Any:
        if isinstance(question, control.StopAll):
            self.asked += 1
            raise self._refusal
        return Status(reported_status(state=self._state))


@pytest.mark.parametrize(
    "refusal",
    [
        OperationError(ErrorCode.SUPERVISOR_UNAVAILABLE, "lost"),
        OperationError(ErrorCode.INTERNAL, "denied"),
        ProtocolError("of another version"),
    ],
)
def test_one_that_does_not_take_the_question_is_sent_a_signal(
    refusal: Exception, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, said = _Supervisor(monkeypatch, refusal, "running"), list[str]()
    assert stop(home, said.append) == supervisor.pid
    assert supervisor.signals == [signal.SIGTERM, signal.SIGCONT]
    assert supervisor.asked == 1
    assert len(said) == 1
    assert "SIGTERM" in said[0]


def test_one_that_stops_already_is_not_stopped_twice(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = OperationError(ErrorCode.SUPERVISOR_UNAVAILABLE, "the answer was lost")
    supervisor, said = _Supervisor(monkeypatch, lost, "stopping"), list[str]()
    assert stop(home, said.append) == supervisor.pid
    assert (supervisor.signals, supervisor.asked, said) == ([], 1, [])


def test_what_only_its_mark_names_and_nothing_ends_is_said(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = SimpleNamespace(pid=4242, cmdline=lambda: ["python", "-m", "other"])
    monkeypatch.setattr(without_supervisor, "marked", lambda _home: [held, held])
    monkeypatch.setattr(without_supervisor, "end_marked", lambda _home: [4242, 4242])
    with pytest.raises(OperationError, match="SIGKILL ends pids 4242:"):
        without_supervisor._end_rest(home, lambda _text: None, locked=False)
    monkeypatch.setattr(without_supervisor, "marked", lambda _home: [])
    assert without_supervisor._end_rest(home, lambda _text: None, locked=False) == [4242]


def test_one_that_is_started_again_and_again_is_no_success(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(*_args: Any, **_options: Any) -> list[int]:
        raise OperationError(ErrorCode.ALREADY_RUNNING, "lmx is running already (pid 4242)")

    monkeypatch.setattr(without_supervisor, "_end_rest", again)
    with pytest.raises(OperationError, match="running already") as raised:
        stop(home, lambda _text: None)
    assert raised.value.code is ErrorCode.ALREADY_RUNNING


def test_what_is_left_gets_the_grace_that_a_supervisor_gives_it() -> None:
    timing = TimingConfig()
    grace_s = without_supervisor._TERM_GRACE_S
    assert grace_s > timing.shutdown_grace_s + ROUTER_EXIT_S
    assert all(grace_s > term_grace_s(timing, platform) for platform in ("darwin", "linux"))
