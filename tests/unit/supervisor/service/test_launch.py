"""What runs is known to every command, and no other configuration takes its place unnoticed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from lmx.protocol.messages.control import ReloadConfig, Reloaded
from lmx.supervisor.cli.main import main
from lmx.supervisor.cli.serving.options import settle_handover
from lmx.supervisor.config.load import load_config
from lmx.supervisor.config.schema import Config
from lmx.supervisor.service.launch import Launch, LaunchFile, left_launch, taken_over
from lmx.supervisor.state.disk_retry import change_once
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import Records, RouterRecord
from tests.support.fakes.fake_supervisor import fake_supervisor


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("LMX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LMX_HOME", str(tmp_path))
    monkeypatch.setenv("LMX_SERVER_PORT", "7000")  # of this shell; not of what runs
    made = Home(tmp_path)
    made.prepare()
    yield made
    os.environ.clear()  # a takeover gives this process the variables of another one
    os.environ.update(before)


def record(home: Home, **variables: str) -> Launch:
    """Record what an lmx was started with."""
    launch = Launch.of(None, variables, load_config(None, variables))
    LaunchFile(home, change_once).save(launch)
    return launch


def leave_a_router(home: Home) -> None:
    """Leave the record of a process that runs: this one."""
    program = psutil.Process().cmdline()[0]
    Records(home.state).save_routers([RouterRecord(os.getpid(), program, "127.0.0.1", 8331)])


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


VARIABLES = {"LMX_SERVER_PORT": "8331", "LMX_MODELS": "smol=/no/such/folder"}


def test_commands_speak_about_what_runs(home: Home) -> None:
    record(home, **VARIABLES)
    with fake_supervisor(home, {}):
        shown = run("config", "show").output
        assert shown.startswith("# the running lmx: LMX_MODELS, LMX_SERVER_PORT\n")
        assert "port: 8331" in shown
        checked = run("config", "check").output
        assert "smol can't be loaded: /no/such/folder does not exist" in checked
        assert "the running lmx: LMX_MODELS, LMX_SERVER_PORT: the files of models" in checked
        # It is known, and only its folder is not there.
        assert "/no/such/folder does not exist" in run("estimate", "smol").output
    # It runs no more: what is said is about an lmx that would be started here.
    assert "port: 7000" in run("config", "show").output


def test_a_file_that_was_named_goes_before_what_runs(home: Home, tmp_path: Path) -> None:
    record(home, **VARIABLES)
    other = tmp_path / "other.yaml"
    other.write_text("server: {max_requests: 7}")
    with fake_supervisor(home, {}):
        assert "max_requests: 7" in run("config", "show", "--config", str(other)).output


def test_what_is_not_in_effect_yet_is_said(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "lmx.yaml"
    path.write_text("server: {port: 8331}")
    LaunchFile(home, change_once).save(Launch.of(path, {}, load_config(path, {})))
    path.write_text("server: {port: 8332}\nlogs: {keep: 5}")
    with fake_supervisor(home, {}):
        done = run("config", "check")
    assert "not in effect yet: server, logs; run `lmx reload`" in done.output


def test_a_file_that_was_written_since_is_what_a_reload_reads(home: Home, tmp_path: Path) -> None:
    record(home, **VARIABLES)
    path = tmp_path / "lmx.yaml"
    path.write_text("models: [{id: b, source: /y}]\nserver:\n  port: 9000\nlogs: {keep: 5}")
    left_out = [
        "models (line 1) is left out: LMX_MODELS, from the environment or the command that "
        "started lmx, goes before it until lmx is stopped, and started without",
        "server.port (line 3) is left out: LMX_SERVER_PORT, from the environment or the command "
        "that started lmx, goes before it until lmx is stopped, and started without",
    ]
    with fake_supervisor(home, {ReloadConfig: lambda _: Reloaded((), ())}):
        checked = run("config", "check").output.splitlines()
        assert checked[:3] == [*left_out, "not in effect yet: logs; run `lmx reload`"]
        assert run("reload").output.splitlines()[1:] == left_out
        path.write_text("logs: {keep: many}")
        refused = run("config", "check")
        assert (refused.exit_code, "logs.keep (line 1)" in refused.output) == (4, True)
        assert "lmx.yaml" in run("backup", str(tmp_path / "b.zip")).output
        path.unlink()
        assert "the running lmx: LMX_MODELS, LMX_SERVER_PORT: " in run("config", "check").output


def test_another_configuration_takes_no_place_unasked(home: Home) -> None:
    launch = record(home, **VARIABLES)
    settle_handover(home, None, None)  # nothing was left: there is no place to take
    leave_a_router(home)
    assert left_launch(home) == launch
    for command in ("serve", "start", "up"):
        refused = run(command)
        assert refused.exit_code == 4, refused.output
        for word in ("LMX_MODELS, LMX_SERVER_PORT", "this command has: LMX_SERVER_PORT",
                     "--take-over recorded", "smol"):  # fmt: skip
            assert word in refused.output
    settle_handover(home, None, "new")
    assert os.environ["LMX_SERVER_PORT"] == "7000"


def test_going_on_as_it_was(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    record(home, **VARIABLES)
    leave_a_router(home)
    monkeypatch.setenv("LMX_LOGS_KEEP", "9")
    settle_handover(home, None, "recorded")
    assert {k: v for k, v in os.environ.items() if k.startswith("LMX_")} == {
        **VARIABLES, "LMX_HOME": str(home.path),
    }  # fmt: skip
    settle_handover(home, None, None)  # now it is the same one


def test_an_edited_file_is_no_other_configuration(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "lmx.yaml"
    path.write_text("logs: {keep: 5}")
    launch = Launch.of(path, {"LMX_SERVER_PORT": "7000"}, load_config(path, {}))
    LaunchFile(home, change_once).save(launch)
    leave_a_router(home)
    path.write_text("logs: {keep: 6}")
    settle_handover(home, path, None)
    assert taken_over(launch, load_config(path, {})).endswith("was another one: logs")


def test_another_order_of_the_patterns_is_not_in_effect(home: Home) -> None:
    patterns = {"gpt-*": "auto", "gpt-4*": "code"}
    one, same, other = (
        Config.model_validate({"routing": {"patterns": dict(pairs)}})
        for pairs in (patterns.items(), patterns.items(), reversed(patterns.items()))
    )
    LaunchFile(home, change_once).save(Launch.of(None, {}, one))
    leave_a_router(home)
    # Every version reads what another one has recorded.
    assert json.loads(home.launch.read_text())["sections"]["routing"]["patterns"] == patterns
    launch = left_launch(home)
    assert launch is not None
    assert (launch.changed(same), launch.changed(other)) == ((), ("routing",))
    assert launch.changed(Config()) == ("routing",)


def test_keys_are_kept_by_variables_alone_and_for_the_owner(home: Home) -> None:
    key = "sk-0123456789abcdef"
    launch = record(home, LMX_SECURITY_API_KEYS=f'["{key}"]')
    assert key not in str(launch.sections)
    assert key not in launch.words
    assert home.launch.stat().st_mode & 0o077 == 0


def test_a_record_of_garbage_is_no_record(home: Home) -> None:
    home.launch.write_text('{"config": 3, "variables": {}, "sections": {}}')
    leave_a_router(home)
    assert left_launch(home) is None
