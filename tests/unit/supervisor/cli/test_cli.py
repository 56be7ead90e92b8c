"""The command line against a supervisor that says what it is told to: answers, waits, exits."""

import json
import os
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages import control, inventory
from lmx.protocol.messages.control import Event
from lmx.protocol.messages.keys import GetLocalKey, LocalKey
from lmx.protocol.messages.status import GetStatus, Status, SystemStatus
from lmx.supervisor.cli import command as commands
from lmx.supervisor.cli import download, machines, operations
from lmx.supervisor.cli.chat import session
from lmx.supervisor.cli.main import main
from lmx.supervisor.cli.service import changes
from lmx.supervisor.cli.serving import background
from lmx.supervisor.cli.views import events as events_view
from lmx.supervisor.cli.views.events import EventCursor, show_events
from lmx.supervisor.config import extras
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.inventory.added_file import AddedFile
from lmx.supervisor.inventory.download_records import requested_download
from lmx.supervisor.service.launch import Launch
from lmx.supervisor.sockets.client import ReconnectingClient
from lmx.supervisor.sockets.http_client import Remote
from lmx.supervisor.state.event_file import EventFile
from lmx.supervisor.state.home import Home
from tests.support.fakes.admin_lines import reported_status
from tests.support.fakes.fake_supervisor import fake_supervisor, model_line, status


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("LMX_HOME", str(tmp_path))
    monkeypatch.delenv("LMX_CONFIG", raising=False)
    monkeypatch.setattr(operations, "_POLL_S", 0.01)
    # What was asked is counted here: no answer is late, however long this process stands still.
    monkeypatch.setattr("lmx.supervisor.sockets.client._EACH_ANSWER_S", 90.0)
    return Home(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def in_turn(*replies: Any) -> Callable[[Any], Any]:
    """Answer with one reply after the other, then with the last one for good."""
    left: Iterator[Any] = iter(replies)
    last = replies[-1]
    return lambda _question: next(left, last)


def statuses(*found: SystemStatus) -> Callable[[Any], Any]:
    return in_turn(*(Status(one) for one in found))


def test_simple_commands_say_what_the_supervisor_says(home: Home) -> None:
    answers = {
        control.ResetModel: lambda question: control.Done(f"reset {question.model_id}"),
        control.PinModel: lambda question: control.Done(f"pinned: {question.pinned}"),
    }
    with fake_supervisor(home, answers) as asked:
        assert run("reset", "a").output == "reset a\n"
        assert run("pin", "a").output == "pinned: True\n"
        assert run("unpin", "a").output == "pinned: False\n"
    assert asked == [
        control.ResetModel("a"),
        control.PinModel("a", True),
        control.PinModel("a", False),
    ]


def test_every_command_says_that_lmx_does_not_run(home: Home) -> None:
    for arguments in (
        ["status"], ["top"], ["events"], ["load", "a"], ["unload", "a"], ["drain", "a"],
        ["kill", "a"], ["restart", "a"], ["restart", "--router"], ["restart", "--supervisor"],
        ["reset", "a"], ["pin", "a"], ["unpin", "a"], ["reload"], ["remove", "a"],
        ["add", "a", "org/a"], ["stop"],
    ):  # fmt: skip
        done = run(*arguments)
        assert (done.exit_code, "lmx is not running" in done.output) == (3, True), arguments


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "ftp://x", "status"], "is not the address of an lmx"),
        (["bench", "ftp://x"], "is not the address of an lmx"),
        (["bench", "a=http://x", "a=http://y"], "another server has it"),
        (["pull", "--search", "qwen", "--file", "x.gguf"], "--file needs a model"),
        (["pull", "--cancel", "dl_1", "--file", "x.gguf"], "--file needs a model"),
    ],
)
def test_wrong_arguments_are_wrong_usage(home: Home, arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, said in done.output) == (2, True), done.output


def test_a_stdin_that_is_closed_is_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)

    @commands.command
    def reads() -> None:
        with sys.stdin as stdin:
            assert (stdin.isatty(), stdin.read()) == (False, "")

    reads()


