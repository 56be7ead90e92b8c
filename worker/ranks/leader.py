"""Rank 0's side of a divided model: it starts the followers, has their engines do what its own
does, and finds out when one of them has ended or stopped."""

import contextlib
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, OperationError, ProtocolError
from lmx.protocol.host.processor_wait import ProcessorWait
from lmx.protocol.host.same_model import digest, versions
from lmx.protocol.messages import ranks as messages
from lmx.protocol.messages.specs import RanksSpec, WorkerSpec
from lmx.protocol.messages.status import RankFigures
from lmx.protocol.states import RankCall
from lmx.worker.engine.values import SequenceRequest
from lmx.worker.ranks.link import FollowerDoor
from lmx.worker.ranks.ring import LOOPBACK, free_address, reach, ring_environment
from lmx.worker.ranks.wire import READ_BYTES, Incoming, send

log = structlog.get_logger()

_LOOK_S: Final = 0.25
_PAUSED_S: Final = 2.0
_FAILED_S: Final = 1.0
"""How long a follower whose socket has closed may take to end, so that its status is known."""

_STARTED_ELSEWHERE_S: Final = 80.0
"""How long other machines have to start their followers: they read samples of the weights first."""


@dataclass(eq=False)
class _Follower:
    rank: int
    pid: int
    stream: socket.socket
    heard_s: float
    process: subprocess.Popen[bytes] | None = None
    """None: it is on another machine, whose supervisor has started it."""
    machine: str = ""
    incoming: Incoming = field(default_factory=Incoming)
    beat: messages.RankBeat | None = None
    wait: ProcessorWait | None = None
    """What it has waited for a processor since it is late."""

    @property
    def figures(self) -> RankFigures:
        beat = self.beat
        return RankFigures(
            rank=self.rank,
            pid=self.pid,
            memory_bytes=beat.memory_bytes if beat else 0,
            peak_memory_bytes=beat.peak_memory_bytes if beat else 0,
            machine=self.machine,
            calls=beat.calls if beat else 0,
        )


