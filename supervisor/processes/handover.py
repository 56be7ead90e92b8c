"""How the supervisor's process replaces its own program by another one (``exec``).

:class:`Handover` is what the old program leaves to the new one. :class:`Invocation` says how this
supervisor was started: enough to read its configuration again, and to put another program in its
place that resumes where it stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, NoReturn

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.specs import RescueSpec
from lmx.protocol.states import SlotState
from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.secret_variables import keys
from lmx.supervisor.core.core import MACHINE, Core
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.decisions.slots import events
from lmx.supervisor.processes.patience import done_within

_ORDERED: Final = "+"
"""What begins the name of an ordered model among the values of ``--down``, and no model's name. A
program that knows no orders takes it for a model that is not there."""

_RETRIED: Final = "~"
"""The same for a model that is tried again."""


@dataclass(frozen=True, slots=True)
class Handover:
    """What one program of the supervisor's process leaves to the next one."""

    lock_fd: int
    """The descriptor of the lock. The lock is never free in between."""
    listen_fd: int | None = None
    """The descriptor of the listening socket; None if only the router has it."""
    down: tuple[str, ...] = ()
    """Models that nobody wants just now, also those whose workers are about to end. They are not
    preloaded as they are at a start."""
    held: tuple[str, ...] = ()
    """Models that an operator drained, and ``*`` if the machine was."""
    ordered: tuple[tuple[str, int | None], ...] = ()
    """Models that are on their way by an operator's order, each with the context that an operator
    set for it, if any. The first one was ordered first. Those that are tried again after a failure
    and have such a context come last."""
    retried: tuple[str, ...] = ()
    """Models that are tried again after a failure, as far as there is room."""

    @classmethod
    def of(
        cls, lock_fd: int, listen_fd: int | None, down: Sequence[str], held: tuple[str, ...]
    ) -> Handover:
        """Return the handover that these options of ``lmx up`` stand for."""
        orders = [
            name[len(_ORDERED) :].rpartition("=") for name in down if name.startswith(_ORDERED)
        ]
        return cls(
            lock_fd,
            listen_fd,
            tuple(name for name in down if not name.startswith((_ORDERED, _RETRIED))),
            held,
            tuple((name, int(tokens) if tokens else None) for name, _, tokens in orders),
            tuple(name[len(_RETRIED) :] for name in down if name.startswith(_RETRIED)),
        )

    @property
    def options(self) -> list[str]:
        """The handover as options of ``lmx up``."""
        options = ["--lock-fd", str(self.lock_fd)]
        if self.listen_fd is not None:
            options += ["--listen-fd", str(self.listen_fd)]
        for name in self.down:
            options += ["--down", name]
        for name in self.held:
            options += ["--held", name]
        for name, tokens in self.ordered:
            options += ["--down", f"{_ORDERED}{name}={tokens or ''}"]
        for name in self.retried:
            options += ["--down", f"{_RETRIED}{name}"]
        return options


def leave(core: Core, lock_fd: int, listener: socket.socket | None) -> Handover:
    """Return what the next program continues with. The listening socket gets a descriptor of its
    own, which stays open when ``listener`` is closed."""
    slots = core.slots.values()
    coming = sorted(filter(_is_coming, slots), key=_ordered_at_s)
    contexts = {slot.model.id: core.context_set_by_operator(slot) for slot in coming}
    retried = tuple(
        slot.model.id
        for slot in coming
        if slot.life.demand.ordered_at_s is None and contexts[slot.model.id] is None
    )
    return Handover(
        lock_fd,
        None if listener is None else os.dup(listener.fileno()),
        tuple(s.model.id for s in slots if not (s.life.wanted or s.life.held)),
        tuple(s.model.id for s in slots if s.life.held) + ((MACHINE,) if core.drained else ()),
        tuple((name, tokens) for name, tokens in contexts.items() if name not in retried),
        retried,
    )


def _is_coming(slot: Slot) -> bool:
    """Return whether the model is on its way, and the next program would not know it. Requests ask
    again by themselves."""
    if slot.worker is not None or not slot.life.wanted:
        return False
    return slot.life.demand.ordered_at_s is not None or slot.state is SlotState.BACKOFF


def _ordered_at_s(slot: Slot) -> float:
    """Return since when an operator has waited; what only is tried again comes last."""
    at_s = slot.life.demand.ordered_at_s
    return math.inf if at_s is None else at_s


def unload_leaving(handover: Handover, core: Core, now_s: float) -> None:
    """Let the workers end that were about to end, once they are adopted. Otherwise they would be
    started again."""
    for name in handover.down:
        if name in core.slots and core.slots[name].worker is not None:
            core.operator.take(name, events.Unloaded(), now_s)


