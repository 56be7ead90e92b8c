"""The command line against a supervisor that says what it is told to: answers, waits, exits."""

import json
import os
import re
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
from lmx.supervisor.cli import download, machines, models, operations
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
from lmx.supervisor.sockets.client import ControlClient, ReconnectingClient
from lmx.supervisor.sockets.http_client import Remote
from lmx.supervisor.state.event_file import EventFile
from lmx.supervisor.state.home import Home
from tests.support.fakes.admin_lines import reported_status
from tests.support.fakes.fake_supervisor import fake_supervisor, model_line, status


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("LMX_HOME", str(tmp_path))
    monkeypatch.delenv("LMX_CONFIG", raising=False)
    for module in (operations, machines):
        monkeypatch.setattr(module, "_POLL_S", 0.01)
    # What was asked is counted here: no answer is late, however long this process stands still.
    monkeypatch.setattr("lmx.supervisor.sockets.client._EACH_ANSWER_S", 90.0)
    return Home(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def ends(code: int, words: str, *arguments: str) -> str:
    """Run a command that ends with ``code`` and says ``words``; returns all that it says."""
    done = run(*arguments)
    assert (done.exit_code, words in done.output) == (code, True), (arguments, done.output)
    return done.output


def in_turn(*replies: Any) -> Callable[[Any], Any]:
    """Answer with one reply after the other, then with the last one for good."""
    left: Iterator[Any] = iter(replies)
    last = replies[-1]
    return lambda _question: next(left, last)


def statuses(*found: SystemStatus) -> Callable[[Any], Any]:
    return in_turn(*(Status(one) for one in found))


def with_router(**values: Any) -> SystemStatus:
    found = status()
    return replace(found, router=replace(found.router, **values))


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
        ends(3, "lmx is not running", *arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "ftp://x", "status"], "is not the address of an lmx"),
        (["bench", "ftp://x"], "is not the address of an lmx"),
        (["bench", "a=http://x", "a=http://y"], "another server has it"),
        (["pull", "--search", "qwen", "--file", "x.gguf"], "--file needs a model"),
        (["pull", "--cancel", "dl_1", "--file", "x.gguf"], "--file needs a model"),
        (["restart"], "give one of"),
        (["restart", "a", "--router"], "give one of"),
        (["restart", "--router", "--supervisor"], "give one of"),
        (["bench", "--seconds", "nan"], "'nan' is no number"),
        (["chat", "--temperature", "NaN"], "'NaN' is no number"),
    ],
)
def test_wrong_arguments_are_wrong_usage(home: Home, arguments: list[str], said: str) -> None:
    ends(2, said, *arguments)


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
    found = with_router(urls=("http://127.0.0.1:1/v1",))
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
    found = with_router(urls=("http://127.0.0.1:1/v1",))
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


