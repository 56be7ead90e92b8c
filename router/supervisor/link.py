"""The router's end of the supervisor's sockets: beats, snapshots, questions and their replies."""

import asyncio
import itertools
import os
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import structlog
import zmq.asyncio

from lmx.protocol.errors import ErrorCode, LmxError, ProtocolError, UnavailableError
from lmx.protocol.host.lasting import begin
from lmx.protocol.messages.control import (
    BeatSeen,
    Denied,
    Identify,
    RouterBeat,
    RouterHello,
    WorkerExited,
)
from lmx.protocol.messages.keys import GetKeyring, Keyring
from lmx.protocol.messages.peers import GetPeers, PeerList
from lmx.protocol.messages.snapshot import GetSnapshot, Snapshot
from lmx.protocol.wire.codec import Envelope, decode, encode
from lmx.protocol.wire.endpoints import RunDirectory, router_identity
from lmx.protocol.wire.sockets import Role, open_socket, send_nowait
from lmx.router.event_loop import ends_in_time
from lmx.router.http.errors import rejection
from lmx.router.http.keys import Keys
from lmx.router.supervisor.directory import Directory, advance, is_behind

RECONNECT_S = 2.0
"""How long clients are asked to wait while there is no supervisor: about as long as its restart
takes."""


_PARTS: Final = 10
"""The parts in which the time for a reply is waited: one is all that a router loses that stood
still itself, as a process that is stopped does."""

_LOOKS: Final = 3
_LOOK_S: Final = 0.02
"""After its time a reply is looked for so often: where the router stood still until then, it may
wait in the socket."""


def unavailable(message: str) -> UnavailableError:
    """Return the error for a request that needs a supervisor while none is running."""
    return UnavailableError(ErrorCode.SUPERVISOR_UNAVAILABLE, message, retry_after_s=RECONNECT_S)


class Questions:
    """The questions to the supervisor that have no reply yet, each under its number.

    ``send`` sends a question and returns whether it could. Used from one event loop only.
    """

    def __init__(self, send: Callable[[bytes], bool]) -> None:
        self._send = send
        self._correlations = itertools.count(1)
        self._open: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, question: Any, deadline_s: float) -> Any:
        """Return the reply to a question. Raises the error of the supervisor's refusal, the error
        that :meth:`fail` was given, or SUPERVISOR_UNAVAILABLE if no reply comes within
        ``deadline_s``."""
        correlation = next(self._correlations)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[correlation] = future
        try:
            if not self._send(encode(question, correlation)):
                raise unavailable("lmx's supervisor can't be reached.")
            for wait_s in (*(deadline_s / _PARTS,) * _PARTS, *(_LOOK_S,) * _LOOKS):
                await asyncio.wait({future}, timeout=wait_s)
                if future.done():
                    break
            else:
                raise unavailable("lmx's supervisor did not answer in time.")
            reply = future.result()
        finally:
            del self._open[correlation]
        if isinstance(reply, Denied):
            raise rejection(
                reply.code,
                reply.message,
                param=reply.param,
                retry_after_s=reply.retry_after_s,
                final=reply.final,
            )
        return reply

    def answered(self, correlation: int, reply: Any) -> None:
        """Take a reply. One that nobody waits for any more is dropped."""
        future = self._open.get(correlation)
        if future is not None and not future.done():
            future.set_result(reply)

    def fail(self, error: LmxError) -> None:
        """End every question that waits for a reply with ``error``."""
        for future in self._open.values():
            if not future.done():
                future.set_exception(error)


_SILENT_BEATS: Final = 5
_LEAST_SILENCE_S: Final = 3.0
"""After this many beats without an answer, but not within this time, the supervisor counts as gone:
on a busy machine any process may stand still for a second or two."""

_CONNECT_RETRY_S: Final = 0.02
_SNAPSHOT_DEADLINE_S: Final = 2.0
_FIRST_SNAPSHOT_S: Final = 10.0
"""How long requests wait for the first snapshot, which takes milliseconds, but longer on a busy
machine. A restarted router finds such requests in its backlog."""

_log = structlog.get_logger()
_T = TypeVar("_T")


class SupervisorEvents(Protocol):
    """What reacts to workers that come and go."""

    def worker_exited(self, fact: WorkerExited) -> None:
        """React to the end of a worker."""

    def directory_changed(self, directory: Directory) -> None:
        """React to another snapshot that is in effect."""


