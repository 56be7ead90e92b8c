"""The router's end of the supervisor's sockets: who lives, what is loaded, what is asked for."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog
import zmq.asyncio

from lmx.protocol.codec import Envelope, decode, encode
from lmx.protocol.control import (
    Acquire,
    Acquired,
    BeatSeen,
    Denied,
    GetSnapshot,
    Identify,
    RouterBeat,
    RouterHello,
    Snapshot,
    WorkerExited,
)
from lmx.protocol.endpoints import RunDirectory
from lmx.protocol.errors import ErrorCode, LmxError, ProtocolError, UnavailableError
from lmx.protocol.sockets import Role, open_socket, send_nowait
from lmx.router.directory import Directory, advance, is_behind
from lmx.router.errors import rejection

_SILENT_BEATS: Final = 5
"""Beats without an answer after which the supervisor counts as gone."""

_CONNECT_RETRY_S: Final = 0.02
_SNAPSHOT_DEADLINE_S: Final = 2.0
_FIRST_SNAPSHOT_S: Final = 3.0
"""For requests that a restarted router finds in its backlog: the snapshot takes milliseconds."""

_ACQUIRE_MARGIN_S: Final = 5.0
"""The supervisor answers within the wait it was given; this much later it has failed to."""

_RECONNECT_S: Final = 2.0
"""What a client is told to wait while there is no supervisor: about a restart of it."""

_log = structlog.get_logger()


class SupervisorEvents(Protocol):
    """Who wants to know of workers that come and go."""

    def worker_exited(self, fact: WorkerExited) -> None:
        """A worker's end was observed."""

    def directory_changed(self, directory: Directory) -> None:
        """Another snapshot is in force."""


