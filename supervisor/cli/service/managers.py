"""launchd and systemd: which commands install, start and end a service, and how it is. Every call
goes to ``launchctl``, ``systemctl``, ``journalctl`` or ``loginctl`` on the PATH."""

import re
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli.deploy_files import deploy_file
from lmx.supervisor.cli.service.units import (
    LABEL,
    UNIT,
    ServiceSettings,
    launchd_plist,
    systemd_unit,
)

_ANSWER_S: Final = 30.0
_CHANGE_S: Final = 900.0
"""A service that is ended may have streams to finish first: `timing.shutdown_grace_s`."""
_POLL_S: Final = 0.2
_BUSY: Final = 37
"""launchd's exit code while the job before is still ending: "Operation already in progress"."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The user that lmx runs as."""

    name: str
    uid: int
    home: Path


@dataclass(frozen=True, slots=True)
class Output:
    """What a command answered."""

    code: int
    text: str


class Manager(ABC):
    """One kind of service: of the system, or of a user's session. ``path`` is its file."""

    kind: str
    path: Path
    log: Path | None = None
    """Where lmx writes before it has its own logs; None if the manager has a log of its own."""

    def __init__(self, owner: Owner, *, system: bool) -> None:
        self.owner = owner
        self.system = system

    @abstractmethod
    def content(self, settings: ServiceSettings) -> str:
        """Return what the file holds. Raises :class:`OperationError` without its template."""

    @abstractmethod
    def commands(self, change: str) -> list[list[str]]:
        """Return the commands of a change: ``install``, ``restart``, ``uninstall`` while the file
        is still there, and ``forget`` when it is gone."""

    @abstractmethod
    def session_problem(self) -> str | None:
        """Return why this machine or session can't have such a service; None if it can."""

    @abstractmethod
    def running_pid(self) -> int | None:
        """Return the pid of the service's lmx; None if it does not run."""

    @abstractmethod
    def starts(self) -> str:
        """Return when the service starts, for people."""

    @abstractmethod
    def log_command(self, lines: int, *, follow: bool) -> list[str]:
        """Return the command that prints the service's log."""

    def own_folders(self) -> list[Path]:
        """Return the folders of the file that were made for it if they hold nothing else, the
        innermost first."""
        return [] if self.system else [self.path.parent]

    def start(self) -> None:
        """Have the system start what was written. Raises :class:`OperationError`."""
        self._run_all("install")

    def restart(self) -> None:
        """End the service's lmx, streams first, and start it again. Raises
        :class:`OperationError`."""
        self._run_all("restart")

    def end(self) -> None:
        """End the service's lmx, streams first, and have it started no more. Raises
        :class:`OperationError`."""
        self._run_all("uninstall")

    def forget(self) -> None:
        """Have the system notice that the file is gone. That it knows nothing of it is no error."""
        for command in self.commands("forget"):
            call(command)

    def _run_all(self, change: str) -> None:
        for command in self.commands(change):
            must(command)


class Launchd(Manager):
    """An agent of a user, or a daemon of the system."""

    def __init__(self, owner: Owner, *, system: bool) -> None:
        super().__init__(owner, system=system)
        self.kind = "launchd daemon" if system else "launchd agent"
        folder = Path("/Library/LaunchDaemons") if system else owner.home / "Library/LaunchAgents"
        self.path = folder / f"{LABEL}.plist"
        self.log = owner.home / "Library/Logs/lmx.log"
        self._domain = "system" if system else f"gui/{owner.uid}"
        self._target = f"{self._domain}/{LABEL}"

    def content(self, settings: ServiceSettings) -> str:
        return launchd_plist(deploy_file(f"{LABEL}.plist").read_bytes(), settings)

    def commands(self, change: str) -> list[list[str]]:
        bootstrap = ["launchctl", "bootstrap", self._domain, str(self.path)]
        bootout = ["launchctl", "bootout", self._target]
        return {
            "install": [bootstrap],
            "restart": [bootout, bootstrap],
            "uninstall": [bootout],
            "forget": [],
        }[change]

    def session_problem(self) -> str | None:
        if call(["launchctl", "print", self._domain]).code == 0:
            return None
        return (
            f"launchd has no {self._domain} here, as over ssh while {self.owner.name} is not "
            "logged in at the screen: log in there, or use --system, which needs no login"
        )

    def running_pid(self) -> int | None:
        found = re.search(
            r"^\s*pid = (\d+)", call(["launchctl", "print", self._target]).text, re.MULTILINE
        )
        return int(found.group(1)) if found else None

    def starts(self) -> str:
        return "when the Mac starts" if self.system else f"when {self.owner.name} logs in"

    def log_command(self, lines: int, *, follow: bool) -> list[str]:
        return ["tail", "-n", str(lines), *(["-F"] if follow else []), str(self.log)]

    def start(self) -> None:
        if call(["launchctl", "print", self._target]).code == 0:
            # `lmx stop` ends the process, and launchd keeps the job.
            self.end()
        deadline_s = time.monotonic() + _ANSWER_S
        (command,) = self.commands("install")
        while (done := call(command)).code == _BUSY and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        if done.code:
            raise _failed(command, done)

    def restart(self) -> None:
        self.end()
        self.start()

    def end(self) -> None:
        # bootout may return before lmx has ended, and then with an error.
        (command,) = self.commands("uninstall")
        done = call(command, _CHANGE_S)
        deadline_s = time.monotonic() + _CHANGE_S
        while call(["launchctl", "print", self._target]).code == 0:
            if time.monotonic() >= deadline_s:
                raise _failed(command, done)
            time.sleep(_POLL_S)


