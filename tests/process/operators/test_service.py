"""`lmx service` with programs in the place of systemd's and launchd's, which start and end lmx."""

import os
import plistlib
import pwd
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli.main import main
from lmx.supervisor.cli.service import changes
from lmx.supervisor.cli.service.managers import Owner, Systemd
from tests.support.fakes import service_manager
from tests.support.rigs.user_home import CONFIG, UserHome

pytestmark = pytest.mark.long

LMX = str(Path(sysconfig.get_path("scripts")) / "lmx")
USER = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[UserHome]:
    made = UserHome(tmp_path, LMX, {"service", "status", "config", "restart"})
    yield made
    made.end()


UNIT = ".config/systemd/user/lmx.service"


def test_a_user_service_of_systemd_from_install_to_uninstall(machine: UserHome) -> None:
    machine.configure()
    before = machine.files()
    planned = machine.lmx("service", "install", "--dry-run")
    assert machine.files() == before
    assert service_manager.calls(machine.programs) == []
    assert "would run: systemctl --user enable --now lmx.service" in planned

    said = machine.lmx("service", "install")
    called = service_manager.calls(machine.programs)
    assert called[:4] == [
        "systemctl --user show-environment",
        "systemctl --user show -p MainPID --value lmx.service",
        "systemctl --user daemon-reload",
        "systemctl --user enable --now lmx.service",
    ]
    assert called[-1] == f"loginctl show-user {USER} -p Linger --value"
    unit = (machine.path / UNIT).read_text()
    assert unit.strip() in planned
    assert "lmx is running (pid " in said
    assert "`loginctl enable-linger` has it run from boot on" in said
    assert machine.lmx("status").startswith("supervisor")

    assert "is installed already, and runs" in machine.lmx("service", "install")
    assert "it runs (pid " in machine.lmx("service", "status")
    # It becomes the program that shows them.
    assert machine.run(LMX, "service", "logs") == "what the service printed\n"

    machine.configure(CONFIG + "timing: {shutdown_grace_s: 100}\n")
    assert "its file is not what this lmx would write" in machine.lmx("service", "status")
    assert "lmx is running (pid " in machine.lmx("service", "install")
    assert "systemctl --user restart lmx.service" in service_manager.calls(machine.programs)
    assert "TimeoutStopSec=60" not in (machine.path / UNIT).read_text()

    machine.lmx("stop")
    assert "it does not run" in machine.lmx("service", "status", code=3)
    assert "lmx is running (pid " in machine.lmx("service", "restart")

    planned = machine.lmx("service", "uninstall", "--dry-run")
    assert f"would remove: {machine.path / UNIT}" in planned
    machine.lmx("service", "uninstall")
    assert machine.files() == before
    assert "lmx is not running" in machine.lmx("status", code=3)
    assert machine.lmx_home.joinpath("lmx.yaml").exists()
    for verb in ("status", "restart", "logs", "uninstall"):
        assert "no systemd user service is installed" in machine.lmx("service", verb, code=3)


def test_nothing_is_left_of_an_lmx_that_was_a_service(machine: UserHome) -> None:
    """From the first start as a service over a backup and a restore to the last file."""
    machine.configure(CONFIG + "security: {api_keys: [a-key-of-mine-of-24-chars]}\n")
    machine.lmx("service", "install")
    machine.lmx("add", "mine", str(machine.path), code=1)  # no model; it must not be remembered
    archive = str(machine.path / "kept.zip")
    assert "wrote" in machine.lmx("backup", archive)
    assert "lmx is running already" in machine.lmx("restore", archive, code=5)
    key = (machine.lmx_home / "admin.key").read_text()
    before = machine.lmx("config", "show")

    # As an upgrade that has gone wrong.
    machine.lmx("restart", "--supervisor")
    machine.lmx("stop")
    (machine.lmx_home / "admin.key").unlink()
    machine.configure("server: {port: 0}\n")

    said = machine.lmx("restore", archive)
    assert "restored lmx.yaml, admin.key" in said
    assert "before-restore-" in said
    machine.lmx("service", "restart")
    assert (machine.lmx_home / "admin.key").read_text() == key
    assert machine.lmx("config", "show") == before

    machine.lmx("service", "uninstall")
    Path(archive).unlink()
    shutil.rmtree(machine.lmx_home)
    shutil.rmtree(machine.path / ".cache", ignore_errors=True)
    assert list(machine.path.iterdir()) == []
    assert machine.processes() == []


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("no session", 1, f"sudo loginctl enable-linger {USER}"),
        ("no systemctl", 1, "systemctl is not on this machine"),
        ("bad configuration", 4, "server.port"),
        ("a folder of nobody", 4, "belongs to another user"),
    ],
)
def test_what_is_in_the_way_is_said_and_nothing_is_written(
    machine: UserHome, fault: str, code: int, words: str
) -> None:
    machine.configure()
    if fault == "no session":
        (machine.programs / "no-session").touch()
    elif fault == "no systemctl":
        machine.environment["PATH"] = str(machine.path)
    elif fault == "bad configuration":
        machine.configure("server: {port: many}\n")
    else:
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder to somebody else")
        os.chown(machine.lmx_home, 65534, -1)
    said = machine.lmx("service", "install", code=code)
    assert said.startswith("lmx: ")
    assert words in said
    assert machine.files() == set()
    if fault == "a folder of nobody":
        os.chown(machine.lmx_home, 0, -1)


