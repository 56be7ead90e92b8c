"""Installs, restarts and removes the service, and shows how it is."""

import contextlib
import os
import pwd
import shlex
import stat
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli.command import remote_place
from lmx.supervisor.cli.service.managers import Launchd, Manager, Owner, Systemd, call
from lmx.supervisor.cli.service.units import (
    WRITTEN_BY,
    ServiceSettings,
    left_out,
    service_environment,
    stop_seconds,
    unusable,
)
from lmx.supervisor.cli.views.progress import make_console, print_started
from lmx.supervisor.config.load import load_config
from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.shutdown_timeout import stop_bound_s
from lmx.supervisor.sockets.client import status_of, supervisor_runs
from lmx.supervisor.sockets.listening import check_free
from lmx.supervisor.sockets.remote import not_remote
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import Records

PLATFORM: Final = sys.platform
"""Tests have another one."""

_START_S: Final = 120.0
"""As that of `lmx start`."""
_CRASHES: Final = 3
"""A service of which as many processes have come and gone does not start."""
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class _Plan:
    """The service that this lmx would have."""

    manager: Manager
    home: Home
    config: Config
    settings: ServiceSettings

    @property
    def content(self) -> str:
        return self.manager.content(self.settings)


def install(*, system: bool, dry_run: bool) -> None:
    """Write the service's file, have the system start it, and wait until lmx answers. Raises
    :class:`OperationError`."""
    plan = _plan(system=system)
    manager, content = plan.manager, plan.content
    for line in _remarks(plan):
        click.echo(f"note: {line}", err=True)
    if dry_run:
        click.echo(f"would write {manager.path}:\n")
        click.echo(content)
        _print_commands(manager.commands("install"))
        return
    _need_root(manager)
    _refuse_second(manager)
    _refuse_by_hand(manager)
    _possible(manager)
    there = _text(manager.path)
    if manager.running_pid() is None:
        _start(plan, there, content)
    elif there != content:
        _upgrade(manager, there, content)
    else:
        click.echo(f"the {manager.kind} is installed already, and runs: {manager.path}")
        return
    click.echo(f"installed the {manager.kind} {manager.path}")
    _wait_until_up(plan)
    click.echo(f"it starts {manager.starts()}")
    click.echo(f"`{_again(manager, 'uninstall')}` removes it")


def show_status(*, system: bool) -> bool:
    """Print how the service is, and return whether it runs. Raises :class:`OperationError`."""
    manager = _manager(system=system)
    if not manager.path.exists():
        click.echo(f"no {manager.kind} is installed: {_install_hint(manager)}")
        return False
    click.echo(f"the {manager.kind} is installed: {manager.path}")
    pid = manager.running_pid()
    if pid is None:
        click.echo(
            f"it does not run: `{_again(manager, 'restart')}` starts it, "
            f"`{_again(manager, 'logs')}` shows what it printed"
        )
    else:
        click.echo(f"it runs (pid {pid}): `lmx status` shows the models")
    click.echo(f"it starts {manager.starts()}")
    with contextlib.suppress(OperationError):
        if _text(manager.path) != _plan(system=system).content:
            click.echo(
                f"its file is not what this lmx would write here: `{_again(manager, 'install')}` "
                "writes it again"
            )
    return pid is not None


def restart(*, system: bool, dry_run: bool) -> None:
    """Restart the service's lmx, and wait until it answers. Raises :class:`OperationError`."""
    plan = _plan(system=system)
    manager = plan.manager
    if dry_run:
        _print_commands(manager.commands("restart"))
        return
    _need_root(manager)
    _need_installed(manager, "restart")
    _possible(manager)
    if manager.running_pid() is None:
        _refuse_other(plan)
    manager.restart()
    _wait_until_up(plan)


def uninstall(*, system: bool, dry_run: bool) -> None:
    """End the service and remove all that belongs to it. Raises :class:`OperationError`."""
    manager = _manager(system=system)
    files = [each for each in (manager.path, manager.log) if each is not None]
    if dry_run:
        _print_commands(manager.commands("uninstall"))
        click.echo(f"would remove: {', '.join(map(str, files))}")
        _print_commands(manager.commands("forget"))
        return
    _need_root(manager)
    _need_installed(manager, "uninstall")
    _refuse_by_hand(manager)
    _possible(manager)
    manager.end()
    for path in files:
        path.unlink(missing_ok=True)
    manager.forget()
    for folder in manager.own_folders():
        with contextlib.suppress(OSError):
            folder.rmdir()
    click.echo(f"removed the {manager.kind} {manager.path}; lmx's home is unchanged")


