"""The supervisor in a terminal."""

from pathlib import Path
from typing import cast

import pytest

from lmx.protocol.errors import ErrorCode, OperationError, ProtocolError
from lmx.protocol.host.log_limit import LogLimit
from lmx.protocol.messages.status import SystemStatus
from lmx.supervisor.cli.serving import background, foreground
from lmx.supervisor.cli.serving.demo import demo_models, story_lines
from lmx.supervisor.config.schema import Config, LogConfig
from lmx.supervisor.service.service import Service
from lmx.supervisor.sockets.client import ControlClient
from lmx.supervisor.state.home import Home
from tests.support.fakes.fake_supervisor import model_line, status


def test_a_log_that_cannot_be_kept_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []

    def keep_to(path: Path, _limit: LogLimit) -> bool:
        kept.append(path.name)
        raise OSError(13, f"{path.name} is not ours")

    home = Home(tmp_path)
    home.prepare()
    for name in "abc":
        (home.logs / f"{name}.log").touch()
    monkeypatch.setattr(foreground, "keep_to", keep_to)
    monkeypatch.setattr(foreground, "keep_forever", lambda _keep, _name: None)
    monkeypatch.setattr(foreground, "configure_logs", lambda *_args, **_options: None)
    logs = foreground._Logs(home, LogConfig(), detached=False)
    with pytest.raises(OSError, match="is not ours") as raised:
        logs._keep_once()
    assert {"a.log", "b.log", "c.log"} <= set(kept)
    assert kept[0] in str(raised.value)


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (OperationError(ErrorCode.NOT_RUNNING, "nobody"), True),
        (OperationError(ErrorCode.SUPERVISOR_UNAVAILABLE, "busy"), True),
        (ProtocolError("half of an answer"), True),
        (OperationError(ErrorCode.CONFIG_INVALID, "no folder"), False),
    ],
)
def test_one_in_the_background_that_does_not_answer_yet_is_waited_for(
    error: Exception, waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_client: ControlClient) -> SystemStatus:
        raise error

    home = Home(tmp_path)
    home.prepare()
    monkeypatch.setattr(ControlClient, "status", refuse)
    if waits:
        assert background._status_if_running(home) is None
    else:
        with pytest.raises(OperationError):
            background._status_if_running(home)


class FakeService:
    """Tells one status after the other, then the last one for good."""

    serving = True
    stop_asked = False

    def __init__(self, *states: str) -> None:
        self._left = list(states)

    def status(self, _now_s: float) -> SystemStatus:
        state = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        return status(model_line("a", state))


@pytest.mark.parametrize(
    ("states", "pause_s", "said"),
    [
        # A model waits for a moment for its memory, and is loaded then.
        (("fetching", "queued", "loading", "queued", "ready"), 60.0, ["ready", "serves at"]),
        (("queued",), 0.02, ["waits for memory", "serves at"]),
        (("backoff",), 0.02, ["serves at"]),
    ],
)
async def test_it_is_said_that_lmx_serves_when_the_loads_have_come_to_an_end(
    states: tuple[str, ...],
    pause_s: float,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(foreground, "_POLL_S", 0.005)
    monkeypatch.setattr(foreground, "_PAUSE_S", pause_s)
    monkeypatch.setattr(foreground, "advice", lambda: None)
    lines = story_lines(Path("/home/me/.lmx/admin.key"))
    await foreground._narrate(cast(Service, FakeService(*states)), lines)
    output = capsys.readouterr().out
    places = [output.index(words) for words in (*said, "/#/demo", "/home/me/.lmx/admin.key")]
    assert places == sorted(places)


async def test_an_lmx_that_is_stopped_while_it_loads_does_not_say_that_it_serves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stopped = FakeService("ready")
    stopped.stop_asked = True
    await foreground._narrate(cast(Service, stopped), ())
    assert capsys.readouterr().out == ""


def test_the_demo_model_does_not_continue_without_end() -> None:
    (model,) = Config.model_validate({"models": demo_models(Path("/x.gguf"), two=False)}).models
    assert model.default_max_tokens == 256
    assert (model.id, model.source) == ("smollm2-135m-instruct", "/x.gguf")
    one, two = Config.model_validate({"models": demo_models(Path("/x.gguf"), two=True)}).models
    assert (one.id, two.id) == ("smollm2-one", "smollm2-two")
    assert one.source == two.source == model.source
