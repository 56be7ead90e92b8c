"""Keeps one router running: carries out what :mod:`lmx.supervisor.decisions.routers` decides about
starts, hangs and replacements, and owns the listening socket."""

import contextlib
import ipaddress
import random
import socket
from typing import Any, Protocol

import structlog

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.control import RouterBeat
from lmx.protocol.messages.status import RouterStatus
from lmx.protocol.states import RouterState
from lmx.supervisor.config.settings import Change, Settings
from lmx.supervisor.decisions import routers as deciding
from lmx.supervisor.decisions.lifecycle import LifecycleError
from lmx.supervisor.decisions.routers import Note, Router, Routers, Signal, StartRouter, TakeAddress
from lmx.supervisor.events import Events
from lmx.supervisor.sockets import listening
from lmx.supervisor.sockets.reachable import ALL_ADDRESSES
from lmx.supervisor.state.process_records import RouterRecord

log = structlog.get_logger()


class RouterActions(Events, Protocol):
    """Processes, signals, files and the log. None of the methods may block."""

    def spawn_router(self, listener: socket.socket) -> RouterRecord:
        """Start a router on a listening socket. Raises ``OSError``."""

    def signal_router(self, pid: int, number: int) -> None:
        """Send a signal to a router. Does nothing if the router is gone."""

    def waited_s(self, pid: int, now_s: float) -> float:
        """Return how much of the time since the last call a router that is late waited for a
        processor."""

    def save_routers(self, records: list[RouterRecord]) -> None:
        """Record the routers that run, for the next supervisor."""


