"""What one program of the supervisor's process leaves to the next one.

How this supervisor was started: enough to read its configuration again, and to put another
program in its own place that goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, NoReturn

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.specs import RescueSpec
from lmx.supervisor.config.schema import Config
from lmx.supervisor.core.core import Core
from lmx.supervisor.processes.child import keys


@dataclass(frozen=True, slots=True)
class Handover:
    """``lock_fd``: the lock, which is never free in between. ``listen_fd``: the listening
    socket, None if only the router has it. ``down``: models that nobody wants just now, which
    are not to be preloaded as at a start. ``held``: those that an operator drained."""

    lock_fd: int
    listen_fd: int | None = None
    down: tuple[str, ...] = ()
    held: tuple[str, ...] = ()

    @property
    def options(self) -> list[str]:
        """It, as options of ``up``."""
        options = ["--lock-fd", str(self.lock_fd)]
        if self.listen_fd is not None:
            options += ["--listen-fd", str(self.listen_fd)]
        for name in self.down:
            options += ["--down", name]
        for name in self.held:
            options += ["--held", name]
        return options


def leave(core: Core, lock_fd: int, listener: socket.socket | None) -> Handover:
    """Return what the next program goes on with; the listening socket under a descriptor of its
    own, which stays open when ``listener`` is closed."""
    slots = core.slots.values()
    return Handover(
        lock_fd,
        None if listener is None else os.dup(listener.fileno()),
        tuple(s.model.id for s in slots if not (s.life.wanted or s.life.held) and s.worker is None),
        tuple(s.model.id for s in slots if s.life.held),
    )


def resume(handover: Handover, core: Core, now_s: float) -> None:
    """Have the models that no worker was adopted for be as they were."""
    for name in handover.held:
        if name in core.slots and not core.slots[name].life.held:
            core.operator.hold(name, now_s)
    core.preload(now_s, but=handover.down)


FOR_SUPERVISOR: Final = "_LMX_CHECKED_FOR_SUPERVISOR"
"""In the environment of a check that a supervisor waits for: it reads no model's files."""

_CHECK_S: Final = 8.0
"""Less than the CLI waits for an answer."""


class Guarded(Enum):
    """Who starts a supervisor again that has died: nobody, for who sits at its terminal sees it;
    lmx itself; launchd or systemd."""

    FOREGROUND = "foreground"
    BACKGROUND = "background"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class Successor:
    """What a supervisor was started for: ``because``, for people, while the process of lmx with
    this id lived, which asked for it."""

    asker_id: str
    because: str


@dataclass(frozen=True, slots=True)
class Invocation:
    """``config`` is the file that was named on the command line. ``handover`` is None unless
    this program was put in another one's place. ``background``: `start` started it, so that no
    terminal and no service manager looks after it. ``successor`` is None unless it was started
    because the supervisor before it had died or was ended."""

    config: Path | None
    detached: bool
    read_config: Callable[[], Config]
    handover: Handover | None = None
    background: bool = False
    successor: Successor | None = None

    def arguments(self, handover: Handover) -> list[str]:
        """Return the command line of the program that goes on from ``handover``."""
        return [*_program(), "up", *self._config_option(), *self._options(), *handover.options]

    def rescue(self, silence_s: float, environment: Mapping[str, str]) -> RescueSpec:
        """Return what routers run when the supervisor is silent for so long. ``environment`` is
        this process's."""
        if self.background:
            kind = Guarded.BACKGROUND
        else:
            kind = Guarded.SERVICE if self.detached else Guarded.FOREGROUND
        options = ["--guarded", kind.value, "--silence", f"{silence_s:g}"]
        command = [*_program(), "rescue", *self._config_option(absolute=True), *options]
        return RescueSpec(tuple(command), silence_s, dict(keys(environment)))

    def _options(self) -> list[str]:
        detached = ["--detached"] if self.detached else []
        return [*detached, "--background"] if self.background else detached

    def replace_program(self, handover: Handover) -> NoReturn:
        """Put a new program in this one's place; pid, parent and children stay. Only once the
        event loop has ended. Raises ``OSError`` if it can't be run."""
        for descriptor in (handover.lock_fd, handover.listen_fd):
            if descriptor is not None:
                os.set_inheritable(descriptor, True)
        arguments = self.arguments(handover)
        os.execv(arguments[0], arguments)  # noqa: S606  no shell is what is wanted

    async def check_successor(self) -> None:
        """Have the program that is installed now read the configuration, so that none is put in
        this one's place that can't start. Raises :class:`OperationError` with what it says."""
        check = await asyncio.create_subprocess_exec(
            *_program(), "config", "check", *self._config_option(),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, env={**os.environ, FOR_SUPERVISOR: "1"},
        )  # fmt: skip
        try:
            said, _ = await asyncio.wait_for(check.communicate(), _CHECK_S)
        except TimeoutError as error:
            message = f"the installed lmx did not read the configuration within {_CHECK_S:g} s"
            raise OperationError(ErrorCode.INTERNAL, message) from error
        finally:
            await _end(check)
        if check.returncode != 0:
            raise OperationError(
                ErrorCode.CONFIG_INVALID,
                "the installed lmx can't start, so this one goes on: "
                + said.decode("utf-8", "replace").strip()[-2000:],
            )

    def _config_option(self, *, absolute: bool = False) -> list[str]:
        if self.config is None:
            return []
        return ["--config", str(self.config.absolute() if absolute else self.config)]


def _program() -> list[str]:
    return [sys.executable, "-P", "-m", "lmx.supervisor"]


async def _end(process: Any) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