STARTING = model_line("a", "starting", pid=4711)
WAS_STARTING = model_line("b", "starting", pid=4712)
SERVES = "serves at http://127.0.0.1:8000/v1; the old one ends when its requests have"
WAITS: dict[str, tuple[str, Any, list[SystemStatus], list[str]]] = {
    "a drain, for the streams": (
        "drain a",
        control.DrainModel("a"),
        [
            status(model_line("a", "draining", requests_active=2)),
            status(model_line("a", "draining", requests_active=1)),
            status(model_line("a", "drained")),
        ],
        [
            "a: draining, 2 requests left",
            "a: draining, 1 request left",
            "drained a (pid 4711 is gone); it takes no request until `lmx undrain a` or `load a`",
        ],
    ),
    # A worker says with its next beat what it has just been given.
    "a drain of the machine, also for what only the router knows": (
        "drain --machine",
        control.DrainMachine(True),
        [
            reported_status(model_line("a", requests_active=active), router={"streams": streams})
            for active, streams in ((0, 1), (2, 0), (0, 0))
        ],
        [
            "begun",
            "1 request left; Ctrl-C leaves the machine drained",
            "2 requests left; Ctrl-C leaves the machine drained",
        ],
    ),
    "a load": (
        "load a",
        control.LoadModel("a"),
        [
            status(model_line("a", "queued", position=2)),
            status(model_line("a", "loading", phase="weights", fraction=0.4)),
            status(model_line("a", "backoff", problem="it [fell]", retry_in_s=0.5)),
            status(model_line("a", "backoff", problem="it [fell]", retry_in_s=0.4)),
            status(model_line("a", "starting", phase="start")),
            status(model_line("a")),
        ],
        [
            "a: waits for memory, 2nd in line",
            "a: weights",
            "failed  a: it [fell]",
            "a: starting",
            "ready  a  1.0 GiB, pid 4711",
        ],
    ),
    "a load with another context, for the worker that has it": (
        "load a --context-length 64",
        control.LoadModel("a", 64),
        [
            status(model_line("a", context_length=2048)),
            status(model_line("a", "draining")),
            status(model_line("a", context_length=64, pid=4712)),
        ],
        ["ready  a  1.0 GiB, pid 4711", "a: draining", "ready  a  1.0 GiB, pid 4712"],
    ),
    "a load that ends cold failed": (
        "load a",
        control.LoadModel("a"),
        [status(model_line("a", "failed", problem="no [such] folder"))],
        ["failed  a: no [such] folder", "lmx: a: no [such] folder"],
    ),
    "a removal, until the worker is gone": (
        "remove a",
        inventory.RemoveModel("a"),
        [status(model_line("a", "draining")), status(model_line("b", pid=1))],
        ["begun"],
    ),
    "no longer than the model is there": (
        "unload a",
        control.UnloadModel("a"),
        [status(model_line("a", "draining")), status(model_line("b"))],
        ["a: draining", "lmx: no model is named 'a'; known: b"],
    ),
    "for the new supervisor": (
        "restart --supervisor",
        control.RestartSupervisor(),
        [status(), status(), *[status(epoch="e2", version="0.2.0", pid=1)] * 2],
        ["a new supervisor (pid 1, lmx 0.1.0 -> 0.2.0) has taken over what runs"],
    ),
    # `b` was starting before: there is nothing to wait for.
    "for what the workers say to the new supervisor": (
        "restart --supervisor",
        control.RestartSupervisor(),
        [
            status(model_line("a"), WAS_STARTING),
            *[status(STARTING, WAS_STARTING, epoch="e2")] * 2,
            status(model_line("a"), WAS_STARTING, epoch="e2"),
        ],
        ["a new supervisor (pid 1, lmx 0.1.0) has taken over what runs"],
    ),
    "until the new router serves": (
        "restart --router",
        control.RestartRouter(),
        [status(), status(), with_router(pid=4711, memory_bytes=0), with_router(pid=4711)],
        [f"a new router (pid 4711) {SERVES}"],
    ),
    "until another new router serves": (
        "restart --router",
        control.RestartRouter(),
        [status(), with_router(pid=None, memory_bytes=0), with_router(pid=6)],
        [f"a new router (pid 6) {SERVES}"],
    ),
}


@pytest.mark.parametrize("case", WAITS)
def test_a_command_waits(home: Home, case: str) -> None:
    command, question, found, said = WAITS[case]
    answers = {type(question): lambda _: control.Done("begun", 4711), GetStatus: statuses(*found)}
    with fake_supervisor(home, answers) as asked:
        done = run(*command.split())
    output = re.sub(r", [\d.]+ s$", "", done.output, flags=re.MULTILINE)  # without how long it took
    failed = said[-1].startswith("lmx: ")
    assert (done.exit_code, output.splitlines()) == (int(failed), said)
    assert question in asked
    assert asked.count(GetStatus()) == len(found)