def log_command(lines: int, *, system: bool, follow: bool) -> list[str]:
    """Return the command that prints what the service printed. Raises :class:`OperationError`."""
    manager = _manager(system=system)
    _need_installed(manager, "logs")
    if manager.log is not None and not manager.log.exists():
        raise OperationError(ErrorCode.INTERNAL, f"the {manager.kind} has printed nothing so far")
    return manager.log_command(lines, follow=follow)


def _plan(*, system: bool) -> _Plan:
    manager = _manager(system=system)
    owner = manager.owner
    home = Home.from_environment({"LMX_HOME": os.environ.get("LMX_HOME") or f"{owner.home}/.lmx"})
    home.check()
    _check_owner(home, owner)
    program = program_path()
    variables = dict(os.environ)
    if variables.get("LMX_CONFIG"):
        variables["LMX_CONFIG"] = os.path.abspath(Path(variables["LMX_CONFIG"]).expanduser())  # noqa: PTH100
    environment = service_environment(
        variables, str(home.path), str(Path(program).parent), mac=PLATFORM == "darwin"
    )
    named = Path(environment.get("LMX_CONFIG", home.default_config))
    path = named if named.exists() or "LMX_CONFIG" in environment else None
    config = load_config(path, {}, keys_kept=home.has_keys)
    settings = ServiceSettings(
        program=program,
        user_home=str(owner.home),
        user=owner.name if system else None,
        environment=environment,
        stop_s=stop_seconds(stop_bound_s(config.timing, PLATFORM)),
    )
    if problem := unusable(settings, systemd=isinstance(manager, Systemd)):
        raise OperationError(ErrorCode.CONFIG_INVALID, problem)
    return _Plan(manager, home, config, settings)


def _manager(*, system: bool) -> Manager:
    if remote_place() is not None:
        raise not_remote("`lmx service`")
    sudo_user = os.environ.get("SUDO_USER", "root") if os.geteuid() == 0 else "root"
    if sudo_user == "root":
        entry = pwd.getpwuid(os.geteuid())
        owner = Owner(entry.pw_name, entry.pw_uid, Path.home())
    elif system:
        entry = pwd.getpwnam(sudo_user)
        owner = Owner(entry.pw_name, entry.pw_uid, Path(entry.pw_dir))
    else:
        raise OperationError(
            ErrorCode.INTERNAL,
            f"a service of {sudo_user}'s own is installed without sudo; with sudo give --system",
        )
    return _manager_of(owner, system=system)


def _manager_of(owner: Owner, *, system: bool) -> Manager:
    if PLATFORM == "darwin":
        return Launchd(owner, system=system)
    if PLATFORM == "linux":
        config_home = Path(os.environ.get("XDG_CONFIG_HOME") or owner.home / ".config")
        return Systemd(owner, system=system, config_home=config_home)
    raise OperationError(ErrorCode.INTERNAL, "services are there for macOS and Linux")


def program_path() -> str:
    """Return the absolute path of ``lmx``, as it was typed or is on the PATH. Links stay, because
    those of installers lead to the next version after an upgrade. Raises
    :class:`OperationError`."""
    typed = Path(sys.argv[0]).absolute()
    for path in (typed, Path(sysconfig.get_path("scripts")) / "lmx"):
        if path.name in ("lmx", "lmx-supervisor") and os.access(path, os.X_OK):
            return str(path)
    raise OperationError(
        ErrorCode.INTERNAL, "there is no program `lmx` next to this Python: install lmx first"
    )


def _remarks(plan: _Plan) -> list[str]:
    """Return what a person would not expect of the service."""
    remarks = []
    if names := left_out(os.environ):
        remarks.append(
            f"{', '.join(names)}: set in this shell, not part of the service. lmx.yaml has a key "
            "for each LMX_ variable; `hf auth login` keeps a token for all programs"
        )
    if plan.settings.user == "root":
        remarks.append("lmx will run as root: better type this with sudo as another user")
    if PLATFORM == "darwin":
        from lmx.supervisor.cli.doctor.mac import check_guarded

        places = [Path(plan.settings.program), plan.home.path]
        line = check_guarded(places, plan.manager.owner.home)
        if line.fix:
            remarks.append(f"{line.measured}: {line.fix}")
    return remarks


def _check_owner(home: Home, owner: Owner) -> None:
    with contextlib.suppress(FileNotFoundError):
        if (uid := home.path.stat().st_uid) != owner.uid:
            raise OperationError(
                ErrorCode.CONFIG_INVALID,
                f"{home.path} belongs to another user (uid {uid}), and the service would run as "
                f"{owner.name}: set LMX_HOME to a folder of {owner.name}",
            )