class RouterGuard:
    """The owner of the routers' state, and its single writer, like the core. ``listener`` is the
    socket on which the next router listens; None if only the router that serves has it."""

    def __init__(self, actions: RouterActions, settings: Settings) -> None:
        self._actions = actions
        self._settings = settings
        self.listener: socket.socket | None = None
        self._moved: socket.socket | None = None
        self._port = 0
        self._routers = Routers()

    @property
    def process(self) -> Router | None:
        """The router that serves."""
        return self._routers.serving

    @property
    def successor(self) -> Router | None:
        """The router that was started to replace it, and has not sent its RouterHello yet."""
        return self._routers.successor

    @property
    def newest(self) -> int:
        """The number of the router that was started last, or that is planned."""
        return self._routers.started + (self._routers.state is deciding.State.DOWN)

    def start(self, now_s: float) -> None:
        """Start a router. If "any port" is configured, it gets the port of the router before it.

        Raises ``OSError`` when the address can't be bound or the process can't be started.
        """
        self._take_moved()
        if self.listener is None:
            self.listener = listening.bind(self._settings.current.server, self._port)
        self._started(self._actions.spawn_router(self.listener), now_s)

    def replace(
        self, now_s: float, listener: socket.socket | None = None, *, here: bool = False
    ) -> int | None:
        """Start another router, on ``listener`` if one is given. The new router takes over when it
        sends its RouterHello, and the old one finishes its requests. If the new one ends before,
        the old one stays. ``here`` means that the new one listens where the old one does, also if
        an earlier change of the address has not been carried out yet.

        Returns the pid of the new router. Returns None when only the old router has the listening
        socket: then it frees the address first, and the next tick binds it again. Raises
        ``OSError`` when the process can't be started; nothing has changed then.
        """
        moved = listener or (None if here else self._moved)
        source = moved or self.listener
        record = None if source is None else self._actions.spawn_router(source)
        if self._moved is not None and self._moved is not moved:
            self._moved.close()
        self._moved = moved
        if record is None:
            self._step(deciding.AddressNeeded(), now_s)
            return None
        self._started(record, now_s)
        return record.pid

    def reconfigured(self, change: Change, now_s: float) -> None:
        """Replace the router if a change of the configuration needs it, with another listening
        socket if the address has changed. Raises :class:`OperationError` when the address can't be
        bound or the process can't be started; nothing has changed then."""
        if not change.diff.router:
            return
        listener = self._bind_elsewhere(change) if change.diff.moved else None
        try:
            self.replace(now_s, listener, here=change.diff.moved and listener is None)
        except OSError as error:
            if listener is not None:
                listener.close()
            message = f"can't start a new router: {error.strerror or error}"
            raise OperationError(ErrorCode.INTERNAL, message) from error

    def adopt(self, record: RouterRecord, now_s: float) -> None:
        """Take over a router that an earlier supervisor started, and let it serve unless its record
        says that it retires."""
        self._step(deciding.Adopted(record), now_s)
        log.info("router.adopted", router_pid=record.pid, port=record.port)

    def pids(self) -> frozenset[int]:
        """Return the processes of all routers of this supervisor."""
        return frozenset(router.pid for router in self._routers.all)

    def has_router(self, pid: int) -> bool:
        """Return whether this process is a router of this supervisor."""
        return pid in self.pids()

    def hello(self, pid: int, port: int, now_s: float) -> None:
        """Take the RouterHello of a router of this supervisor."""
        self._step(deciding.Hello(pid, port), now_s)

    def beat(self, message: RouterBeat, now_s: float) -> None:
        self._step(message, now_s)

    def exited(self, pid: int, now_s: float, status: int | None = None) -> None:
        """Take the observed end of a router, and plan the next one if it was the one that served.
        ``status`` is that of ``Popen.returncode``; None when it can't be known."""
        if any(router.pid == pid for router in self._routers.retiring):
            log.info("router.retired", router_pid=pid)
        self._step(deciding.Exited(pid, status, random.random()), now_s)

    def tick(self, now_s: float, paused_s: float) -> None:
        """Let time pass: end a router that is silent, and start one that is planned."""
        timing = self._settings.current.timing
        late = [one.pid for one in self._routers.chief if deciding.is_late(one, timing, now_s)]
        waited_s = {pid: self._actions.waited_s(pid, now_s) for pid in late}
        self._step(deciding.Tick(paused_s, waited_s), now_s)

    def quiet_until_s(self, now_s: float) -> float | None:
        """Return until when no tick is needed; None if each is."""
        return deciding.quiet_until_s(self._routers, self._settings.current.timing, now_s)

    def stop(self, now_s: float, grace_s: float) -> None:
        """End every router: SIGTERM lets streams finish, SIGKILL after ``grace_s``."""
        self._step(deciding.Stopped(grace_s), now_s)

    @property
    def settled(self) -> bool:
        """Whether no router takes requests that has older settings than the next one would have."""
        retired = all(router.beat.retired for router in self._routers.retiring)
        return self.successor is None and retired

    def has_keyring(self, digest: str) -> bool:
        """Return whether every router that runs checks keys by this keyring, as it has said."""
        return all(router.beat.keyring == digest for router in self._routers.all)

    def has_snapshot(self, epoch: str, revision: int) -> bool:
        """Return whether every router that takes requests looks up models in this snapshot or a
        later one, as it has said."""
        return all(
            beat.epoch == epoch and beat.revision >= revision for beat in self._beats_of_takers()
        )

    def has_peers(self, digest: str) -> bool:
        """Return whether every router that takes requests asks this list of peers, as it has
        said."""
        return all(beat.peers == digest for beat in self._beats_of_takers())

    @property
    def port(self) -> int | None:
        """The port of the API; None while it is not known."""
        if self.listener is not None:
            return int(self.listener.getsockname()[1])
        return self.process.port if self.process else None

    @property
    def running(self) -> bool:
        """Whether there is a router whose end was not observed yet."""
        return bool(self._routers.all)

    def close(self) -> None:
        """Close the listening sockets that this process holds."""
        for listener in (self.listener, self._moved):
            if listener is not None:
                listener.close()
        self.listener = self._moved = None

    def status(self) -> RouterStatus:
        """Return the router as ``lmx status`` shows it, without its URLs. While there is
        no router, the host is the one on which the next one will listen."""
        router, beats = self.process, [one.beat for one in self._routers.all]
        return RouterStatus(
            state=RouterState.RUNNING if router else RouterState.RESTARTING,
            pid=router.pid if router else None,
            host=(router.record.host if router else "") or self._settings.current.server.host,
            port=router.port if router else None,
            adopted=router.adopted if router else False,
            memory_bytes=router.beat.memory_bytes if router else 0,
            streams=sum(beat.streams for beat in beats),
            waiting=sum(beat.waiting for beat in beats),
            batches=sum(beat.batches for beat in beats),
            batch_lines=sum(beat.batch_lines for beat in beats),
            requests_total=self._routers.ended_requests_total
            + sum(beat.requests_total for beat in beats),
            restarts=self._routers.restarts,
            retiring=len(self._routers.retiring),
        )

    def _beats_of_takers(self) -> list[RouterBeat]:
        """Return the last beats of the routers that take requests."""
        serving = () if self.process is None else (self.process,)
        return [one.beat for one in (*serving, *self._routers.retiring) if not one.beat.retired]

    def _step(self, event: Any, now_s: float) -> None:
        before, timing = self._routers, self._settings.current.timing
        try:
            self._routers, effects = deciding.step(before, event, timing, now_s)
        except LifecycleError as error:
            # An event that can't happen in this state is a bug to be seen, not a reason to crash.
            log.error("router.unexpected_event", error=str(error))
            return
        for effect in effects:
            match effect:
                case Signal(pid, number):
                    self._actions.signal_router(pid, number)
                case Note(name, detail, pid):
                    self._actions.note(name, None, detail, router_pid=pid)
                case TakeAddress():
                    self._take_moved()
                    assert self.process is not None
                    self._port = self.process.port
                case StartRouter():
                    self._start_again(now_s)
        records = _records(self._routers)
        if records != _records(before):
            self._actions.save_routers(records)

    def _started(self, record: RouterRecord, now_s: float) -> None:
        log.info("router.spawned", router_pid=record.pid, port=record.port)
        self._step(deciding.Started(record), now_s)

    def _start_again(self, now_s: float) -> None:
        try:
            self.start(now_s)
        except OSError as error:
            log.error("router.not_started", error=str(error))
            self._step(deciding.StartFailed(), now_s)

    def _bind_elsewhere(self, change: Change) -> socket.socket | None:
        """Return a socket on the new address, None if the router listens there already."""
        server, port = change.new.server, self.port or 0
        host = (self.process and self.process.record.host) or change.old.server.host
        if server.host == host and server.port in (0, port):
            return None
        try:
            return listening.bind(server, port)
        except OSError as error:
            # Two single addresses do not conflict: another program has the new one.
            conflicts = not (_is_single(host) and _is_single(server.host))
            own_host = host if conflicts and server.port in (0, port) else None
            raise listening.cannot_listen(server, error, own_host=own_host) from error

    def _take_moved(self) -> None:
        if self._moved is not None:
            if self.listener is not None:
                self.listener.close()
            self.listener, self._moved = self._moved, None


def _is_single(host: str) -> bool:
    """Return whether a host is one address, and no name or all addresses."""
    with contextlib.suppress(ValueError):
        return host not in ALL_ADDRESSES and bool(ipaddress.ip_address(host))
    return False


def _records(routers: Routers) -> list[RouterRecord]:
    serving = [] if routers.serving is None else [routers.serving.record]
    others = [router.record for router in routers.all if router is not routers.serving]
    return [*serving, *(record.as_retiring() for record in others)]
