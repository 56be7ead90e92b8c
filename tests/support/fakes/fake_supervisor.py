"""A supervisor for the CLI's tests: it holds the lock of a home and answers as it is told."""

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages import control
from lmx.protocol.messages.status import ModelStatus, SystemStatus
from lmx.protocol.wire import codec
from lmx.protocol.wire.sockets import Role, open_socket
from lmx.supervisor.state.home import Home
from tests.support.fakes.admin_lines import reported_status, status_line

Answers = dict[type[Any], Callable[[Any], Any]]


@contextlib.contextmanager
def fake_supervisor(home: Home, answers: Answers) -> Iterator[list[Any]]:
    """Answer questions by their type until the end of the block; yields those that came."""
    home.prepare()
    # Not a SupervisorLock, which is held until the process ends.
    lock = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    asked: list[Any] = []
    context = zmq.Context()
    socket = open_socket(context, Role.DATA_SERVER)
    socket.bind(home.run.control)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            if not socket.poll(20):
                continue
            identity, frame = socket.recv_multipart()[:2]
            envelope = codec.decode(frame)
            asked.append(envelope.message)
            answer = answers.get(type(envelope.message))
            reply = (
                answer(envelope.message)
                if answer is not None
                else control.Denied(ErrorCode.PROTOCOL_ERROR, "the fake was not told an answer")
            )
            if reply is not None:
                socket.send_multipart([identity, codec.encode(reply, envelope.correlation)])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        over.set()
        thread.join(90)
        context.destroy(linger=0)
        os.close(lock)


def model_line(model: str, state: str = "ready", **values: Any) -> ModelStatus:
    """Return a model's part of a status."""
    loaded = state in ("ready", "draining")
    reported = {
        "aliases": [], "source": "/x", "family": None, "pid": 4711 if loaded else None,
        "instance": f"{model}-1" if loaded else None, "memory_bytes": 2**30 if loaded else 0,
        "reserved_bytes": 2**31 if loaded else 0, "peak_memory_bytes": 0, "requests_total": 7,
        "tokens_total": 100, "loaded_at_s": None, "idle_s": None, **values,
    }  # fmt: skip
    return status_line(model, state, **reported)


def status(*models: ModelStatus, **supervisor: Any) -> SystemStatus:
    """Return a status with these models."""
    usual: dict[str, Any] = {
        "version": "0.1.0", "uptime_s": 61.0, "budget_bytes": 2**33, "reserved_bytes": 2**32,
        "machine_memory_bytes": 2**34, "machine_used_bytes": 2**33,
    }  # fmt: skip
    return reported_status(*models, **(usual | supervisor))
