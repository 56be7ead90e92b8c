"""The clients by which the command line asks a running supervisor. They block, with a deadline.

:func:`open_client` returns the one for a place: :class:`ControlClient` asks the supervisor of a
home on this machine, and :class:`lmx.supervisor.sockets.remote.RemoteClient` another machine's over
HTTP. :class:`ReconnectingClient` continues asking when the supervisor restarts, for commands that
watch or wait.
"""

from __future__ import annotations

import fcntl
import os
import time
from types import TracebackType
from typing import Any, Final, Protocol, Self

import zmq

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.protocol.messages import control
from lmx.protocol.messages.status import GetStatus, Status, SystemStatus
from lmx.protocol.wire import codec
from lmx.protocol.wire.sockets import Role, open_socket
from lmx.supervisor.sockets.http_client import Remote
from lmx.supervisor.state.home import Home, lock_holder

Place = Home | Remote
"""Which lmx a command is about: the one of a home on this machine, or one at an address."""

_ANSWER_S: Final = 30.0
LONG_ANSWER_S: Final = 120.0
"""For questions that are answered when another process of lmx has started."""
_LOOK_AGAIN_S: Final = 0.2


def supervisor_runs(home: Home) -> bool:
    """Return whether a supervisor holds this home's lock. A command may hold it too, and
    does not count. If nobody holds it, this function holds the lock for an instant."""
    try:
        descriptor = os.open(home.lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = lock_holder(descriptor)
        return holder is None or not holder.is_command
    finally:
        os.close(descriptor)
    return False


def not_running(home: Home) -> OperationError:
    """Return the error for a home without a supervisor. It names the processes that a supervisor
    left behind."""
    # Only this case needs psutil and structlog, which take longer to import than most commands run.
    from lmx.supervisor.state.process_records import Records

    orphans = Records(home.state).orphans()
    if not orphans:
        return OperationError(
            ErrorCode.NOT_RUNNING,
            f"lmx is not running (home {home.path}): start it with `lmx serve` or `lmx start`",
        )
    pids = ", ".join(str(record.pid) for record in orphans)
    return OperationError(
        ErrorCode.NOT_RUNNING,
        f"the supervisor is not running, but what it started still serves (pids {pids}). That of "
        "`lmx start` or of a service is started again by itself within half a minute; otherwise "
        "`lmx start --take-over recorded` continues as it was, and `lmx stop` ends it",
    )


class Client(Protocol):
    """A connection to a supervisor, as a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def close(self) -> None:
        """Close the connection. Questions without an answer are given up."""

    def ask(self, question: Any) -> Any:
        """Return the reply. Raises :class:`OperationError`."""

    def status(self) -> SystemStatus:
        """Return the status. Raises :class:`OperationError`."""


def open_client(place: Place, answer_s: float = _ANSWER_S) -> Client:
    """Return a connection to the supervisor of a place. ``answer_s`` is how long an answer may
    take."""
    if isinstance(place, Home):
        return ControlClient(place, answer_s)
    from lmx.supervisor.sockets.remote import RemoteClient  # few commands need it

    return RemoteClient(place, answer_s)


class ControlClient:
    """A connection to the supervisor's control socket, as a context manager. ``answer_s`` is how
    long an answer may take."""

    def __init__(self, home: Home, answer_s: float = _ANSWER_S) -> None:
        self._home = home
        self._answer_s = answer_s
        self._correlation = 0
        self._context = zmq.Context()
        self._socket = open_socket(self._context, Role.CONTROL_REQUESTER)
        self._socket.connect(home.run.control)

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Questions without an answer are given up."""
        self._context.destroy(linger=0)

    def ask(self, question: Any) -> Any:
        """Return the reply. Raises :class:`OperationError`: not_running when there is no
        supervisor, supervisor_unavailable when it does not answer in time, and the supervisor's
        own error when it replies Denied."""
        self._correlation += 1
        self._socket.send(codec.encode_any(question, self._correlation))
        while True:
            self._wait()
            envelope = codec.decode(self._socket.recv())
            if envelope.correlation == self._correlation:  # not a late answer to an earlier one
                break
        reply = envelope.message
        if isinstance(reply, control.Denied):
            raise OperationError(
                reply.code,
                reply.message,
                param=reply.param,
                retry_after_s=reply.retry_after_s,
                final=reply.final,
            )
        return reply

    def status(self) -> SystemStatus:
        reply: Status = self.ask(GetStatus())
        return reply.status

    def _wait(self) -> None:
        """Wait for an answer, and give up as soon as no supervisor holds the lock."""
        deadline_s = time.monotonic() + self._answer_s
        while True:
            if not supervisor_runs(self._home):
                raise not_running(self._home)
            if self._socket.poll(_LOOK_AGAIN_S * 1000, zmq.POLLIN):
                return
            if time.monotonic() > deadline_s:
                raise OperationError(
                    ErrorCode.SUPERVISOR_UNAVAILABLE,
                    f"the supervisor did not answer within {self._answer_s:g} s: "
                    f"see {self._home.supervisor_log}",
                )


def status_of(home: Home) -> SystemStatus | None:
    """Return the status of the lmx that runs. None if none does, if it is too busy to answer, or if
    it is of another version."""
    try:
        with ControlClient(home) as client:
            return client.status()
    except LmxError:
        return None


_PATIENCE_S: Final = 30.0
"""A supervisor that is restarted takes over the running processes within a few seconds."""
_EACH_ANSWER_S: Final = 3.0
"""A question that a supervisor had received before its restart is never answered."""
_AWAY: Final = (ErrorCode.NOT_RUNNING, ErrorCode.SUPERVISOR_UNAVAILABLE)


class ReconnectingClient:
    """A client that continues when the supervisor restarts, as a context manager. It may ask a
    question twice, so it is only for questions that change nothing.

    ``answered`` means that the supervisor gave an answer a moment ago, so that it is there or comes
    back."""

    def __init__(
        self, place: Place, patience_s: float = _PATIENCE_S, *, answered: bool = False
    ) -> None:
        self._place = place
        self._patience_s = patience_s
        self._client: Client | None = None
        self._answered_at_s = time.monotonic() if answered else None

    def __enter__(self) -> ReconnectingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def ask(self, question: Any) -> Any | None:
        """Return the reply, or None while there is no supervisor to give one.

        Raises :class:`OperationError` when the question is denied, when the first question gets no
        answer, and when no question was answered for ``patience_s``.
        """
        if self._client is None:
            self._client = open_client(self._place, _EACH_ANSWER_S)
        try:
            reply = self._client.ask(question)
        except OperationError as error:
            if error.code not in _AWAY:
                raise
            self._drop()
            if (
                self._answered_at_s is None
                or time.monotonic() > self._answered_at_s + self._patience_s
            ):
                raise
            return None
        self._answered_at_s = time.monotonic()
        return reply

    def status(self) -> SystemStatus | None:
        """Return the status, or None while there is no supervisor. Raises what ``ask`` raises."""
        reply: Status | None = self.ask(GetStatus())
        return reply.status if reply is not None else None

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
