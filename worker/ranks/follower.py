"""A follower: a process with one part of a model, whose engine does what rank 0's does.

    python -m lmx.worker.ranks.follower MODEL INSTANCE "rank N"

Its stdin is the socket to rank 0. It ends when rank 0 does. One whose rank 0 is on another machine
begins in :mod:`lmx.worker.ranks.lent`.
"""

import contextlib
import faulthandler
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, cast

import structlog

from lmx.protocol.errors import ErrorCode, ProtocolError
from lmx.protocol.host.logs import configure_logs
from lmx.protocol.host.memory import map_large_blocks, trim_heap
from lmx.protocol.messages.ranks import (
    FollowerSpec,
    RankAdmit,
    RankBeat,
    RankFailed,
    RankOrder,
    RankRing,
    RankSettled,
)
from lmx.protocol.messages.specs import RanksSpec
from lmx.protocol.models.engine import engine_function
from lmx.protocol.states import LoadPhase, RankCall
from lmx.worker.engine.interfaces import Engine, EngineFactory
from lmx.worker.engine.values import SequenceRequest, SequenceSampling
from lmx.worker.ranks.ring import LOOPBACK, free_address, ring_environment
from lmx.worker.ranks.wire import READ_BYTES, Incoming, send
from lmx.worker.scheduling.engine_errors import is_out_of_memory
from lmx.worker.service.failures import load_failure
from lmx.worker.service.heartbeat import memory_bytes, peak_memory_bytes

log = structlog.get_logger()

_SWITCH_INTERVAL_S: Final = 0.0002
"""As in a worker (:mod:`lmx.worker.process`)."""

_LEAVE_S: Final = 18.0
"""How long the engine has to give memory of a GPU back, at most, once rank 0 is gone."""

_FAILED: Final = 1

_Message = RankAdmit | RankOrder | RankRing | RankSettled


class _LeaderGoneError(Exception):
    """Rank 0 has ended: nothing follows."""


class Following:
    """The other end of :class:`lmx.worker.ranks.leader.Leader`. The methods of
    :class:`lmx.worker.engine.interfaces.Ranks` are for the engine thread, :meth:`listen` is for
    another one. ``lease`` gets a byte for each beat, and ends all if the other end is closed."""

    def __init__(
        self, stream: socket.socket, spec: FollowerSpec, lease: socket.socket | None = None
    ) -> None:
        assert spec.worker.ranks is not None
        self.spec: RanksSpec = spec.worker.ranks
        self.rank = spec.rank
        self._worker = spec.worker
        self._stream = stream
        self._address = LOOPBACK if spec.link is None else spec.link.address
        self._lease = lease
        self._sending = threading.Lock()
        self._received: queue.SimpleQueue[_Message | None] = queue.SimpleQueue()
        self._ring_address = ""
        self._calls = 0
        # Only the engine thread writes these.
        self.memory_bytes = 0
        self.peak_memory_bytes = 0

    def listen(self, first: Iterator[Any], incoming: Incoming) -> None:
        """Receive what rank 0 sends, and send beats, until rank 0 is gone. ``first``: what came
        with the spec."""
        for message in first:
            self._received.put(message)
        interval_s = self._worker.beat_interval_s
        ends = [self._stream] if self._lease is None else [self._stream, self._lease]
        beat_s = time.monotonic()
        try:
            while True:
                left_s = beat_s - time.monotonic()
                if left_s <= 0:
                    self._beat()
                    beat_s = time.monotonic() + interval_s
                    continue
                readable = select.select(ends, [], [], left_s)[0]
                if self._lease in readable:
                    return  # Its supervisor is gone, and its memory nobody's.
                if self._stream in readable:
                    part = self._stream.recv(READ_BYTES)
                    if not part:
                        return
                    for message in incoming.take(part):
                        self._received.put(message)
        except OSError:
            return  # It is gone.
        finally:
            self._received.put(None)
            if self._lease is not None:
                # It sends no more beats, and gets the time to leave.
                with contextlib.suppress(OSError):
                    self._lease.shutdown(socket.SHUT_WR)

    def _beat(self) -> None:
        if self._lease is not None:
            # A supervisor that does not read has enough of them.
            with contextlib.suppress(BlockingIOError):
                self._lease.send(b".")
        beat = RankBeat(
            self._ring_address,
            self._calls,
            memory_bytes(self.memory_bytes),
            peak_memory_bytes(self.peak_memory_bytes),
        )
        with self._sending:
            send(self._stream, beat)

    def failed(self, error: Exception, *, loaded: bool) -> None:
        """Say that this rank ends by an error, of its load or of its engine."""
        if not loaded:
            code, message, _ = load_failure(error, self._worker.kind)
        elif is_out_of_memory(error):
            code, message = ErrorCode.WORKER_OUT_OF_MEMORY, "its engine ran out of memory."
        else:
            code = ErrorCode.ENGINE_ERROR
            message = f"its engine broke ({type(error).__name__}); see the worker's log."
        with self._sending:
            send(self._stream, RankFailed(code, message))

    def next(self) -> RankAdmit | RankOrder:
        """Return what the engine does next. Blocks until rank 0 has something to do."""
        message = self._next()
        if isinstance(message, RankSettled | RankRing):
            raise ProtocolError(f"rank 0 has settled {message!r}, and this rank has not")
        return message

    def done(self) -> None:
        """Count a call that is done."""
        self._calls += 1

    def meet(self) -> dict[str, str]:
        self._ring_address = free_address(self._address)
        self._beat()
        message = self._next()
        if not isinstance(message, RankRing):
            raise ProtocolError(f"rank {self.rank} expected addresses, and got {message!r}")
        return ring_environment(self._worker, message, self.rank)

    def admit(self, row: SequenceRequest) -> None:
        """Rank 0 says what is admitted."""

    def order(self, call: RankCall, sequence_id: int = 0) -> None:
        """Rank 0 gives the orders."""

    def settle(self, what: str, numbers: Sequence[int]) -> Sequence[int]:
        del numbers
        return self._settled(what)

    def check(self, what: str, numbers: Sequence[int]) -> None:
        expected = self._settled(what)
        if tuple(numbers) != expected:
            raise RuntimeError(f"{what}: rank {self.rank} has {tuple(numbers)}, rank 0 {expected}")

    def _settled(self, what: str) -> tuple[int, ...]:
        message = self._next()
        if not isinstance(message, RankSettled) or message.what != what:
            raise ProtocolError(f"rank {self.rank} expected {what!r}, and rank 0 sent {message!r}")
        return message.numbers

    def _next(self) -> _Message:
        message = self._received.get()
        if message is None:
            self._received.put(None)
            raise _LeaderGoneError
        return message


