"""The plan's way between machines: what two ranks of one machine say over a socket pair goes over
TCP here, sealed with CURVE. Each side knows the other's public key before; nobody else gets in.

A thread at each end carries the bytes between the socket pair, which is all that
:class:`lmx.worker.ranks.leader.Leader` and the follower see, and the ZeroMQ socket. When the
connection ends, or the other machine does not answer for ``silence_s``, it closes the socket pair.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from lmx.protocol.messages.ranks import FollowerLink
from lmx.worker.ranks.wire import READ_BYTES

log = structlog.get_logger()

_JOIN_S: Final = 100.0
"""For how long both sides wait for the connection: the follower's process has to begin, and rank 0
lets nobody in before all machines have answered, which may take 80 s."""

_LOOK_MS: Final = 250
_BROKEN_S: Final = 1.0
"""A connection that takes nothing for this long has ended."""

_LINGER_MS: Final = 500
_ZAP: Final = "inproc://zeromq.zap.01"
_ENDS: Final = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


def _pair(context: zmq.Context[Any], beat_s: float, silence_s: float) -> zmq.Socket[bytes]:
    """Return a socket that notices a machine which does not answer, without anybody's help."""
    found: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    found.setsockopt(zmq.LINGER, _LINGER_MS)
    # ZeroMQ itself would give a connection up after 30 s.
    found.setsockopt(zmq.HANDSHAKE_IVL, int(_JOIN_S * 1000))
    found.setsockopt(zmq.HEARTBEAT_IVL, max(1, int(beat_s * 1000)))
    found.setsockopt(zmq.HEARTBEAT_TIMEOUT, max(1, int(silence_s * 1000)))
    found.setsockopt(zmq.SNDTIMEO, max(1, int(silence_s * 1000)))
    return found