class Systemd(Manager):
    """A unit of a user's session, or of the system."""

    def __init__(self, owner: Owner, *, system: bool, config_home: Path) -> None:
        super().__init__(owner, system=system)
        self.kind = "systemd system service" if system else "systemd user service"
        folder = Path("/etc/systemd/system") if system else config_home / "systemd/user"
        self.path = folder / UNIT
        self._scope = [] if system else ["--user"]

    def content(self, settings: ServiceSettings) -> str:
        return systemd_unit(deploy_file(UNIT).read_text(), settings)

    def commands(self, change: str) -> list[list[str]]:
        systemctl = ["systemctl", *self._scope]
        return {
            "install": [[*systemctl, "daemon-reload"], [*systemctl, "enable", "--now", UNIT]],
            "restart": [[*systemctl, "daemon-reload"], [*systemctl, "restart", UNIT]],
            "uninstall": [[*systemctl, "disable", "--now", UNIT]],
            "forget": [[*systemctl, "daemon-reload"], [*systemctl, "reset-failed", UNIT]],
        }[change]

    def session_problem(self) -> str | None:
        done = call(["systemctl", *self._scope, "show-environment"])
        if done.code == 0:
            return None
        said = f" ({done.text})" if done.text else ""
        if self.system:
            return (
                f"systemd does not run this machine{said}: have what does run it start "
                "`lmx up --detached`, or use `lmx start`"
            )
        return (
            f"systemd has no session of {self.owner.name} here{said}, as after su or sudo and in "
            "containers. Log in as that user, over ssh for example; or run `sudo loginctl "
            f"enable-linger {self.owner.name}` and `export XDG_RUNTIME_DIR=/run/user/"
            f"{self.owner.uid}`; or install a service of the system with --system"
        )

    def running_pid(self) -> int | None:
        shown = call(["systemctl", *self._scope, "show", "-p", "MainPID", "--value", UNIT])
        return int(shown.text) or None if shown.code == 0 and shown.text.isdigit() else None

    def starts(self) -> str:
        if self.system:
            return "when the machine starts"
        name = self.owner.name
        linger = call(["loginctl", "show-user", name, "-p", "Linger", "--value"])
        if linger.text == "yes":
            return "when the machine starts"
        return (
            f"when {name} logs in, and ends when {name} logs out; `loginctl enable-linger` has it "
            "run from boot on"
        )

    def log_command(self, lines: int, *, follow: bool) -> list[str]:
        scope, end = self._scope, ["-f"] if follow else []
        return ["journalctl", *scope, "-u", UNIT, "-n", str(lines), "--no-pager", *end]

    def own_folders(self) -> list[Path]:
        folder = self.path.parent
        places = [folder / "default.target.wants", folder, folder.parent, folder.parent.parent]
        return [] if self.system else places


def call(command: Sequence[str], limit_s: float = _ANSWER_S) -> Output:
    """Run a command, and return its exit code and what it printed. Raises :class:`OperationError`
    if it is not there or takes longer than ``limit_s``."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=limit_s, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise OperationError(
            ErrorCode.INTERNAL,
            f"{command[0]} is not on this machine: have what starts it run `lmx up --detached`, or "
            "use `lmx start`",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise OperationError(
            ErrorCode.INTERNAL, f"`{' '.join(command)}` did not end within {limit_s:g} s"
        ) from error
    return Output(done.returncode, done.stdout.strip())


def must(command: Sequence[str]) -> None:
    """Run a command that has to succeed. Raises :class:`OperationError` with what it printed."""
    done = call(command, _CHANGE_S)
    if done.code:
        raise _failed(command, done)


def _failed(command: Sequence[str], done: Output) -> OperationError:
    said = f": {done.text}" if done.text else ""
    return OperationError(
        ErrorCode.INTERNAL, f"`{' '.join(command)}` failed (exit code {done.code}){said}"
    )