class SupervisorLink:
    """Owns the control and events sockets, the directory and the questions in flight.

    Concurrent requests for one cold model share one Acquire; a request that is cancelled
    leaves the question, and with it the load, to go on. Used from one event loop only.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        run_dir: RunDirectory,
        events: SupervisorEvents,
        *,
        hello: RouterHello,
        beat_interval_s: float,
        load_wait_s: float,
    ) -> None:
        self._control = open_socket(context, Role.CONTROL_CLIENT, f"r:{os.getpid()}".encode())
        self._control.connect(run_dir.control)
        self._events_socket = open_socket(context, Role.EVENTS_CLIENT)
        self._events_socket.subscribe(b"")
        self._events_socket.connect(run_dir.events)
        self._events = events
        self._hello = hello
        self._beat_interval_s = beat_interval_s
        self._load_wait_s = load_wait_s
        self._directory: Directory | None = None
        self._known = asyncio.Event()
        self._epoch: str | None = None
        self._started_at = time.monotonic()
        self._seen_at: float | None = None
        self._correlations = itertools.count(1)
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._acquires: dict[str, asyncio.Task[str]] = {}
        self._snapshot_task: asyncio.Task[None] | None = None

    @property
    def latest(self) -> Directory | None:
        """The last known snapshot, also while the supervisor is gone; None before the first."""
        return self._directory

    async def directory(self) -> Directory:
        """Like :attr:`latest`, but a router that has just started waits for its first snapshot.

        Raises :class:`UnavailableError` when none comes within a moment.
        """
        if self._directory is None:
            try:
                async with asyncio.timeout(_FIRST_SNAPSHOT_S):
                    await self._known.wait()
            except TimeoutError:
                raise _unavailable("lmx's supervisor has not answered yet.") from None
        assert self._directory is not None
        return self._directory

    @property
    def alive(self) -> bool:
        """Whether the supervisor answered within the last beats."""
        if self._seen_at is None:
            return False
        return time.monotonic() - self._seen_at <= _SILENT_BEATS * self._beat_interval_s

    @property
    def silent_for_s(self) -> float:
        """Seconds since the supervisor last answered a beat, or since the start."""
        return time.monotonic() - (self._started_at if self._seen_at is None else self._seen_at)

    async def run(self, measure: Callable[[], RouterBeat]) -> None:
        """Listen and beat until cancelled. Frames that can't be decoded are logged, dropped."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(self._control, self._on_control))
            tasks.create_task(self._listen(self._events_socket, self._on_event))
            tasks.create_task(self._beat(measure))

    def fail_questions(self, error: LmxError) -> None:
        """Whoever waits for the supervisor gets ``error``."""
        for reply in self._questions.values():
            if not reply.done():
                reply.set_exception(error)

    def close(self) -> None:
        """Close the sockets, after :meth:`run` has ended."""
        self._control.close()
        self._events_socket.close()

    async def acquire(self, model_id: str, request_id: str) -> str:
        """Return the instance in which the model is READY, loading it if need be.

        Waits up to ``load_wait_s``. Raises what the supervisor denied it with, or
        SUPERVISOR_UNAVAILABLE when there is none.
        """
        if not self.alive:
            raise _unavailable("The model is not loaded, and lmx's supervisor does not answer.")
        shared = self._acquires.get(model_id)
        if shared is None:
            shared = asyncio.create_task(self._ask_acquire(model_id, request_id))
            self._acquires[model_id] = shared
            shared.add_done_callback(lambda task: self._acquire_done(model_id, task))
        # A cancelled request must not cancel the question that others share.
        return await asyncio.shield(shared)

    async def _ask_acquire(self, model_id: str, request_id: str) -> str:
        question = Acquire(model_id, wait_s=self._load_wait_s, request_id=request_id)
        try:
            reply = await self._ask(question, self._load_wait_s + _ACQUIRE_MARGIN_S)
        except TimeoutError:
            raise _unavailable("lmx's supervisor did not answer in time.") from None
        match reply:
            case Acquired():
                return reply.instance
            case Denied():
                raise rejection(
                    reply.code,
                    reply.message,
                    param=reply.param,
                    retry_after_s=reply.retry_after_s,
                )
            case _:
                raise ProtocolError(f"{type(reply).__name__} is no reply to Acquire")

    def _acquire_done(self, model_id: str, task: asyncio.Task[str]) -> None:
        del self._acquires[model_id]
        # Whoever still waits gets the error; with nobody left it is nobody's: mark it as seen.
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.debug("acquire.denied", model=model_id, error=str(error))

    async def _ask(self, question: Any, deadline_s: float) -> Any:
        correlation = next(self._correlations)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._questions[correlation] = reply
        try:
            if not send_nowait(self._control, encode(question, correlation)):
                raise _unavailable("lmx's supervisor can't be reached.")
            async with asyncio.timeout(deadline_s):
                return await reply
        finally:
            self._questions.pop(correlation, None)

    async def _beat(self, measure: Callable[[], RouterBeat]) -> None:
        # Tried often until it is sent, so that a start does not cost a whole beat.
        hello = encode(self._hello)
        while True:
            if send_nowait(self._control, hello):
                break
            await asyncio.sleep(_CONNECT_RETRY_S)
        while True:
            # Not sent means not connected; the silence that follows says so.
            send_nowait(self._control, encode(measure()))
            if not self.alive:
                self.fail_questions(_unavailable("lmx's supervisor does not answer any more."))
            await asyncio.sleep(self._beat_interval_s)

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
            reply = self._questions.get(envelope.correlation)
            if reply is not None and not reply.done():
                reply.set_result(message)
            return
        match message:
            case BeatSeen():
                self._seen_at = time.monotonic()
                self._note_epoch(message.epoch)
                if is_behind(self._directory, message.epoch, message.revision):
                    self._refresh()
            case Identify():
                self._seen_at = time.monotonic()
                self._note_epoch(message.epoch)
                send_nowait(self._control, encode(self._hello))
            case _:
                raise ProtocolError(f"unexpected {type(message).__name__} on control")

    def _on_event(self, envelope: Envelope) -> None:
        match envelope.message:
            case Snapshot() as snapshot:
                self._apply(snapshot)
            case WorkerExited() as fact:
                self._events.worker_exited(fact)
            case other:
                raise ProtocolError(f"unexpected {type(other).__name__} on events")

    def _note_epoch(self, epoch: str) -> None:
        if self._epoch is not None and self._epoch != epoch:
            # Another supervisor answers: it has never heard of what its predecessor was asked.
            _log.info("supervisor.replaced", epoch=epoch)
            self.fail_questions(_unavailable("lmx's supervisor has been restarted."))
        self._epoch = epoch

    def _refresh(self) -> None:
        if self._snapshot_task is None or self._snapshot_task.done():
            self._snapshot_task = asyncio.create_task(self._ask_snapshot())

    async def _ask_snapshot(self) -> None:
        try:
            reply = await self._ask(GetSnapshot(), _SNAPSHOT_DEADLINE_S)
        except (TimeoutError, LmxError) as error:
            # The next BeatSeen shows that the directory is still behind, and asks again.
            _log.warning("snapshot.unanswered", error=str(error) or "no reply in time")
            return
        if isinstance(reply, Snapshot):
            self._apply(reply)
        else:
            _log.warning("snapshot.refused", reply=type(reply).__name__)

    def _apply(self, snapshot: Snapshot) -> None:
        directory = advance(self._directory, snapshot)
        if directory is not self._directory:
            self._directory = directory
            self._known.set()
            self._events.directory_changed(directory)


def _unavailable(message: str) -> UnavailableError:
    return UnavailableError(ErrorCode.SUPERVISOR_UNAVAILABLE, message, retry_after_s=_RECONNECT_S)