def _need_root(manager: Manager) -> None:
    if manager.system and os.geteuid() != 0:
        variables = [
            f"{name}={shlex.quote(os.environ[name])}"
            for name in ("LMX_HOME", "LMX_CONFIG")
            if os.environ.get(name)
        ]
        words = [*variables, shlex.quote(program_path()), *sys.argv[1:]]
        raise OperationError(
            ErrorCode.INTERNAL,
            f"a {manager.kind} needs the rights of root: sudo {' '.join(words)}",
        )


def _need_installed(manager: Manager, verb: str) -> None:
    if manager.path.exists():
        return
    other = _manager_of(manager.owner, system=not manager.system)
    hint = _install_hint(manager)
    if other.path.exists():
        hint = f"a {other.kind} is: `{_again(other, verb)}`"
    raise OperationError(ErrorCode.NOT_RUNNING, f"no {manager.kind} is installed; {hint}")


def _refuse_second(manager: Manager) -> None:
    other = _manager_of(manager.owner, system=not manager.system)
    if other.path.exists():
        raise OperationError(
            ErrorCode.ALREADY_RUNNING,
            f"a {other.kind} is installed ({other.path}), and only one can serve this home: "
            f"`{_again(other, 'uninstall')}` first",
        )


def _refuse_by_hand(manager: Manager) -> None:
    """Refuse to replace or remove a file that lmx did not write. Raises
    :class:`OperationError`."""
    if manager.path.exists() and WRITTEN_BY not in (_text(manager.path) or ""):
        raise OperationError(
            ErrorCode.INTERNAL,
            f"{manager.path} was not written by `lmx service install`: move it away, then again",
        )


def _refuse_other(plan: _Plan) -> None:
    """Refuse an lmx that runs, and is not the service's. Raises :class:`OperationError`."""
    if supervisor_runs(plan.home):
        raise OperationError(
            ErrorCode.ALREADY_RUNNING,
            f"lmx runs already with {plan.home.path}, and not as this service: `lmx stop`, then "
            "again",
        )
    if not Records(plan.home.state).orphans():  # among them may be the router, which has the port
        check_free(plan.config.server)


def _possible(manager: Manager) -> None:
    if problem := manager.session_problem():
        raise OperationError(ErrorCode.INTERNAL, problem)


def _start(plan: _Plan, there: str | None, content: str) -> None:
    """Start a service that does not run. Where that fails, what was there before is left, and is
    started: launchd has forgotten it by then."""
    _refuse_other(plan)
    _write(plan.manager.path, content)
    try:
        plan.manager.start()
    except OperationError:
        if there is None:
            for command in plan.manager.commands("uninstall"):
                with contextlib.suppress(OperationError):
                    call(command)
            plan.manager.path.unlink(missing_ok=True)
        else:
            _write(plan.manager.path, there)
            with contextlib.suppress(OperationError):
                plan.manager.start()
        plan.manager.forget()
        raise


def _upgrade(manager: Manager, there: str | None, content: str) -> None:
    """Write another file for a service that runs, and restart it. Where that fails, the file that
    was there is put back, and the service is started with it."""
    _write(manager.path, content)
    try:
        manager.restart()
    except OperationError:
        if there is not None:
            _write(manager.path, there)
            with contextlib.suppress(OperationError):
                manager.restart()
        raise


def _wait_until_up(plan: _Plan) -> None:
    pids = set[int]()
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and len(pids) < _CRASHES:
        if (status := status_of(plan.home)) is not None and status.router.pid is not None:
            print_started(make_console(), status)
            return
        pid = plan.manager.running_pid()
        pids |= set() if pid is None else {pid}
        time.sleep(_POLL_S)
    raise OperationError(
        ErrorCode.NOT_RUNNING,
        f"the {plan.manager.kind} is installed, and lmx does not answer: "
        f"`{_again(plan.manager, 'logs')}` and {plan.home.supervisor_log} say why",
    )


def _write(path: Path, content: str) -> None:
    """Replace the file of a service, which everybody may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        try:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH)
            Path(file.name).replace(path)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _print_commands(commands: list[list[str]]) -> None:
    for each in commands:
        click.echo(f"would run: {shlex.join(each)}")


def _again(manager: Manager, verb: str) -> str:
    if not manager.system:
        return f"lmx service {verb}"
    # sudo has a PATH of its own, on which lmx mostly is not.
    program = f"sudo {shlex.quote(program_path())}" if verb in _BY_ROOT else "lmx"
    return f"{program} service {verb} --system"


_BY_ROOT: Final = ("install", "restart", "uninstall")


def _install_hint(manager: Manager) -> str:
    return f"`{_again(manager, 'install')}` installs one"
