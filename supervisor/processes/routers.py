"""Carries out the actions of the router's guard on real processes, signals and records."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lmx.protocol.host.processor_wait import ProcessorWaits
from lmx.protocol.messages.keys import Keyring
from lmx.protocol.messages.peers import PeerList
from lmx.protocol.wire.endpoints import new_instance_id
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.events import Events
from lmx.supervisor.processes.child import signal_group
from lmx.supervisor.processes.handover import Invocation
from lmx.supervisor.processes.launcher import Exited, Launcher
from lmx.supervisor.processes.specs import router_spec
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import Records, RouterRecord


@dataclass(eq=False, repr=False)
class RouterProcesses:
    """The real :class:`lmx.supervisor.router.guard.RouterActions`. ``exited`` is called at the
    end of each router. ``admin_key`` is used when the configuration has none."""

    _settings: Settings
    _home: Home
    _launcher: Launcher
    _records: Records
    _events: Events
    _version: str
    _admin_key: str
    _keyring: Callable[[], Keyring]
    _peers: Callable[[], PeerList]
    _invocation: Invocation
    _exited: Exited
    _waits: ProcessorWaits = field(default_factory=ProcessorWaits, init=False)

    def note(self, name: str, model_id: str | None, detail: str, **data: Any) -> None:
        self._events.note(name, model_id, detail, **data)

    def spawn_router(self, listener: socket.socket) -> RouterRecord:
        router_id = new_instance_id()
        config = self._settings.current
        spec = router_spec(
            config, self._home, router_id, listener, self._version, self._admin_key,
            self._keyring(), self._peers(),
            self._invocation.rescue(config.timing.beat_timeout_s, os.environ),
        )  # fmt: skip
        pid = self._launcher.start(
            "lmx.router", (router_id,), spec, self._home.router_log, self._exited,
            (listener.fileno(),),
        )  # fmt: skip
        return RouterRecord(pid, router_id, config.server.host, listener.getsockname()[1])

    def watch(self, pid: int) -> None:
        """Report the end of a router that an earlier supervisor started."""
        self._launcher.watch(pid, self._exited)

    def signal_router(self, pid: int, number: int) -> None:
        signal_group(pid, number)

    def waited_s(self, pid: int, now_s: float) -> float:
        return self._waits.more_s(pid, now_s)

    def save_routers(self, records: list[RouterRecord]) -> None:
        self._records.save_routers(records)