@pytest.mark.parametrize(
    ("limit", "option", "found", "code", "said"),
    [
        ("_INTRODUCTION_S", "--supervisor", [status(model_line("a")), status(STARTING, epoch="e2")],
         0, "has taken over"),
        ("_RESTART_S", "--router", [status()], 1, "does not serve"),
    ],
    ids=["a silent worker does not hold up the new supervisor", "a router that never serves"],
)  # fmt: skip
def test_no_restart_is_waited_for_without_end(
    home: Home, monkeypatch: pytest.MonkeyPatch, limit: str, option: str,
    found: list[SystemStatus], code: int, said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(operations, limit, 0.1)
    answers = dict.fromkeys(
        (control.RestartSupervisor, control.RestartRouter), lambda _: control.Done("begun", 5)
    )
    with fake_supervisor(home, {**answers, GetStatus: statuses(*found)}):
        done = run("restart", option)
    assert (done.exit_code, said in done.output) == (code, True)


def test_a_supervisor_that_hangs_is_not_waited_for_before_what_works_without_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = list[float]()

    def silent(client: ControlClient) -> Any:
        limits.append(client._answer_s)
        raise OperationError(ErrorCode.SUPERVISOR_UNAVAILABLE, "it says nothing")

    monkeypatch.setattr(ControlClient, "status", silent)
    ends(3, "lmx is not running", "kill", "org/a@rev")
    assert limits[0] == models._HUNG_S < 30


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
            ends(1, "can't be loaded", command, name)
    assert not home.supervisor_log.exists()


def test_all_that_is_known_of_a_model(home: Home) -> None:
    lines = (model_line("a", aliases=["z"], context_length=2048), model_line("b", "queued"))
    with fake_supervisor(home, {GetStatus: statuses(status(*lines))}):
        shown = run("show", "z").output
        assert json.loads(run("show", "a", "--json").output)["model"] == "a"
        ends(1, "known: a, b", "show", "c")
    for words in ("a\n", "ready, pid 4711", "2048 tokens", "1.0 GiB now", "source", "aliases"):
        assert words in shown


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
    assert "a second `stop` meanwhile stops at once" in run("stop", "-h").output


def test_a_model_is_added_by_a_path_that_means_the_same_everywhere(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {inventory.AddModel: lambda question: control.Done(f"added {question.source}")}
    monkeypatch.chdir(tmp_path)
    with fake_supervisor(home, answers) as asked:
        assert run("add", "a", "./x").output == f"added {tmp_path / 'x'}\n"
        assert run("add", "b", "org/b@v1", "--context-length", "64").exit_code == 0
        assert run("add", "q", "Qwen3-8B").output == "added mlx-community/Qwen3-8B-4bit\n"
        ends(1, "./nothing", "add", "c", "nothing")
    assert asked == [
        inventory.AddModel("a", str(tmp_path / "x")),
        inventory.AddModel("b", "org/b@v1", 64),
        inventory.AddModel("q", "mlx-community/Qwen3-8B-4bit"),
    ]


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
        ends(4, "  - one\n  - two", "reload")


def test_top_without_a_terminal_prints_one_frame(home: Home) -> None:
    answers = {
        GetStatus: statuses(status(model_line("a", pinned=True))),
        control.GetEvents: event_log("e1", 2),
    }
    with fake_supervisor(home, answers):
        output = ends(0, "worker.ready", "top")
    for word in ("4.0 GiB of 8.0 GiB", "ready", "pinned", "event 2"):
        assert word in output


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
        assert re.search("worker.ready .* b  event 9", ends(0, "", "events", "-n", "1"))
        assert run("events", "-n", "0").output == ""
        ends(1, "known: a, b", "events", "nobody")
        EventFile(home.events).keep("e0", Event(1, 1e9, "worker.ready", "gone", "event 1", {}))
        assert "event 1" in run("events", "gone").output, "it was removed since"


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
    ends(1, "known: a, new", "events", "nobody")
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
        output = ends(3, "", "--url", "http://127.0.0.1:1", "logs", "-n", str(count))
        assert ("sends the last 10,000 lines" in output) is said


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
    output = ends(1, "did not start (exit code 1); ", "start")
    assert "can't be written: No space left on device" in output


def test_logs_of_an_unknown_model_names_those_there_are(home: Home) -> None:
    with fake_supervisor(home, {GetStatus: statuses(status(model_line("a")))}):
        ends(1, "no model is named 'nobody'; known: a", "logs", "nobody")
        ends(1, "has not run", "logs", "a")
    home.default_config.write_text("models: [{id: b, source: /x, aliases: [c]}]")
    assert "no model is named 'a'; known: b" in run("logs", "a").output
    home.worker_log("b").write_text("a line\n")
    assert run("logs", "c").output == "a line\n"


def test_a_mistake_in_an_option_names_the_option(home: Home) -> None:
    with mock.patch.dict(os.environ):  # options become variables
        ends(4, "server.host (--host): 0.0.0.0 can be", "start", "--host", "0.0.0.0")
        home.default_config.write_text("models: []")
        ends(
            4,
            "security.api_keys.0.key (--api-key): a key has at least",
            "start",
            "--api-key",
            "short",
        )


def test_an_extra_that_is_missing_is_said(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.default_config.write_text("tracing: {endpoint: 'http://127.0.0.1:4318'}")
    monkeypatch.setattr(extras, "_is_installed", lambda module: "opentelemetry" not in module)
    ends(0, extras.install_line("otel"), "config", "check")


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
    assert "sk-" not in ends(0, "admin_key: '**********'", "config", "show")
    home.default_config.write_text("routing: {code: [late]}")
    ends(0, "routing.code names 'late'", "config", "check")
    home.default_config.write_text(f"security: {{api_keys: {keys[0]}}}")
    for arguments in (["config", "show"], ["config", "check"], ["up"]):
        assert "sk-" not in ends(4, "security.api_keys", *arguments)


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
