"""The launchd and systemd files: they start what exists, and wait longer than lmx takes to end."""

import configparser
import plistlib
import shlex
from pathlib import Path
from typing import Any

from lmx.router.server import process
from lmx.supervisor.cli.main import main
from lmx.supervisor.config.schema import TimingConfig
from lmx.supervisor.config.shutdown_timeout import ROUTER_EXIT_S, stop_bound_s

DEPLOY = Path(__file__).parents[2] / "deploy"
PROGRAM = "@LMX@"


def launchd() -> dict[str, Any]:
    found: dict[str, Any] = plistlib.loads((DEPLOY / "com.lmx.supervisor.plist").read_bytes())
    return found


def systemd() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "lmx.service")
    return parser["Service"]


def accepts(arguments: list[str]) -> bool:
    """Whether the command line has such a command, with such options."""
    context = main.make_context("lmx-supervisor", list(arguments))
    _, command, rest = main.resolve_command(context, arguments)
    assert command is not None
    # Without its parent click would keep for good that the command has no -h.
    command.make_context(command.name, rest, parent=context)
    return True


def test_both_wait_longer_than_a_graceful_stop_takes() -> None:
    assert launchd()["ExitTimeOut"] > stop_bound_s(TimingConfig(), "darwin")
    assert float(systemd()["TimeoutStopSec"]) > stop_bound_s(TimingConfig(), "linux")


def test_a_router_that_ends_within_its_own_bounds_is_not_killed() -> None:
    own_s = 2 * process._LAST_EVENTS_S + process._WRITTEN_S
    assert own_s < ROUTER_EXIT_S


def test_the_bound_in_their_comments_is_the_real_one() -> None:
    for name, platform in (("com.lmx.supervisor.plist", "darwin"), ("lmx.service", "linux")):
        words = f"ends within {stop_bound_s(TimingConfig(), platform):g} with"
        assert words in (DEPLOY / name).read_text(), name


def test_what_they_run_exists() -> None:
    service = systemd()
    for line in (
        launchd()["ProgramArguments"],
        shlex.split(service["ExecStart"]),
        shlex.split(service["ExecReload"]),
    ):
        assert line[0] == PROGRAM
        assert accepts(line[1:])


def test_one_process_that_dies_takes_no_other_with_it() -> None:
    service = systemd()
    assert (service["KillMode"], service["OOMPolicy"]) == ("process", "continue")
    assert launchd()["AbandonProcessGroup"] is True


def test_a_stop_is_not_answered_with_a_start() -> None:
    assert launchd()["KeepAlive"] == {"SuccessfulExit": False}
    assert systemd()["Restart"] == "on-failure"


def test_launchd_neither_throttles_nor_renices() -> None:
    unit = launchd()
    assert unit["ProcessType"] == "Interactive"
    assert "Nice" not in unit