class Leader:
    """The followers of a worker. See :class:`lmx.worker.engine.interfaces.Ranks`, whose methods are
    for the engine thread.

    ``lost`` is called once, on a thread of its own, when a follower has ended or stopped: the group
    is of no use then. The others may wait for that one in a computation for ever, which nothing but
    the end of their processes ends. ``want`` sends the supervisor a wish for followers on other
    machines, whose answer :meth:`answered` takes.
    """

    rank: Final = 0

    def __init__(
        self,
        spec: WorkerSpec,
        lost: Callable[[LmxError], None],
        want: Callable[[messages.WantFollowers], None] | None = None,
    ) -> None:
        """Starts nothing. ``spec`` has ranks."""
        assert spec.ranks is not None
        self._want = want
        self._door: FollowerDoor | None = None
        self._address = LOOPBACK
        self._answer: messages.FollowersStarted | messages.FollowersRefused | None = None
        self.spec: RanksSpec = spec.ranks
        self._worker = spec
        self._lost = lost
        self._followers: list[_Follower] = []
        self._meeting = threading.Condition()
        self._failure: LmxError | None = None
        self._ending = False
        self._watch = threading.Thread(target=self._watch_all, name="ranks", daemon=True)

    @property
    def figures(self) -> tuple[RankFigures, ...]:
        """What the followers take. From any thread."""
        return tuple(follower.figures for follower in self._followers)

    def start(self) -> None:
        """Start the followers. Raises ``OSError``, and :class:`OperationError` with what another
        machine says."""
        if self.spec.hosts:
            self._start_elsewhere()
        else:
            for rank in range(1, self.spec.count):
                self._followers.append(self._start(rank))
        self._watch.start()

    def answered(self, answer: messages.FollowersStarted | messages.FollowersRefused) -> None:
        """Take what the supervisor says about the followers on other machines. From any thread."""
        with self._meeting:
            self._answer = answer
            self._meeting.notify_all()

    def _start_elsewhere(self) -> None:
        assert self._want is not None
        door = FollowerDoor(self._worker.beat_interval_s, self.spec.silence_s)
        meetings = []
        for each in self.spec.hosts:
            if not each.host:
                raise OperationError(
                    ErrorCode.MODEL_LOAD_FAILED,
                    f"hosts: {each.name!r} is no peer of this machine: `lmx pair` makes it one, "
                    "and `lmx peers list` shows them",
                )
            try:
                theirs, self._address = reach(each.host)
            except OSError as error:
                raise OperationError(
                    ErrorCode.MODEL_LOAD_FAILED,
                    f"{each.name} has no IPv4 address by which ranks can reach it: {each.host} "
                    f"({error.strerror or error})",
                ) from error
            meetings.append(messages.Meeting(door.listen(self._address), door.public_key, theirs))
        found = digest(Path(self._worker.model_path))
        self._want(
            messages.WantFollowers(self._worker.instance, found, versions(), tuple(meetings))
        )
        with self._meeting:
            self._meeting.wait_for(lambda: self._answer is not None, _STARTED_ELSEWHERE_S)
        match self._answer:
            case messages.FollowersStarted(followers):
                pass
            case messages.FollowersRefused(code, message):
                raise OperationError(code, message)
            case None:
                raise OperationError(
                    ErrorCode.MODEL_LOAD_FAILED,
                    "the other machines have not started their ranks within "
                    f"{_STARTED_ELSEWHERE_S:.0f} s: see `lmx status --all`",
                )
        self._door = door
        streams = door.admit([one.public_key for one in followers])
        places = zip(self.spec.hosts, followers, streams, strict=True)
        for rank, (host, one, stream) in enumerate(places, 1):
            log.info("rank.started", rank=rank, machine=host.name, rank_pid=one.pid)
            self._followers.append(
                _Follower(rank, one.pid, stream, time.monotonic(), machine=host.name)
            )

    def _start(self, rank: int) -> _Follower:
        ours, theirs = socket.socketpair()
        names = (self._worker.model_id, self._worker.instance, f"rank {rank}")
        with theirs:
            # In the worker's own process group, and with its mark: whoever ends the worker ends
            # them with it.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "lmx.worker.ranks.follower", *names],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
            )
        log.info("rank.started", rank=rank, rank_pid=process.pid)
        follower = _Follower(rank, process.pid, ours, time.monotonic(), process)
        send(ours, messages.FollowerSpec(self._worker, rank))
        return follower

    def meet(self) -> dict[str, str]:
        """Wait until all followers are ready to make the group; return the variables for that."""
        with self._meeting:
            self._meeting.wait_for(self._all_meet_or_lost)
            if self._failure is not None:
                raise self._failure
            theirs = [follower.beat.ring_address for follower in self._followers if follower.beat]
        # The last rank connects to this one.
        addresses = (free_address(self._address), *theirs)
        ring = messages.RankRing(addresses, self.spec.rdma_devices)
        self._send_all(ring)
        return ring_environment(self._worker, ring, self.rank)

    def admit(self, row: SequenceRequest) -> None:
        """Have the followers admit a row."""
        self._send_all(
            messages.RankAdmit(
                row.sequence_id,
                tuple(row.prompt),
                row.max_tokens,
                constrained=row.constraint is not None,
                prompt_logprobs=row.prompt_logprobs,
                cache_salt=row.cache_salt,
                generated_tokens=row.generated_tokens,
                priority=row.priority,
            )
        )

    def order(self, call: RankCall, sequence_id: int = 0) -> None:
        """Have the followers do a call that this rank does too."""
        if call is RankCall.LEAVE:
            self._ending = True
        self._send_all(messages.RankOrder(call, sequence_id))

    def settle(self, what: str, numbers: Sequence[int]) -> Sequence[int]:
        """Let this rank's numbers be those of all."""
        self._send_all(messages.RankSettled(what, tuple(numbers)))
        return numbers

    def check(self, what: str, numbers: Sequence[int]) -> None:
        """Have the followers compare their numbers with these: one with others ends."""
        self._send_all(messages.RankSettled(what, tuple(numbers)))

    def close(self, timeout_s: float) -> None:
        """End all followers, those that have not left within ``timeout_s`` by force. Rank 0 may
        have ended without an order to leave: what each sees is the end of its stream."""
        self._ending = True
        deadline_s = time.monotonic() + timeout_s
        for follower in self._followers:
            with contextlib.suppress(OSError):
                follower.stream.shutdown(socket.SHUT_WR)
        for follower in self._followers:
            if follower.process is not None:
                try:
                    follower.process.wait(max(0.0, deadline_s - time.monotonic()))
                except subprocess.TimeoutExpired:
                    follower.process.kill()
            follower.stream.close()
        if self._door is not None:
            self._door.close()

    def _send_all(self, message: Any) -> None:
        for follower in self._followers:
            try:
                send(follower.stream, message)
            except OSError as error:
                if not self._ending:
                    # The watch says why it is gone.
                    raise RuntimeError(f"rank {follower.rank} is gone") from error

    def _all_meet_or_lost(self) -> bool:
        beats = [follower.beat for follower in self._followers]
        return self._failure is not None or all(beat and beat.ring_address for beat in beats)

    def _watch_all(self) -> None:
        try:
            failure = self._watch_until_lost()
        except Exception as error:
            log.exception("ranks.watch_failed")
            why = f"the followers are not watched any more ({type(error).__name__})"
            failure = OperationError(ErrorCode.WORKER_CRASHED, why)
        if failure is None or self._ending:
            return
        log.error("rank.lost", reason=failure.message, calls=self._calls())
        with self._meeting:
            self._failure = failure
            self._meeting.notify_all()
        self._lost(failure)

    def _watch_until_lost(self) -> LmxError | None:
        """Return why a follower is lost; None: the end was ordered."""
        with selectors.DefaultSelector() as selector:
            for follower in self._followers:
                selector.register(follower.stream, selectors.EVENT_READ, follower)
            looked_s = time.monotonic()
            while not self._ending:
                found = [self._receive(key.data) for key, _ in selector.select(_LOOK_S)]
                now_s = time.monotonic()
                if now_s - looked_s > _PAUSED_S:
                    # This process, and perhaps all of them, did not run.
                    for follower in self._followers:
                        follower.heard_s += now_s - looked_s
                looked_s = now_s
                found += map(self._silent, self._followers)
                if (failure := next(filter(None, found), None)) is not None:
                    return failure
        return None

    def _calls(self) -> dict[int, int]:
        return {each.rank: each.beat.calls for each in self._followers if each.beat is not None}

    def _receive(self, follower: _Follower) -> LmxError | None:
        """Take what a follower says; return why it is lost."""
        try:
            part = follower.stream.recv(READ_BYTES)
        except OSError:
            part = b""
        if not part:
            return self._ended(follower)
        follower.heard_s, follower.wait = time.monotonic(), None
        try:
            for message in follower.incoming.take(part):
                match message:
                    case messages.RankBeat():
                        with self._meeting:
                            follower.beat = message
                            self._meeting.notify_all()
                    case messages.RankFailed(code, text):
                        return OperationError(code, f"{self._name(follower)}: {text}")
        except ProtocolError as error:
            return OperationError(ErrorCode.WORKER_CRASHED, f"{self._name(follower)}: {error}")
        return None

    def _ended(self, follower: _Follower) -> LmxError:
        how = "ended, or the connection to it"
        if follower.process is not None:
            try:
                status = follower.process.wait(_FAILED_S)
            except subprocess.TimeoutExpired:
                how = "closed its socket"
            else:
                how = f"exited with status {status}" if status >= 0 else _killed_by(-status)
        return OperationError(
            ErrorCode.WORKER_CRASHED,
            f"{self._name(follower)} {how}, and all ranks were ended with it. The model is started "
            "again.",
        )

    def _silent(self, follower: _Follower) -> LmxError | None:
        """Return why a follower is lost that says nothing. The time in which it waits for a
        processor doesn't count."""
        now_s = time.monotonic()
        if now_s - follower.heard_s < self.spec.silence_s / 2:
            return None
        if follower.process is not None:
            if follower.wait is None:
                follower.wait = ProcessorWait(follower.pid)
            follower.heard_s += follower.wait.more_s()
        silent_s = now_s - follower.heard_s
        if silent_s < self.spec.silence_s:
            return None
        return OperationError(
            ErrorCode.WORKER_HUNG,
            f"{self._name(follower)} said nothing for {silent_s:.1f} s, and all ranks were ended "
            "with it. The model is started again.",
        )

    def _name(self, follower: _Follower) -> str:
        where = f" on {follower.machine}" if follower.machine else ""
        return f"rank {follower.rank} of the model's {self.spec.count} (pid {follower.pid}{where})"


def _killed_by(number: int) -> str:
    try:
        return f"was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"was ended by signal {number}"