def resume(handover: Handover, core: Core, now_s: float) -> None:
    """Restore the state of the models for which no worker was adopted."""
    if MACHINE in handover.held:
        core.drain(True, now_s)
    for name in handover.held:
        if name in core.slots and not core.slots[name].life.held:
            core.operator.take(name, events.Held(), now_s)
    for name, tokens in handover.ordered:
        slot = core.slots.get(name)
        if slot is None or slot.worker is not None or slot.life.held:
            continue
        if tokens in (None, slot.model.context_length):
            core.operator.load(name, now_s)
        else:
            model = slot.model.model_copy(update={"context_length": tokens})
            core.operator.load_with(model, now_s)
    for name in handover.retried:
        if name in core.slots:
            core.operator.take(name, events.Preloaded(), now_s)
    core.preload(now_s, but=handover.down)


FOR_SUPERVISOR: Final = "_LMX_CHECKED_FOR_SUPERVISOR"
"""The variable by which a `config check` knows that a supervisor waits for it. The check then reads
no model's files."""

_CHECK_S: Final = 20.0
"""The limit of that check, which takes a second. Time in which it waits for a processor does not
count."""

_LONGEST_CHECK_S: Final = 100.0
"""The CLI waits longer than this for its answer."""


class Guarded(Enum):
    """Who starts a supervisor again that has died."""

    FOREGROUND = "foreground"
    """Nobody does: the person at its terminal sees that it died."""
    BACKGROUND = "background"
    """lmx itself does."""
    SERVICE = "service"
    """launchd or systemd does."""


@dataclass(frozen=True, slots=True)
class Successor:
    """Why a supervisor was started in the place of another one."""

    requester_id: str
    """The id of the process of lmx that asked for it and lived then."""
    because: str
    """The reason, for people."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """How this supervisor was started."""

    config: Path | None
    """The file that was named on the command line."""
    detached: bool
    read_config: Callable[[], Config]
    handover: Handover | None = None
    """What the program before it left; None unless it was put in another program's place."""
    background: bool = False
    """Whether `start` started it, so that no terminal and no service manager looks after it."""
    find_config: Callable[[], Path | None] = lambda: None
    """Return the file that is read, wherever it was named, or None."""
    successor: Successor | None = None
    """None unless it was started because the supervisor before it had died or was ended."""

    def arguments(self, handover: Handover) -> list[str]:
        """Return the command line of the program that continues from ``handover``."""
        return [*_program(), "up", *self._config_option(), *self._options(), *handover.options]

    def rescue(self, silence_s: float, environment: Mapping[str, str]) -> RescueSpec:
        """Return what routers run when the supervisor is silent for ``silence_s``. ``environment``
        is that of this process."""
        if self.background:
            kind = Guarded.BACKGROUND
        else:
            kind = Guarded.SERVICE if self.detached else Guarded.FOREGROUND
        options = ["--guarded", kind.value, "--silence", f"{silence_s:g}"]
        command = [*_program(), "rescue", *self._config_option(absolute=True), *options]
        hidden = {_sendable(name): _sendable(text) for name, text in keys(environment).items()}
        return RescueSpec(tuple(command), silence_s, hidden)

    def _options(self) -> list[str]:
        detached = ["--detached"] if self.detached else []
        return [*detached, "--background"] if self.background else detached

    def replace_program(self, handover: Handover) -> NoReturn:
        """Put a new program in the place of this one. The pid, the parent and the children stay.

        It may be called only after the event loop has ended. Raises ``OSError`` if the program
        can't be run."""
        for descriptor in (handover.lock_fd, handover.listen_fd):
            if descriptor is not None:
                os.set_inheritable(descriptor, True)
        arguments = self.arguments(handover)
        os.execv(arguments[0], arguments)  # noqa: S606  no shell is what is wanted

    async def check_successor(self) -> None:
        """Let the program that is installed now read the configuration, so that no program is put
        in the place of this one that can't start. Raises :class:`OperationError` with what that
        program says."""
        check = await asyncio.create_subprocess_exec(
            *_program(), "config", "check", *self._config_option(),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, env={**os.environ, FOR_SUPERVISOR: "1"},
        )  # fmt: skip
        reading = asyncio.create_task(check.communicate())
        try:
            if not await done_within(reading, _CHECK_S, _LONGEST_CHECK_S, check.pid):
                message = f"the installed lmx did not read the configuration within {_CHECK_S:g} s"
                raise OperationError(ErrorCode.INTERNAL, message)
            output, _ = reading.result()
        finally:
            reading.cancel()
            await _end(check)
        if check.returncode != 0:
            raise OperationError(
                ErrorCode.CONFIG_INVALID,
                "the installed lmx can't start, so this one continues: "
                + output.decode("utf-8", "replace").strip()[-2000:],
            )

    def _config_option(self, *, absolute: bool = False) -> list[str]:
        if self.config is None:
            return []
        return ["--config", str(self.config.absolute() if absolute else self.config)]


def _program() -> list[str]:
    return [sys.executable, "-P", "-m", "lmx.supervisor"]


def _sendable(text: str) -> str | bytes:
    """Return the text of a variable; its bytes if they are not UTF-8, as a message's text is."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return os.fsencode(text)
    return text


async def _end(process: Any) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