class SupervisorLink:
    """Owns the control and events sockets, the directory and the questions in flight.

    ``peers`` is called with another list of peers, ``peers_digest`` returns the digest of the one
    in effect. ``answers_total`` counts the beats that were answered. Used from one event loop only.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        run_dir: RunDirectory,
        events: SupervisorEvents,
        *,
        hello: RouterHello,
        beat_interval_s: float,
        keys: Keys,
        peers: Callable[[PeerList], None],
        peers_digest: Callable[[], str],
    ) -> None:
        self._control = open_socket(context, Role.CONTROL_CLIENT, router_identity(os.getpid()))
        self._control.connect(run_dir.control)
        self._events_socket = open_socket(context, Role.EVENTS_CLIENT)
        self._events_socket.subscribe(b"")
        self._events_socket.connect(run_dir.events)
        self._events = events
        self._hello = hello
        self._beat_interval_s = beat_interval_s
        self._silence_s = max(_SILENT_BEATS * beat_interval_s, _LEAST_SILENCE_S)
        self._keys = keys
        self._put_peers = peers
        self._peers_digest = peers_digest
        self._directory: Directory | None = None
        self._changed = asyncio.Event()
        self.epoch: str | None = None
        """The epoch of the supervisor that answered last; None before the first answer."""
        self.on_new_epoch: Callable[[], None] = lambda: None
        """Is called after each change of :attr:`epoch`."""
        self.silent_for_s = 0.0
        """For how long it has waited since the supervisor last answered a beat, or since the start.
        A router that stood still itself, as a process that is stopped does, waited for nothing."""
        self.answers_total = 0
        self._answers = asyncio.Event()
        self._questions = Questions(lambda payload: send_nowait(self._control, payload))
        self._refreshes: dict[str, asyncio.Task[None]] = {}

    @property
    def latest(self) -> Directory | None:
        """The last known snapshot, also while the supervisor is gone; None before the first."""
        return self._directory

    async def directory(self) -> Directory:
        """Return :attr:`latest`, but wait for the first snapshot if the router has just started.

        Raises :class:`UnavailableError` if none comes within a moment.
        """
        if self._directory is None and not await self.until(lambda _: True, _FIRST_SNAPSHOT_S):
            raise unavailable("lmx's supervisor has not answered yet.")
        assert self._directory is not None
        return self._directory

    async def until(self, condition: Callable[[Directory], bool], deadline_s: float | None) -> bool:
        """Wait until a snapshot satisfies ``condition``; return False if none does within
        ``deadline_s`` (None: there is no time limit)."""
        try:
            async with asyncio.timeout(deadline_s):
                while self._directory is None or not condition(self._directory):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    @property
    def alive(self) -> bool:
        """Whether the supervisor answered within the last beats."""
        return self.epoch is not None and not self.silent

    @property
    def silent(self) -> bool:
        """Whether it has answered no beat for longer than a supervisor that works needs, be it
        that it never did."""
        return self.silent_for_s > self._silence_s

    async def run(self, measure: Callable[[], RouterBeat]) -> None:
        """Listen and beat until cancelled. Frames that can't be decoded are logged and dropped."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(self._control, self._on_control))
            tasks.create_task(
                self._listen(self._events_socket, lambda event: self._on_event(event, measure))
            )
            tasks.create_task(self._beat(measure))

    async def ask(self, question: Any, deadline_s: float) -> Any:
        """Return the supervisor's reply to a question of the control protocol.

        Raises the error of its refusal; or SUPERVISOR_UNAVAILABLE if there is no supervisor, if it
        was replaced by one that does not know the question, or if no reply came in time.
        """
        if not self.alive:
            raise unavailable("lmx's supervisor does not answer.")
        return await self._questions.ask(question, deadline_s)

    def notify(self, fact: Any) -> None:
        """Send a message that needs no reply. It is lost if the supervisor can't be reached."""
        send_nowait(self._control, encode(fact))

    async def answers_again(self, grace_s: float) -> bool:
        """Wait until the supervisor answers beats; return False when it has been silent for
        ``grace_s`` more than makes it count as gone."""
        left_s = self._silence_s + grace_s - self.silent_for_s
        return await ends_in_time(self._answers.wait(), left_s)

    def fail_questions(self, error: LmxError) -> None:
        """End every question that waits for the supervisor's reply with ``error``."""
        self._questions.fail(error)

    def close(self) -> None:
        """Close the sockets, after :meth:`run` has ended."""
        self._control.close()
        self._events_socket.close()

    async def _beat(self, measure: Callable[[], RouterBeat]) -> None:
        # It is tried often until it is sent, so that a start does not cost a whole beat.
        hello = encode(self._hello)
        while True:
            if send_nowait(self._control, hello):
                break
            await asyncio.sleep(_CONNECT_RETRY_S)
            self.silent_for_s += _CONNECT_RETRY_S
        while True:
            # Not sent means not connected; the silence that follows shows it.
            send_nowait(self._control, encode(measure()))
            if not self.alive:
                self._answers.clear()
                self.fail_questions(unavailable("lmx's supervisor does not answer any more."))
            await asyncio.sleep(self._beat_interval_s)
            self.silent_for_s += self._beat_interval_s

    async def _listen(self, socket: zmq.asyncio.Socket, handle: Callable[[Envelope], None]) -> None:
        while True:
            payload = await socket.recv()
            try:
                handle(decode(payload))
            except ProtocolError as error:
                _log.warning("supervisor.bad_message", error=error.message)

    def _on_control(self, envelope: Envelope) -> None:
        message = envelope.message
        if envelope.correlation:
            self._questions.answered(envelope.correlation, message)
            return
        match message:
            case BeatSeen():
                self._supervisor_answered(message.epoch)
                if is_behind(self._directory, message.epoch, message.revision):
                    self._refresh("snapshot", GetSnapshot(), Snapshot, self._apply)
                digest = self._keyring_digest
                if message.keyring not in ("", digest()):
                    self._refresh("keyring", GetKeyring(), Keyring, self._keys.put, digest)
                digest = self._peers_digest
                if message.peers not in ("", digest()):
                    self._refresh("peers", GetPeers(), PeerList, self._put_peers, digest)
            case Identify():
                self._supervisor_answered(message.epoch)
                send_nowait(self._control, encode(self._hello))
            case _:
                raise ProtocolError(f"unexpected {type(message).__name__} on control")

    def _on_event(self, envelope: Envelope, measure: Callable[[], RouterBeat]) -> None:
        match envelope.message:
            case Snapshot() as snapshot:
                if not self._apply(snapshot):
                    # It is published again by a supervisor that waits until it is in effect.
                    self.notify(measure())
            case WorkerExited() as fact:
                self._events.worker_exited(fact)
            case Keyring() as ring:
                self._keys.put(ring)
            case PeerList() as peers:
                self._put_peers(peers)
                # A supervisor waits until it is in effect.
                self.notify(measure())
            case other:
                raise ProtocolError(f"unexpected {type(other).__name__} on events")

    def _supervisor_answered(self, epoch: str) -> None:
        self.silent_for_s = 0.0
        self.answers_total += 1
        self._answers.set()
        if self.epoch is not None and self.epoch != epoch:
            # Another supervisor answers: it knows none of the questions to its predecessor.
            _log.info("supervisor.replaced", epoch=epoch)
            self.fail_questions(unavailable("lmx's supervisor has been restarted."))
        if self.epoch != epoch:
            self.epoch = epoch
            self.on_new_epoch()

    def _keyring_digest(self) -> str:
        return self._keys.ring.digest

    def _refresh(
        self,
        name: str,
        question: Any,
        kind: type[_T],
        put: Callable[[_T], object],
        digest: Callable[[], str] = lambda: "",
    ) -> None:
        """Ask for what the last BeatSeen has shown to be missing, unless that is being asked. The
        reply is dropped if ``digest`` has changed meanwhile: what was published is newer."""
        task = self._refreshes.get(name)
        if task is None or task.done():
            asking = self._ask_for(name, question, kind, put, digest)
            self._refreshes[name] = begin(asking, f"the question for the {name}")

    async def _ask_for(
        self,
        name: str,
        question: Any,
        kind: type[_T],
        put: Callable[[_T], object],
        digest: Callable[[], str],
    ) -> None:
        before = digest()
        try:
            reply = await self._questions.ask(question, _SNAPSHOT_DEADLINE_S)
        except LmxError as error:
            # The next BeatSeen shows that it is still missing, and it is asked for again; also if
            # the reply is dropped.
            _log.warning(f"{name}.unanswered", error=error.message)
            return
        if not isinstance(reply, kind):
            _log.warning(f"{name}.refused", reply=type(reply).__name__)
        elif digest() == before:
            put(reply)

    def _apply(self, snapshot: Snapshot) -> bool:
        """Put a snapshot into effect if it is newer. Return whether it is."""
        directory = advance(self._directory, snapshot)
        if directory is self._directory:
            return False
        self._directory = directory
        self._changed.set()
        self._changed = asyncio.Event()
        self._events.directory_changed(directory)
        return True