class _Elsewhere:
    """Stands for a constraint that rank 0 has."""

    def mask(self) -> None:
        """Allow all tokens: rank 0 draws them."""

    def accept(self, token: int) -> None:
        """Take a token."""

    def fork(self) -> "_Elsewhere":
        """Return a copy."""
        return self


def _row(message: RankAdmit) -> SequenceRequest:
    return SequenceRequest(
        message.sequence_id,
        message.prompt,
        message.max_tokens,
        SequenceSampling(0.0),
        constraint=_Elsewhere() if message.constrained else None,
        prompt_logprobs=message.prompt_logprobs,
        cache_salt=message.cache_salt,
        generated_tokens=message.generated_tokens,
        priority=message.priority,
    )


def _advanced(phase: LoadPhase, fraction: float | None, detail: str) -> None:
    """Rank 0 reports how far the load is."""


def _follow(following: Following, engine: Engine) -> None:
    """Do what rank 0 orders, until it orders to leave or is gone."""
    generator, resident = engine.generator, engine.resident
    assert generator is not None
    for_rows: Mapping[RankCall, Any] = {
        RankCall.REMOVE: generator.remove,
        RankCall.PREEMPT: generator.preempt,
    }
    for_all: Mapping[RankCall, Any] = {
        RankCall.STEP: generator.step,
        RankCall.FLUSH: generator.flush,
        RankCall.REST: resident.rest,
        RankCall.SHRINK: resident.shrink,
        RankCall.REGROW: resident.regrow,
    }
    while True:
        following.memory_bytes = resident.memory_bytes()
        following.peak_memory_bytes = resident.peak_memory_bytes()
        message = following.next()
        match message:
            case RankAdmit():
                generator.admit(_row(message))
            case RankOrder(RankCall.LEAVE):
                return
            case RankOrder(call, sequence_id) if call in for_rows:
                for_rows[call](sequence_id)
            case RankOrder(call):
                for_all[call]()
                if call is RankCall.REST:
                    trim_heap()
        following.done()


def _run(following: Following, spec: FollowerSpec, leave: Callable[[], None]) -> None:
    """Load, follow and end the process. On a thread of its own, which is the engine thread.
    ``leave`` waits until all was sent."""
    engine: Engine | None = None
    status = 0
    try:
        factory = cast("EngineFactory", engine_function(spec.worker.engine))
        engine = factory(spec.worker, _advanced, following)
        log.info("rank.loaded", rank=spec.rank)
        _follow(following, engine)
        engine.resident.close()
    except _LeaderGoneError:
        log.info("rank.leader_gone", rank=spec.rank)
    except BaseException as error:
        log.exception("rank.failed", rank=spec.rank)
        status = _FAILED
        # Rank 0 may be gone as well, which may be the reason.
        with contextlib.suppress(OSError):
            failure = error if isinstance(error, Exception) else RuntimeError(repr(error))
            following.failed(failure, loaded=engine is not None)
            leave()
    try:
        if engine is not None:
            engine.resident.release()
    except Exception:
        log.exception("rank.release_failed", rank=spec.rank)
    finally:
        sys.stderr.flush()
        os._exit(status)


def prepare() -> None:
    """Set up the process of a follower."""
    map_large_blocks()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # Whoever ends the worker signals the whole process group, and rank 0 decides what ends when.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()


def follow(
    following: Following,
    spec: FollowerSpec,
    first: Iterator[Any],
    incoming: Incoming,
    leave: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Do what rank 0 says until it is gone. ``first`` is what came with the spec, ``leave`` waits
    until all was sent, as what was written to a socket pair is."""
    worker = spec.worker
    configure_logs(
        "worker", worker.log.level, model=worker.model_id, instance=worker.instance, rank=spec.rank
    )
    arguments = following, spec, leave
    engine = threading.Thread(target=_run, args=arguments, name="engine", daemon=True)
    engine.start()
    following.listen(first, incoming)
    # The engine may be in a computation that waits for the others, for ever.
    engine.join(_LEAVE_S if sys.platform == "darwin" else 0.5)
    os._exit(0)


def main() -> None:
    """Run the follower; never returns."""
    prepare()
    stream = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    incoming = Incoming()
    first: Iterator[Any] = iter(())
    spec = None
    while spec is None:
        part = stream.recv(READ_BYTES)
        if not part:
            return  # Rank 0 ended before it said anything.
        first = incoming.take(part)
        spec = next(first, None)
    if not isinstance(spec, FollowerSpec):
        sys.exit(f"expected a FollowerSpec, got {type(spec).__name__}")
    follow(Following(stream, spec), spec, first, incoming)


if __name__ == "__main__":
    main()
