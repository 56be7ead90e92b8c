"""Whatever LMX_HOME is, no command shows a traceback: it says what is wrong in a line or two."""

import asyncio
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli import command as cli_command
from lmx.supervisor.cli.main import main
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import SupervisorLock

COMMANDS = (
    "serve", "start", "up", "init", "status", "status --json", "ps", "top", "events",
    "events -f", "logs", "logs m", "logs --router", "logs --fetch", "load m", "unload m",
    "add m /x",
    "remove m", "drain m", "kill m", "restart m", "restart --router", "restart --supervisor",
    "reset m", "pin m", "unpin m", "reload", "config check", "config show", "estimate m",
    "pull qwen3-8b", "downloads", "list", "rm m", "chat", "chat m", "run m hi",
    "service install --dry-run", "service restart --dry-run",
    "show a", "undrain a", "version", "launch codex --print",
    "key list", "key add a", "key rotate a", "key revoke a",
    "pair", "pair K7QZM-4XH2P@127.0.0.1:1", "peers list", "peers remove a",
    "batch list", "batch cancel batch_a", "fit a b",
    "backup /no/such/folder/b.zip", "restore /x",
    "stop",
)  # fmt: skip
"""Every command but those that need nothing of a home. `stop` comes last: it takes the lock, which
is free again when its process ends, and that is this one."""


def a_file(folder: Path) -> str:
    (folder / "home").write_text("")
    return str(folder / "home")


def a_link_to_itself(folder: Path) -> str:
    (folder / "home").symlink_to(folder / "home")
    return str(folder / "home")


def with_a_broken_configuration(folder: Path) -> str:
    (folder / "lmx.yaml").mkdir()
    return str(folder)


def with_folders_for_files(folder: Path) -> str:
    for name in ("lock", "run/control", "state/launch.json", "state/events.jsonl", "admin.key"):
        (folder / name).mkdir(parents=True)
    (folder / "lmx.yaml").write_text("server: {port: nine}")
    return str(folder)


HOMES: dict[str, Callable[[Path], str]] = {
    "too long": lambda folder: str(folder / ("x" * 150)),
    "too long for a file": lambda folder: str(folder / ("x" * 5000)),
    "a file": a_file,
    "below a file": lambda folder: a_file(folder) + "/home",
    "a link to itself": a_link_to_itself,
    "nobody's": lambda _folder: "~nobody-here/lmx",
    "with a broken configuration": with_a_broken_configuration,
    "with folders for files": with_folders_for_files,
}


def run(line: str) -> Result:
    return CliRunner().invoke(main, shlex.split(line))


@pytest.mark.parametrize("home", HOMES)
def test_a_broken_home_is_reported_in_words(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("LMX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LMX_HOME", HOMES[home](tmp_path))
    held: list[SupervisorLock] = []
    acquire = SupervisorLock.acquire

    def recorded(lock: SupervisorLock, *, by_command: bool = False) -> None:
        acquire(lock, by_command=by_command)
        held.append(lock)

    monkeypatch.setattr(SupervisorLock, "acquire", recorded)
    for line in COMMANDS:
        done = run(line)
        while held:  # a lock ends with its command's process, which is this one here
            os.close(held.pop().descriptor)
        assert done.exception is None or isinstance(done.exception, SystemExit), line
        assert "Traceback" not in done.output
        assert "a bug in lmx" not in done.output, (line, done.output)
        if home in ("too long", "a file", "nobody's"):
            assert (done.exit_code, "LMX_HOME" in done.output) == (4, True), (line, done.output)
    assert not (tmp_path / ("x" * 150)).exists()


def test_the_wait_for_another_command_can_be_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop of asyncio keeps an interrupt back until its task is over."""
    in_loop: list[bool] = []

    def acquire(_lock: SupervisorLock, *, by_command: bool = False) -> None:
        in_loop.append(asyncio._get_running_loop() is not None)
        raise OperationError(ErrorCode.INTERNAL, "it was not waited for")

    monkeypatch.setenv("LMX_HOME", str(tmp_path))
    monkeypatch.setattr(SupervisorLock, "acquire", acquire)
    for line in ("rm m", "key add a"):
        done = run(line)
        assert "it was not waited for" in done.output, done.output
    assert in_loop == [False, False]


def test_every_command_is_among_them() -> None:
    free = {"bench", "completion", "demo", "config", "doctor", "rescue", "help"}
    names = {name for name in main.commands if main.commands[name].name == name} - free
    assert names <= {
        *(line.split()[0] for line in COMMANDS),
        *(main.commands[line.split()[0]].name or "" for line in COMMANDS),
    }


def test_a_folder_below_the_home_of_an_unknown_user_is_no_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMX_HOME", str(tmp_path))
    assert (
        "~nobody-here/m: this machine has no user of that name"
        in run("add x ~nobody-here/m").output
    )


def test_no_home_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LMX_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 123_456)
    done = run("status")
    assert done.exit_code == 4, done.output
    assert "~/.lmx names no folder here" in done.output
    assert "set LMX_HOME" in done.output


def test_a_bug_is_one_line_and_its_traceback_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    @cli_command.command
    def broken() -> None:
        raise ZeroDivisionError("the\nreason")

    monkeypatch.setenv("LMX_HOME", str(tmp_path))
    first = CliRunner().invoke(broken)
    assert first.exit_code == 1
    assert "can't be kept" in first.output
    (tmp_path / "logs").mkdir()
    second = CliRunner().invoke(broken)
    assert second.output.startswith(
        "lmx: a bug in lmx ended this command (ZeroDivisionError: the r"
    )
    assert len(second.output.splitlines()) == 1
    assert "Traceback" in (tmp_path / "logs" / "command-line.log").read_text()


def test_a_damaged_file_is_no_part_of_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is logged goes to stderr, so that a script can take what stands on stdout."""
    monkeypatch.setenv("LMX_HOME", str(tmp_path))
    downloads = Home(tmp_path).downloads
    downloads.parent.mkdir()
    downloads.write_text("{")
    done = run("downloads --json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == []
    assert "state.unreadable" in done.stderr
