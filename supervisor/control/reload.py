"""Puts another configuration in force while lmx runs: all of it, or nothing."""

from __future__ import annotations

import socket
from collections.abc import Callable

from lmx.protocol.errors import ErrorCode, LmxError, OperationError, UnavailableError
from lmx.protocol.messages import control
from lmx.supervisor.config.diff import ConfigDiff, compare
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.config.schema import Config
from lmx.supervisor.core.core import Core
from lmx.supervisor.inventory.added import AddedModels
from lmx.supervisor.processes.processes import Processes
from lmx.supervisor.router.guard import RouterGuard
from lmx.supervisor.sockets import listening


def tell_routing_gaps(config: Config, note: Callable[..., None]) -> None:
    """Note which names in ``routing`` are no model's, the added ones among them."""
    for gap in config.routing_gaps():
        note("routing.incomplete", None, gap)


class Reloader:
    """Compares what a person wrote, with the added models, with what is in force, which is the
    core's. ``apply(new)`` gives a new one to whoever looks at it and can't fail; models are the
    core's to change, the router is the guard's."""

    def __init__(
        self,
        read: Callable[[], Config],
        added: AddedModels,
        core: Core,
        guard: RouterGuard,
        processes: Processes,
        apply: Callable[[Config], None],
        note: Callable[..., None],
    ) -> None:
        self._read = read
        self._added = added
        self._core = core
        self._guard = guard
        self._processes = processes
        self._apply = apply
        self._note = note

    def reload(self, why: str, now_s: float) -> control.Reloaded:
        """Read the configuration and put it in force.

        Raises :class:`LmxError` when it is not valid, its address can't be bound or lmx is
        ending; nothing has changed then.
        """
        try:
            return self._reload(why, now_s)
        except LmxError as error:
            self._note("config.rejected", None, error.message, why=why)
            raise

    def differs(self) -> tuple[str, ...]:
        """Return the sections of the file that are not in force. Raises :class:`LmxError` when
        it is not valid."""
        return compare(self._core.config, self._added.join(self._read())).sections

    def _reload(self, why: str, now_s: float) -> control.Reloaded:
        if self._core.stopping:
            raise UnavailableError(ErrorCode.SHUTTING_DOWN, "lmx is shutting down")
        old, written = self._core.config, self._read()
        if not written.models and not all(isinstance(m, AddedModelConfig) for m in old.models):
            # Most likely a file that is just being written, and that would unload everything.
            raise OperationError(
                ErrorCode.CONFIG_INVALID,
                "the configuration names no models, and nothing was changed: to serve none, run "
                "`lmx-supervisor stop`",
            )
        new = self._added.join(written)
        diff = compare(old, new)
        if diff.sections:
            self._put_in_force(old, new, diff, now_s)
        self._added.tell_shadowed(written, self._note)
        tell_routing_gaps(new, self._note)
        detail = "; ".join(diff.sentences) or "it is the same"
        self._note("config.reloaded", None, detail, why=why, sections=list(diff.sections))
        return control.Reloaded(diff.sections, diff.sentences)

    def _put_in_force(self, old: Config, new: Config, diff: ConfigDiff, now_s: float) -> None:
        listener = self._bind(old, new) if diff.moved else None
        # The router first: it is the one thing that can still fail.
        self._processes.reconfigure(new)
        if diff.router:
            try:
                self._guard.replace(now_s, listener)
            except OSError as error:
                self._processes.reconfigure(old)
                if listener is not None:
                    listener.close()
                message = f"can't start a new router: {error.strerror or error}"
                raise OperationError(ErrorCode.INTERNAL, message) from error
        self._apply(new)
        self._core.reconfigure(new, diff.models, now_s)

    def _bind(self, old: Config, new: Config) -> socket.socket | None:
        """Return a socket on the new address, None where the router listens there already."""
        server, router = new.server, self._guard.process
        port = 0 if router is None else router.port
        if server.host == old.server.host and server.port in (0, port):
            return None
        try:
            return listening.bind(server, port)
        except OSError as error:
            raise listening.cannot_listen(server, error) from error