def test_what_is_said_where_an_output_is_closed_goes_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)

    @commands.command
    def says() -> None:
        with sys.stdout as stdout, sys.stderr as stderr:
            assert (stdout.isatty(), stdout.write("a"), stderr.write("a")) == (False, 1, 1)

    says()


def test_a_program_that_shows_the_service_s_log_ends_with_its_reader(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "log_command", lambda *_, **__: ["tail"])
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    started: list[object] = []

    def execvp(*_: object) -> None:
        started.append(signal.getsignal(signal.SIGPIPE))

    monkeypatch.setattr(os, "execvp", execvp)
    try:
        assert run("service", "logs").exit_code == 0
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert started == [signal.SIG_DFL]


def test_commands_work_with_an_lmx_whose_file_was_broken_since(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It keeps the configuration that was valid: what its keys are, it knows itself."""
    monkeypatch.delenv("LMX_API_KEY", raising=False)
    home.default_config.write_text("server: {nonsense: 1}\n")
    found = status()
    found = replace(found, router=replace(found.router, urls=("http://127.0.0.1:1/v1",)))
    answers = {
        GetStatus: statuses(found), GetLocalKey: lambda _: LocalKey("sk-lmx-local"),
    }  # fmt: skip
    with fake_supervisor(home, answers):
        assert session.connect(home).remote == Remote("http://127.0.0.1:1", "sk-lmx-local")
        with pytest.raises(OperationError, match="not a valid configuration"):
            commands.admin_key(home)
        home.admin_key.write_text("sk-lmx-admin\n")
        assert commands.admin_key(home) == "sk-lmx-admin"
        wanted = requested_download(inventory.StartDownload("org/name", None, None, None))
        download._report_prospect(home, wanted)
    assert "see `lmx config check`" in capsys.readouterr().err


def test_a_key_that_was_changed_and_not_reloaded_is_called_so(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LMX_API_KEY", raising=False)
    home.default_config.write_text("security: {api_keys: [sk-0123456789abcdef]}\n")
    found = status()
    found = replace(found, router=replace(found.router, urls=("http://127.0.0.1:1/v1",)))
    with fake_supervisor(home, {GetStatus: statuses(found)}):
        remote = session.connect(home).remote
    assert remote == Remote("http://127.0.0.1:1", "sk-0123456789abcdef")
    assert "`lmx reload`" in remote.key_words


def test_a_backup_says_whether_the_configuration_is_in_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.prepare()
    home.admin_key.write_text("sk-lmx-admin\n")
    used = home.path / "used.yaml"

    def backup(name: str) -> tuple[list[str], str]:
        done = run("backup", str(home.path / name))
        assert done.exit_code == 0, done.output
        with zipfile.ZipFile(home.path / name) as archive:
            return [one for one in archive.namelist() if one == "lmx.yaml"], done.stderr

    monkeypatch.setenv("LMX_CONFIG", str(used))
    assert backup("1.zip") == ([], f"note: {used} is not there: no configuration is in it\n")
    used.mkdir()
    names, said = backup("2.zip")
    assert names == [] and "is not part of the backup" in said and "is in it" not in said
    used.rmdir()
    used.write_text("server: {nonsense: 1}\n")
    assert backup("3.zip") == (["lmx.yaml"], f"note: {used} is in it as lmx.yaml\n")
    # What is saved is what runs, although it is not valid any more.
    monkeypatch.delenv("LMX_CONFIG")
    home.default_config.write_text("server: {port: 1}\n")
    monkeypatch.setattr(
        "lmx.supervisor.service.launch.running_launch", lambda _: Launch(str(used), {}, {})
    )
    assert backup("4.zip") == (["lmx.yaml"], f"note: {used} is in it as lmx.yaml\n")
    with zipfile.ZipFile(home.path / "4.zip") as archive:
        assert archive.read("lmx.yaml") == used.read_bytes()


def test_a_model_is_found_by_its_short_name(home: Home) -> None:
    source = "mlx-community/Qwen3-8B-4bit"
    pulled = model_line(source, "drained", source=source)
    answers = {
        control.ResetModel: lambda question: control.Done(f"reset {question.model_id}"),
        GetStatus: statuses(status(model_line("b"), pulled)),
    }
    with fake_supervisor(home, answers):
        assert run("undrain", "Qwen3-8B").output.startswith(f"{source} takes requests again")
        assert run("show", "qwen3-8b").output.startswith(source)
    own = model_line("qwen3-8b", source="/mine")
    with fake_supervisor(home, {GetStatus: statuses(status(pulled, own))}):
        assert "/mine" in run("show", "qwen3-8b").output


def test_restart_wants_one_thing(home: Home) -> None:
    for arguments in ([], ["a", "--router"], ["--router", "--supervisor"]):
        done = run("restart", *arguments)
        assert (done.exit_code, "give one of" in done.output) == (2, True)


def test_drain_waits_for_the_streams(home: Home) -> None:
    answers = {
        control.DrainModel: lambda _: control.Done("draining", 4711),
        GetStatus: statuses(
            status(model_line("a", "draining", requests_active=2)),
            status(model_line("a", "draining", requests_active=1)),
            status(model_line("a", "drained")),
        ),
    }
    with fake_supervisor(home, answers):
        done = run("drain", "a")
    assert done.exit_code == 0, done.output
    assert "a: draining, 2 requests left" in done.output
    assert "a: draining, 1 request left" in done.output
    assert "drained a (pid 4711 is gone)" in done.output
    assert "lmx undrain a" in done.output


def test_drain_of_a_machine_waits_for_what_only_the_router_knows(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker says with its next beat what it has just been given."""
    monkeypatch.setattr(machines, "_POLL_S", 0.01)
    answers = {
        control.DrainMachine: lambda _: control.Done("the machine is drained"),
        GetStatus: statuses(
            *(
                reported_status(
                    model_line("a", requests_active=active), router={"streams": streams}
                )
                for active, streams in ((0, 1), (2, 0), (0, 0))
            )
        ),
    }
    with fake_supervisor(home, answers) as asked:
        done = run("drain", "--machine")
    assert done.exit_code == 0, done.output
    assert "1 request left" in done.output
    assert "2 requests left" in done.output
    assert asked.count(GetStatus()) == 3


def test_undrain_takes_back_a_drain_alone(home: Home) -> None:
    answers = {
        control.ResetModel: lambda _: control.Done("reset"),
        GetStatus: statuses(status(model_line("a", "drained"), model_line("b"))),
    }
    with fake_supervisor(home, answers) as asked:
        assert run("undrain", "a").output == "a takes requests again: the next one loads it\n"
        refused = run("undrain", "b")
    assert (refused.exit_code, refused.output) == (1, "lmx: b is not drained: it is ready\n")
    assert [each for each in asked if each != GetStatus()] == [control.ResetModel("a")]


def test_a_model_that_is_named_and_can_never_be_loaded_ends_serve_at_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMX_MODELS", "")  # it is set by the command, and taken back
    for command in ("serve", "start"):
        for name in ("./nope", f"here={home.path}"):
            done = run(command, name)
            assert done.exit_code == 1, done.output
            assert "can't be loaded" in done.output
    assert not home.supervisor_log.exists()


def test_all_that_is_known_of_a_model(home: Home) -> None:
    lines = (model_line("a", aliases=["z"], context_length=2048), model_line("b", "queued"))
    with fake_supervisor(home, {GetStatus: statuses(status(*lines))}):
        shown = run("show", "z").output
        assert json.loads(run("show", "a", "--json").output)["model"] == "a"
        unknown = run("show", "c")
    for words in ("a\n", "ready, pid 4711", "2048 tokens", "1.0 GiB now", "source", "aliases"):
        assert words in shown
    assert (unknown.exit_code, "known: a, b" in unknown.output) == (1, True)


def test_version_and_help(home: Home) -> None:
    said = run("version").output.splitlines()
    assert said[0].startswith("lmx ")
    assert said[1] == "lmx is not running"
    with fake_supervisor(home, {GetStatus: statuses(status())}):
        assert "lmx 0.1.0 is running (pid" in run("version").output
    assert run("help", "kill").output == run("kill", "-h").output
    assert run("help", "config", "check").output == run("config", "check", "-h").output
    assert run("help").output == run("-h").output
    assert run("help", "kil").exit_code == 2


def test_load_says_what_it_waits_for(home: Home) -> None:
    answers = {
        control.LoadModel: lambda _: control.Done("loading a"),
        GetStatus: statuses(
            status(model_line("a", "queued", position=2)),
            status(model_line("a", "loading", phase="weights", fraction=0.4)),
            status(model_line("a", "backoff", problem="it [fell]", retry_in_s=0.5)),
            status(model_line("a", "backoff", problem="it [fell]", retry_in_s=0.4)),
            status(model_line("a", "starting", phase="start")),
            status(model_line("a")),
        ),
    }
    with fake_supervisor(home, answers):
        done = run("load", "a")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[:-1] == [
        "a: waits for memory, 2nd in line",
        "a: weights",
        "failed  a: it [fell]",
        "a: starting",
    ]
    assert "ready  a  1.0 GiB, pid 4711" in done.output.splitlines()[-1]


def test_a_load_with_another_context_waits_for_the_worker_that_has_it(home: Home) -> None:
    answers = {
        control.LoadModel: lambda _: control.Done("loading a"),
        GetStatus: statuses(
            status(model_line("a", context_length=2048)),
            status(model_line("a", "draining")),
            status(model_line("a", context_length=64, pid=4712)),
        ),
    }
    with fake_supervisor(home, answers) as asked:
        done = run("load", "a", "--context-length", "64")
    assert "ready  a  1.0 GiB, pid 4712" in done.output
    assert control.LoadModel("a", 64) in asked


def test_a_model_is_added_by_a_path_that_means_the_same_everywhere(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {inventory.AddModel: lambda question: control.Done(f"added {question.source}")}
    monkeypatch.chdir(tmp_path)
    with fake_supervisor(home, answers) as asked:
        assert run("add", "a", "./x").output == f"added {tmp_path / 'x'}\n"
        assert run("add", "b", "org/b@v1", "--context-length", "64").exit_code == 0
        assert run("add", "q", "Qwen3-8B").output == "added mlx-community/Qwen3-8B-4bit\n"
        bad = run("add", "c", "nothing")
    assert asked == [
        inventory.AddModel("a", str(tmp_path / "x")),
        inventory.AddModel("b", "org/b@v1", 64),
        inventory.AddModel("q", "mlx-community/Qwen3-8B-4bit"),
    ]
    assert (bad.exit_code, "./nothing" in bad.output) == (1, True)


def test_remove_waits_until_the_worker_is_gone(home: Home) -> None:
    answers = {
        inventory.RemoveModel: lambda _: control.Done("a is removed", 4711),
        GetStatus: statuses(status(model_line("a", "draining")), status(model_line("b", pid=1))),
    }
    with fake_supervisor(home, answers) as asked:
        done = run("remove", "a")
    assert (done.exit_code, done.output) == (0, "a is removed\n")
    assert asked.count(GetStatus()) == 2


def test_a_load_that_ends_cold_failed(home: Home) -> None:
    answers = {
        control.LoadModel: lambda _: control.Done("loading a"),
        GetStatus: statuses(status(model_line("a", "failed", problem="no [such] folder"))),
    }
    with fake_supervisor(home, answers):
        done = run("load", "a")
    assert (done.exit_code, "a: no [such] folder" in done.output) == (1, True)


def test_a_wait_outlasts_a_model_that_is_gone(home: Home) -> None:
    answers = {
        control.UnloadModel: lambda _: control.Done("unloading", 4711),
        GetStatus: statuses(status(model_line("a", "draining")), status(model_line("b"))),
    }
    with fake_supervisor(home, answers):
        done = run("unload", "a")
    assert (done.exit_code, "no model is named 'a'; known: b" in done.output) == (1, True)


def test_reload_prints_what_follows(home: Home) -> None:
    replies = in_turn(
        control.Reloaded(("memory", "models"), ("a is unloaded after its streams", "b is new")),
        control.Reloaded((), ()),
    )
    with fake_supervisor(home, {control.ReloadConfig: replies}):
        assert run("reload").output == (
            "reloaded; changed: memory, models\n  - a is unloaded after its streams\n  - b is new\n"
        )
        assert "nothing changed" in run("reload").output


def test_reload_of_a_bad_file_says_every_problem(home: Home) -> None:
    denied = control.Denied(ErrorCode.CONFIG_INVALID, "lmx.yaml: no\n  - one\n  - two")
    with fake_supervisor(home, {control.ReloadConfig: lambda _: denied}):
        done = run("reload")
    assert done.exit_code == 4
    assert "  - one\n  - two" in done.output


def test_restart_of_the_supervisor_waits_for_the_new_one(home: Home) -> None:
    answers = {
        control.RestartSupervisor: lambda _: control.Done("begun"),
        GetStatus: statuses(status(), status(), status(epoch="e2", version="0.2.0", pid=1)),
    }
    with fake_supervisor(home, answers) as asked:
        done = run("restart", "--supervisor")
    assert done.exit_code == 0, done.output
    assert "lmx 0.1.0 -> 0.2.0" in done.output
    assert [type(question) for question in asked].count(GetStatus) == 4


def test_restart_of_the_supervisor_waits_for_what_the_workers_say(home: Home) -> None:
    unheard = model_line("a", "starting", pid=4711)
    waiting = model_line("b", "starting", pid=4712)  # was starting before: nothing to wait for
    answers = {
        control.RestartSupervisor: lambda _: control.Done("begun"),
        GetStatus: statuses(
            status(model_line("a"), waiting),
            status(unheard, waiting, epoch="e2"),
            status(unheard, waiting, epoch="e2"),
            status(model_line("a"), waiting, epoch="e2"),
        ),
    }
    with fake_supervisor(home, answers) as asked:
        done = run("restart", "--supervisor")
    assert (done.exit_code, "has taken over" in done.output) == (0, True)
    assert [type(question) for question in asked].count(GetStatus) == 4


def test_a_worker_that_stays_silent_does_not_hold_up_the_new_supervisor(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "_INTRODUCTION_S", 0.05)
    unheard = status(model_line("a", "starting", pid=4711), epoch="e2")
    answers = {
        control.RestartSupervisor: lambda _: control.Done("begun"),
        GetStatus: statuses(status(model_line("a")), unheard),
    }
    with fake_supervisor(home, answers):
        done = run("restart", "--supervisor")
    assert (done.exit_code, "has taken over" in done.output) == (0, True)


def test_restart_of_the_router_waits_until_it_serves(home: Home) -> None:
    old = status()
    young = replace(old, router=replace(old.router, pid=5, memory_bytes=0))
    new = replace(old, router=replace(old.router, pid=5))
    answers = {
        control.RestartRouter: lambda _: control.Done("begun", 5),
        GetStatus: statuses(old, old, young, new),
    }
    with fake_supervisor(home, answers) as asked:
        done = run("restart", "--router")
    assert (done.exit_code, "pid 5" in done.output) == (0, True)
    assert len(asked) == 5


def test_restart_of_the_router_is_done_when_another_new_one_serves(home: Home) -> None:
    old = status()
    died = replace(old, router=replace(old.router, pid=None, memory_bytes=0))
    next_one = replace(old, router=replace(old.router, pid=6))
    answers = {
        control.RestartRouter: lambda _: control.Done("begun", 5),
        GetStatus: statuses(old, died, next_one),
    }
    with fake_supervisor(home, answers):
        done = run("restart", "--router")
    assert (done.exit_code, "pid 6" in done.output) == (0, True)


def test_a_router_that_never_serves_is_an_error(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "_RESTART_S", 0.1)
    answers = {
        control.RestartRouter: lambda _: control.Done("begun", 5),
        GetStatus: statuses(status()),
    }
    with fake_supervisor(home, answers):
        done = run("restart", "--router")
    assert (done.exit_code, "does not serve" in done.output) == (1, True)


def test_top_without_a_terminal_prints_one_frame(home: Home) -> None:
    answers = {
        GetStatus: statuses(status(model_line("a", pinned=True))),
        control.GetEvents: event_log("e1", 2),
    }
    with fake_supervisor(home, answers):
        done = run("top")
    assert done.exit_code == 0, done.output
    for word in ("4.0 GiB of 8.0 GiB", "ready", "pinned", "worker.ready", "event 2"):
        assert word in done.output


def test_models_are_listed_whole_in_a_narrow_terminal(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit"
    found = inventory.Available((inventory.AvailableModel(name, "/x", 17 * 2**30, 1e9, name),))
    answers = {inventory.GetAvailable: lambda _: found, GetStatus: statuses(status())}
    monkeypatch.setattr(download, "_with_kinds", lambda _place, rows, _kinds: [(rows[0], "chat")])
    lines: dict[int, list[list[str]]] = {}
    with fake_supervisor(home, answers):
        for width in (160, 80, 40):
            monkeypatch.setattr(
                download, "make_console", lambda width=width: Console(width=width, soft_wrap=True)
            )
            lines[width] = [line.split() for line in run("list").output.splitlines()]
    assert lines[160] == [
        ["MODEL", "KIND", "SIZE", "SERVED", "AS"], [name, "chat", "17.0", "GiB", name],
    ]  # fmt: skip
    assert lines[80] == [["MODEL", "KIND", "SIZE"], [name, "chat", "17.0", "GiB"]]
    (first, *size), *folded = lines[40][1:]
    assert (lines[40][0], size) == (["MODEL", "SIZE"], ["17.0", "GiB"])
    assert first + "".join(rest for (rest,) in folded) == name


def test_nothing_to_list_is_said_and_what_to_do(home: Home) -> None:
    answers = {
        inventory.GetDownloads: lambda _: inventory.Downloads(()),
        inventory.GetAvailable: lambda _: inventory.Available(()),
        GetStatus: statuses(status()),
    }
    with fake_supervisor(home, answers):
        assert run("downloads").output == "nothing was downloaded yet: `lmx pull -h` says how\n"
        assert "no model is on this machine yet: `lmx pull -h`" in run("list").output
        assert "no model is loaded; `lmx list`" in run("ps").output
        assert "no models: `lmx pull qwen3-8b` downloads one" in run("status").output


def event_log(epoch: str, count: int) -> Callable[[Any], Any]:
    """Answer as a supervisor with so many events, on models a and b in turn."""
    events = [
        Event(n, 1e9 + n, "worker.ready", "ab"[n % 2], f"event {n}", {"n": n})
        for n in range(1, count + 1)
    ]
    return lambda question: control.EventList(
        epoch, count, tuple(e for e in events if e.seq > question.after_seq)[-question.limit :]
    )


def test_events_of_one_model_the_last_of_them(home: Home) -> None:
    line = model_line("a", aliases=["al"])
    answers = {
        GetStatus: statuses(status(line, model_line("b"))),
        control.GetEvents: event_log("e1", 9),
    }
    with fake_supervisor(home, answers):
        done = run("events", "al", "-n", "2", "--json")
        assert [json.loads(one)["seq"] for one in done.output.splitlines()] == [6, 8]
        assert json.loads(done.output.splitlines()[0]) == {
            "epoch": "e1", "seq": 6, "at_s": 1e9 + 6, "name": "worker.ready", "model": "a",
            "detail": "event 6", "data": {"n": 6},
        }  # fmt: skip
        done = run("events", "-n", "1")
        assert "worker.ready" in done.output
        assert "b  event 9" in done.output
        assert run("events", "-n", "0").output == ""
        done = run("events", "nobody")
        assert (done.exit_code, "known: a, b" in done.output) == (1, True)


def test_events_of_a_model_where_no_lmx_runs(home: Home) -> None:
    home.prepare()
    kept = Event(1, 1e9, "worker.ready", "gone", "event 1", {})
    for event in (kept, replace(kept, seq=2, model_id="new")):
        EventFile(home.events).keep("e0", event)
    AddedFile(home.added_models).save({"new": AddedModelConfig(id="new", source="org/new")})
    home.default_config.write_text("models: [{id: a, source: /x, aliases: [al]}]")
    assert "event 1" in run("events", "gone").output, "it was removed since"
    assert "event 1" in run("events", "org/new").output
    assert (run("events", "al").output, run("events", "al").exit_code) == ("", 0)
    done = run("events", "nobody")
    assert (done.exit_code, "known: a, new" in done.output) == (1, True)
    # Logs are found by the same names.
    home.worker_log("new").write_text("a line\n")
    assert run("logs", "org/new").output == "a line\n"


def test_events_are_read_on_after_a_supervisor_that_counts_from_zero(home: Home) -> None:
    def seqs() -> list[tuple[str, int]]:
        return [(epoch, event.seq) for epoch, event in cursor.read(client)]

    cursor = EventCursor()
    with ReconnectingClient(home) as client:
        with fake_supervisor(home, {control.GetEvents: event_log("e1", 3)}):
            assert seqs() == [("e1", 1), ("e1", 2), ("e1", 3)]
            assert seqs() == []
        assert seqs() == []  # nobody there
        # More events than before: what it is asked for after the third would miss the first ones.
        with fake_supervisor(home, {control.GetEvents: event_log("e2", 4)}):
            assert seqs() == [("e2", n) for n in (1, 2, 3, 4)]


class Faltering:
    """A client of a router that answers every second question, and repeats all events."""

    def __init__(self, _place: object = None) -> None:
        self.asked = 0
        self.events = tuple(Event(n, 1e9, "worker.ready", "a", f"event {n}", {}) for n in (1, 2))

    def __enter__(self) -> "Faltering":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, question: Any) -> Any:
        self.asked += 1
        if self.asked % 2:
            return None
        if isinstance(question, GetStatus):
            return Status(status(model_line("a")))
        return control.EventList("e1", 2, self.events)


def test_events_that_a_router_repeats_are_read_once() -> None:
    cursor = EventCursor()
    client: Any = Faltering()
    read = [[event.seq for _, event in cursor.read(client)] for _ in range(4)]
    assert read == [[], [1, 2], [], []]
    assert client.asked == 4


def test_events_of_an_lmx_that_is_restarted_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(events_view, "ReconnectingClient", Faltering)
    monkeypatch.setattr(events_view, "_POLL_S", 0.0)
    show_events(Remote("http://127.0.0.1:1"), "a", 50, follow=False, as_json=False)
    assert [line.rpartition("  ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "event 1", "event 2",
    ]  # fmt: skip


def test_more_lines_than_another_machine_sends_are_not_silently_fewer() -> None:
    for count, said in ((100_000, True), (10_000, False)):
        done = run("--url", "http://127.0.0.1:1", "logs", "-n", str(count))
        assert done.exit_code == 3
        assert ("sends the last 10,000 lines" in done.output) is said


def test_patience_has_an_end(home: Home) -> None:
    with ReconnectingClient(home, patience_s=0.0) as client:
        with fake_supervisor(home, {GetStatus: statuses(status())}):
            assert client.status() is not None
        with pytest.raises(OperationError) as caught:
            client.status()
    assert caught.value.code is ErrorCode.NOT_RUNNING


def test_start_on_a_full_disk_says_why(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    monkeypatch.setenv("LMX_SERVER_PORT", "0")
    home.prepare()
    home.supervisor_log.symlink_to("/dev/full")
    monkeypatch.setattr(background, "last_lines", lambda _path, _count: [])
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    done = run("start")
    assert done.exit_code == 1
    assert "did not start (exit code 1); " in done.output
    assert "can't be written: No space left on device" in done.output


def test_a_second_stop_is_explained(home: Home) -> None:
    assert "a second `stop` meanwhile stops at once" in run("stop", "-h").output


def test_logs_of_an_unknown_model_names_those_there_are(home: Home) -> None:
    with fake_supervisor(home, {GetStatus: statuses(status(model_line("a")))}):
        done = run("logs", "nobody")
        assert (done.exit_code, "no model is named 'nobody'; known: a" in done.output) == (1, True)
        done = run("logs", "a")
        assert (done.exit_code, "has not run" in done.output) == (1, True)
    home.default_config.write_text("models: [{id: b, source: /x, aliases: [c]}]")
    assert "no model is named 'a'; known: b" in run("logs", "a").output
    home.worker_log("b").write_text("a line\n")
    assert run("logs", "c").output == "a line\n"


def test_a_mistake_in_an_option_names_the_option(home: Home) -> None:
    with mock.patch.dict(os.environ):  # options become variables
        done = run("start", "--host", "0.0.0.0")
        assert (done.exit_code, "server.host (--host): 0.0.0.0 can be" in done.output) == (4, True)
        home.default_config.write_text("models: []")
        done = run("start", "--api-key", "short")
    assert "security.api_keys.0.key (--api-key): a key has at least" in done.output


def test_an_extra_that_is_missing_is_said(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.default_config.write_text("tracing: {endpoint: 'http://127.0.0.1:4318'}")
    monkeypatch.setattr(extras, "_is_installed", lambda module: "opentelemetry" not in module)
    done = run("config", "check")
    assert (done.exit_code, extras.install_line("otel") in done.output) == (0, True)


@pytest.mark.parametrize(
    ("pip", "uv", "begin"),
    [
        (True, None, f"{sys.executable} -m pip install "),
        (False, "/bin/uv", f"uv pip install --python {sys.executable} "),
        (False, None, f"{sys.executable} -m ensurepip && {sys.executable} -m pip install "),
    ],
)
def test_an_extra_is_installed_by_what_is_there(
    pip: bool, uv: str | None, begin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "_is_installed", lambda _module: pip)
    monkeypatch.setattr("shutil.which", lambda _name: uv)
    assert extras.install_line("mdns").startswith(begin + "'zeroconf")


def test_config_show_shows_no_key(home: Home) -> None:
    keys = ["sk-0123456789abcdef", "sk-fedcba9876543210"]
    home.default_config.write_text(f"security: {{api_keys: [{keys[0]}], admin_key: {keys[1]}}}")
    done = run("config", "show")
    assert (done.exit_code, "admin_key: '**********'" in done.output) == (0, True), done.output
    assert "sk-" not in done.output
    home.default_config.write_text("routing: {code: [late]}")
    done = run("config", "check")
    assert (done.exit_code, "routing.code names 'late'" in done.output) == (0, True), done.output
    home.default_config.write_text(f"security: {{api_keys: {keys[0]}}}")
    for arguments in (["config", "show"], ["config", "check"], ["up"]):
        done = run(*arguments)
        assert (done.exit_code, "security.api_keys" in done.output) == (4, True)
        assert "sk-" not in done.output


def test_a_supervisor_that_says_nothing_while_it_starts_has_the_time_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = OperationError(ErrorCode.SUPERVISOR_UNAVAILABLE, "it did not answer")
    gone = OperationError(ErrorCode.NOT_RUNNING, "it is not running")
    says: list[OperationError | SystemStatus] = [silent, silent, reported_status(), gone]

    def answer(_client: ReconnectingClient) -> SystemStatus:
        said = says.pop(0)
        if isinstance(said, OperationError):
            raise said
        return said

    monkeypatch.setattr(ReconnectingClient, "status", answer)
    monkeypatch.setattr(operations, "_POLL_S", 0.001)
    home = Home(tmp_path)
    assert operations._poll_status(home, lambda now: now, 90.0) == reported_status()
    with pytest.raises(OperationError, match="not running"):
        operations._poll_status(home, lambda now: now, 90.0)
    says.extend([silent] * 100_000)
    assert operations._poll_status(home, lambda now: now, 0.01) is None
