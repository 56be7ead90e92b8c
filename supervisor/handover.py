"""What one program of the supervisor's process leaves to the next one."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from lmx.supervisor.core import Core


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
        tuple(s.model.id for s in slots if not s.wanted and not s.held and s.worker is None),
        tuple(s.model.id for s in slots if s.held),
    )


def resume(handover: Handover, core: Core, now_s: float) -> None:
    """Have the models that no worker was adopted for be as they were."""
    for name, slot in core.slots.items():
        if name in handover.held and not slot.held:
            core.operator.hold(slot, now_s)
    core.preload(now_s, but=handover.down)