class _Wire:
    """One connection, and the end of the socket pair that belongs to it."""

    def __init__(self, remote: zmq.Socket[bytes]) -> None:
        self.remote = remote
        self.local, self.inner = socket.socketpair()
        """``inner`` is for the rank."""
        self.opened = False
        self._broken_s: float | None = None

    def carry(self, readable: Mapping[Any, int]) -> bool:
        """Carry what has come on either side; return whether the connection lives."""
        try:
            if self.local.fileno() in readable:
                part = self.local.recv(READ_BYTES)
                if not part or not self._send(part):
                    return False
            if self.remote in readable:
                self.opened = True
                while True:
                    self.local.sendall(self.remote.recv(zmq.NOBLOCK))
        except zmq.Again:
            pass
        except (OSError, zmq.ZMQError):
            return False
        return not self._is_broken()

    def _send(self, part: bytes) -> bool:
        """Return whether a part was sent. One that was not is lost, and the connection with it."""
        try:
            self.remote.send(part)
        except zmq.Again:
            return False
        return True

    def _is_broken(self) -> bool:
        # The socket that was bound has nobody to send to once the connection has ended.
        now_s = time.monotonic()
        if not self.opened or int(self.remote.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
            self._broken_s = None
        elif self._broken_s is None:
            self._broken_s = now_s
        return self._broken_s is not None and now_s - self._broken_s > _BROKEN_S

    def close(self) -> None:
        self.local.close()
        self.remote.close()


class FollowerDoor:
    """Rank 0's side: one port for each follower on another machine.

    Made, :meth:`listen` and :meth:`admit` called on one thread; then a thread of its own carries
    the bytes until :meth:`close`.
    """

    def __init__(self, beat_s: float, silence_s: float) -> None:
        self._times = beat_s, silence_s
        self._context: zmq.Context[Any] = zmq.Context()
        public, self._secret = zmq.curve_keypair()
        self.public_key: Final = public.decode()
        self._keys: dict[bytes, bytes] = {}
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind(_ZAP)
        self._wires: list[_Wire] = []
        self._thread = threading.Thread(target=self._run, name="rank links", daemon=True)

    def listen(self, address: str) -> str:
        """Return the endpoint for the next follower, on this address. Raises ``zmq.ZMQError``."""
        remote = _pair(self._context, *self._times)
        remote.setsockopt(zmq.CURVE_SERVER, True)
        remote.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
        remote.setsockopt(zmq.ZAP_DOMAIN, str(len(self._wires)).encode())
        remote.bind(f"tcp://{address}:*")
        self._wires.append(_Wire(remote))
        return str(remote.getsockopt_string(zmq.LAST_ENDPOINT))

    def admit(self, public_keys: Sequence[str]) -> list[socket.socket]:
        """Let each follower in, by its key; return the stream of each."""
        for number, key in enumerate(public_keys):
            self._keys[str(number).encode()] = key.encode()
        self._thread.start()
        return [wire.inner for wire in self._wires]

    def close(self) -> None:
        """End all connections, after what was sent. The streams must be closed, or are no use."""
        if self._thread.ident is not None:
            self._thread.join(_LINGER_MS / 1000 + 2 * _LOOK_MS / 1000)

    def _run(self) -> None:
        wires = list(self._wires)
        poller = zmq.Poller()
        poller.register(self._zap, zmq.POLLIN)
        for wire in wires:
            poller.register(wire.remote, zmq.POLLIN)
            poller.register(wire.local.fileno(), zmq.POLLIN)
        until_s = time.monotonic() + _JOIN_S
        while wires:
            readable = dict(poller.poll(_LOOK_MS))
            if self._zap in readable:
                self._judge()
            late = time.monotonic() > until_s
            for wire in list(wires):
                if wire.carry(readable) and (wire.opened or not late):
                    continue
                poller.unregister(wire.remote)
                poller.unregister(wire.local.fileno())
                wires.remove(wire)
                wire.close()
        self._zap.close(0)
        self._context.term()

    def _judge(self) -> None:
        """Answer ZeroMQ's question about somebody who connects (ZAP, RFC 27)."""
        version, number, domain, _address, _identity, mechanism, *proofs = (
            self._zap.recv_multipart()
        )
        known = self._keys.get(domain)
        right = mechanism == b"CURVE" and len(proofs) == 1 and z85.encode(proofs[0]) == known
        if not right:
            log.warning("rank.refused_stranger", domain=domain.decode("utf-8", "replace"))
        answer = (b"200", b"OK") if right else (b"400", b"another key is expected")
        self._zap.send_multipart([version, number, *answer, b"", b""])


def join(
    link: FollowerLink, keys: tuple[bytes, bytes], beat_s: float, silence_s: float
) -> tuple[socket.socket, threading.Thread]:
    """Connect a follower to rank 0, with its own public key and its secret one. Returns its stream,
    and the thread that carries the bytes. The thread closes the stream and ends when the connection
    ends, does not come about in time, or rank 0's machine does not answer; and, once the
    stream was shut down, when all was sent."""
    context: zmq.Context[Any] = zmq.Context()
    remote = _pair(context, beat_s, silence_s)
    remote.setsockopt(zmq.CURVE_SERVERKEY, link.server_key.encode())
    remote.setsockopt(zmq.CURVE_PUBLICKEY, keys[0])
    remote.setsockopt(zmq.CURVE_SECRETKEY, keys[1])
    monitor = remote.get_monitor_socket(_ENDS | zmq.EVENT_HANDSHAKE_SUCCEEDED)
    remote.connect(link.endpoint)
    wire = _Wire(remote)
    thread = threading.Thread(
        target=_follow, args=(wire, monitor, context), name="rank link", daemon=True
    )
    thread.start()
    return wire.inner, thread


def _follow(wire: _Wire, monitor: zmq.Socket[bytes], context: zmq.Context[Any]) -> None:
    poller = zmq.Poller()
    for each in (wire.remote, wire.local.fileno(), monitor):
        poller.register(each, zmq.POLLIN)
    joined, until_s = False, time.monotonic() + _JOIN_S
    while joined or time.monotonic() < until_s:
        readable = dict(poller.poll(_LOOK_MS))
        if monitor in readable:
            event = parse_monitor_message(monitor.recv_multipart())["event"]
            if event & _ENDS:
                log.warning("rank.link_ended", reason=zmq.Event(event).name)
                # What was sent before the end may have come with it.
                wire.carry({wire.remote: zmq.POLLIN})
                break
            joined = True
        # What is said before the connection waits for it.
        if not wire.carry(readable if joined else {}):
            break
        if not joined:
            time.sleep(0.01)
    with contextlib.suppress(zmq.ZMQError):
        wire.remote.disable_monitor()
    monitor.close(0)
    wire.close()
    context.term()
