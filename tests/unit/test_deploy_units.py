"""The launchd and systemd files that `lmx service install` writes: they start what exists, whatever
its path, and wait longer than lmx takes to end."""

import plistlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lmx.router.server import process
from lmx.supervisor.cli.main import main
from lmx.supervisor.cli.service.units import (
    ServiceSettings,
    launchd_plist,
    left_out,
    service_environment,
    stop_seconds,
    systemd_unit,
    unusable,
)
from lmx.supervisor.config.schema import TimingConfig
from lmx.supervisor.config.shutdown_timeout import ROUTER_EXIT_S, stop_bound_s
from tests.support.fakes.service_manager import launchd_service, systemd_service

DEPLOY = Path(__file__).parents[2] / "deploy"
PROGRAM = "/opt/lmx/bin/lmx"


def settings(
    program: str = PROGRAM, user: str | None = None, home: str = "/home/ann", **variables: str
) -> ServiceSettings:
    return ServiceSettings(program, home, user, {"LMX_HOME": f"{home}/.lmx", **variables}, 75)


def launchd(wanted: ServiceSettings) -> dict[str, Any]:
    template = (DEPLOY / "com.lmx.supervisor.plist").read_bytes()
    found: dict[str, Any] = plistlib.loads(launchd_plist(template, wanted).encode())
    return found


def systemd(wanted: ServiceSettings) -> dict[str, str]:
    """Every key that stands once."""
    text = systemd_unit((DEPLOY / "lmx.service").read_text(), wanted)
    lines = [line.partition("=") for line in text.splitlines() if line[:1].isalpha()]
    return {key: value for key, _, value in lines}


def accepts(arguments: list[str]) -> bool:
    """Whether the command line has such a command, with such options."""
    context = main.make_context("lmx-supervisor", list(arguments))
    _, command, rest = main.resolve_command(context, arguments)
    assert command is not None
    # Without its parent click would keep for good that the command has no -h.
    command.make_context(command.name, rest, parent=context)
    return True


@pytest.mark.parametrize("grace_s", [30.0, 3600.0])
@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_both_wait_longer_than_a_graceful_stop_takes(grace_s: float, platform: str) -> None:
    bound_s = stop_bound_s(TimingConfig(shutdown_grace_s=grace_s), platform)
    assert bound_s < stop_seconds(bound_s) < bound_s + 60
    assert launchd(settings())["ExitTimeOut"] == int(systemd(settings())["TimeoutStopSec"]) == 75


def test_a_router_that_ends_within_its_own_bounds_is_not_killed() -> None:
    own_s = 2 * process._LAST_EVENTS_S + process._WRITTEN_S
    assert own_s < ROUTER_EXIT_S


def test_what_they_run_exists() -> None:
    for line in (
        launchd(settings())["ProgramArguments"],
        systemd(settings())["ExecStart"].split(),
        systemd(settings())["ExecReload"].split(),
    ):
        assert line[0].strip('"') == PROGRAM
        assert accepts(line[1:])


def test_one_process_that_dies_takes_no_other_with_it() -> None:
    service = systemd(settings())
    assert (service["KillMode"], service["OOMPolicy"]) == ("process", "continue")
    assert launchd(settings())["AbandonProcessGroup"] is True


def test_a_stop_is_not_answered_with_a_start() -> None:
    assert launchd(settings())["KeepAlive"] == {"SuccessfulExit": False}
    assert systemd(settings())["Restart"] == "on-failure"


def test_launchd_neither_throttles_nor_renices() -> None:
    unit = launchd(settings())
    assert unit["ProcessType"] == "Interactive"
    assert "Nice" not in unit


def test_a_service_of_the_system_runs_as_a_user_and_starts_at_boot() -> None:
    own, system = settings(), settings(user="ann")
    assert "User" not in systemd(own)
    assert "UserName" not in launchd(own)
    assert (systemd(own)["WantedBy"], systemd(system)["WantedBy"]) == (
        "default.target",
        "multi-user.target",
    )
    assert systemd(system)["User"] == launchd(system)["UserName"] == "ann"
    assert launchd(system)["EnvironmentVariables"]["HOME"] == "/home/ann"
    assert launchd(system)["StandardErrorPath"] == "/home/ann/Library/Logs/lmx.log"


ODD = "a b %h $HOME & <tag> é #;=x"


def test_odd_paths_arrive_as_they_are(tmp_path: Path) -> None:
    program = tmp_path / ODD / "lmx"
    program.parent.mkdir()
    shutil.copy("/bin/true", program)
    wanted = settings(str(program), home=f"/home/{ODD}", HF_HOME="/x \"quoted\" \\n 'one'")
    command = [str(program), "up", "--detached"]
    plist, unit = tmp_path / "lmx.plist", tmp_path / "lmx.service"
    plist.write_text(launchd_plist((DEPLOY / "com.lmx.supervisor.plist").read_bytes(), wanted))
    unit.write_text(systemd_unit((DEPLOY / "lmx.service").read_text(), wanted))
    assert launchd_service(plist) == (command, wanted.environment)
    assert systemd_service(unit) == (command, wanted.environment)
    assert not verified(unit)


def verified(unit: Path) -> str:
    """What systemd itself finds wrong, where it is."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not there")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return "\n".join(line for line in done.stderr.splitlines() if str(unit) in line)


def test_systemd_finds_what_is_wrong_in_a_unit(tmp_path: Path) -> None:
    unit = tmp_path / "lmx.service"
    text = systemd_unit((DEPLOY / "lmx.service").read_text(), settings("/bin/true", user="root"))
    unit.write_text(text)
    assert not verified(unit)
    unit.write_text(text.replace("Type=exec", "Type=nonsense"))
    assert "nonsense" in verified(unit)


@pytest.mark.parametrize(
    ("wanted", "systemd", "why"),
    [
        (settings(), True, None),
        (settings("/home/o'brien/bin/lmx"), True, "quotes"),
        (settings("/home/o'brien/bin/lmx"), False, None),
        (settings(HF_HOME="/a\nExecStart=/bin/evil"), True, "characters"),
        (settings(HF_HOME="/a\x00"), False, "characters"),
        (settings("/\udcff/lmx"), False, "characters"),
    ],
)
def test_what_can_not_be_written_is_refused(
    wanted: ServiceSettings, systemd: bool, why: str | None
) -> None:
    found = unusable(wanted, systemd=systemd)
    assert (found is None) if why is None else (found is not None and why in found)


def test_a_service_knows_where_files_are_and_no_secrets() -> None:
    shell = {
        "HF_HOME": "/big/hub", "HUGGINGFACE_HUB_CACHE": "/hub", "HF_TOKEN": "secret",
        "LMX_SECURITY_API_KEYS": "secret",
        "LMX_HOME": "/elsewhere", "LMX_CONFIG": "/etc/lmx.yaml", "PATH": "/odd", "EDITOR": "vi",
    }  # fmt: skip
    found = service_environment(shell, "/srv/lmx", "/opt/bin", mac=True)
    assert found == {
        "LMX_HOME": "/srv/lmx",
        "LMX_CONFIG": "/etc/lmx.yaml",
        "HF_HOME": "/big/hub",
        "HUGGINGFACE_HUB_CACHE": "/hub",
        "PATH": "/opt/bin:/opt/homebrew/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    }
    assert left_out(shell) == ["HF_TOKEN", "LMX_SECURITY_API_KEYS"]