def test_an_lmx_that_runs_already_is_not_made_a_service(machine: UserHome) -> None:
    machine.configure()
    machine.lmx("start")
    said = machine.lmx("service", "install", code=5)
    assert "`lmx stop`, then again" in said
    assert machine.files() == set()


def test_a_file_that_was_written_by_hand_stays(machine: UserHome) -> None:
    machine.configure()
    unit = machine.path / UNIT
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    for verb in ("install", "uninstall"):
        assert "was not written by" in machine.lmx("service", verb, code=1)
    assert unit.read_text() == "[Service]\nExecStart=/bin/true\n"


@pytest.mark.parametrize("there", [None, "the unit before"])
def test_a_start_that_fails_leaves_what_was_there(
    there: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    started_with: list[str] = []
    manager = Systemd(Owner("bob", 1234, tmp_path), system=False, config_home=tmp_path)

    def fail(self: Systemd) -> None:
        started_with.append(self.path.read_text())
        raise OperationError(ErrorCode.INTERNAL, "it does not start")

    monkeypatch.setattr(Systemd, "start", fail)
    monkeypatch.setattr(Systemd, "forget", lambda self: called.append("forget"))
    monkeypatch.setattr(changes, "_refuse_other", lambda plan: None)
    monkeypatch.setattr(changes, "call", lambda command: called.append(" ".join(command)))
    plan: Any = SimpleNamespace(manager=manager)
    with pytest.raises(OperationError, match="it does not start"):
        changes._start(plan, there, "the new unit")
    disabled = ["systemctl --user disable --now lmx.service"]
    assert called == [*(disabled if there is None else []), "forget"]
    assert (manager.path.read_text() if manager.path.exists() else None) == there
    assert started_with == ["the new unit", *([] if there is None else [there])]


def test_an_upgrade_that_does_not_restart_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Systemd(Owner("bob", 1234, tmp_path), system=True, config_home=tmp_path)
    manager.path = tmp_path / "lmx.service"
    started_with: list[str] = []

    def restart(self: Systemd) -> None:
        started_with.append(self.path.read_text())
        if started_with[-1] == "the new unit":
            raise OperationError(ErrorCode.INTERNAL, "it does not restart")

    monkeypatch.setattr(Systemd, "restart", restart)
    with pytest.raises(OperationError, match="it does not restart"):
        changes._upgrade(manager, "the unit before", "the new unit")
    assert started_with == ["the new unit", "the unit before"]
    # What is advised can be typed as it stands.
    assert (
        changes._again(manager, "restart")
        == f"sudo {changes.program_path()} service restart --system"
    )
    assert changes._again(manager, "logs") == "lmx service logs --system"


def test_with_sudo_the_other_service_is_that_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = pwd.struct_passwd(("bob", "x", 1234, 1234, "", str(tmp_path), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: entry)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(changes, "PLATFORM", "linux")
    monkeypatch.setenv("SUDO_USER", "bob")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    manager = changes._manager(system=True)
    changes._refuse_second(manager)
    with pytest.raises(OperationError, match="is installed without sudo"):
        changes._manager(system=False)
    unit = tmp_path / UNIT
    unit.parent.mkdir(parents=True)
    unit.touch()
    with pytest.raises(OperationError, match="only one can serve this home"):
        changes._refuse_second(manager)


def test_an_agent_of_launchd_from_install_to_uninstall(
    machine: UserHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.configure()
    monkeypatch.setattr(changes, "PLATFORM", "darwin")

    def lmx(verb: str, *more: str, code: int = 0) -> str:
        done = CliRunner().invoke(main, ["service", verb, *more], env=environment)
        assert done.exit_code == code, done.output
        return done.output

    environment: dict[str, str | None] = dict.fromkeys(os.environ)
    environment |= machine.environment
    plist = machine.path / "Library/LaunchAgents/com.lmx.supervisor.plist"
    target = f"gui/{os.getuid()}"
    planned = lmx("install", "--dry-run")
    assert f"would run: launchctl bootstrap {target} " in planned
    assert machine.files() == set()
    said = lmx("install")
    assert "lmx is running (pid " in said
    assert f"launchctl bootstrap {target} '{plist}'" in service_manager.calls(machine.programs)
    job = plistlib.loads(plist.read_bytes())
    assert job["ProgramArguments"] == [LMX, "up", "--detached"]
    assert job["EnvironmentVariables"]["LMX_HOME"] == str(machine.lmx_home)
    assert "it runs (pid " in lmx("status")
    assert "has printed nothing" in lmx("logs", code=1)
    assert "lmx is running (pid " in lmx("restart")
    machine.lmx("stop")
    assert "it does not run" in lmx("status", code=3)
    assert "lmx is running (pid " in lmx("install")
    log = machine.path / "Library/Logs/lmx.log"
    log.parent.mkdir()
    log.touch()
    lmx("uninstall")
    assert f"launchctl bootout {target}/com.lmx.supervisor" in service_manager.calls(
        machine.programs
    )
    assert not plist.exists()
    assert not log.exists()
    assert "no launchd agent is installed" in lmx("uninstall", code=3)
