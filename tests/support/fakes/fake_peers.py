"""A supervisor and workers that do what a test tells them, in the test's own process.

They speak the real protocol on real sockets. They hold no logic of their own beyond it: what
is loaded, what is answered and what is left unanswered is scripted by the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import zmq
import zmq.asyncio

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import (
    Acquire,
    Acquired,
    BeatSeen,
    Denied,
    Identify,
    RouterBeat,
    RouterHello,
    WorkerExited,
)
from lmx.protocol.messages.counts import CountsKept, ReportCounts
from lmx.protocol.messages.data import (
    Accepted,
    Cancel,
    ChoiceEnded,
    Credit,
    Delta,
    Failed,
    Finished,
    Generate,
    Outputs,
    Preparing,
    Pulse,
    Refused,
    Reread,
    Timings,
    Usage,
)
from lmx.protocol.messages.snapshot import GetSnapshot, ModelView, NamePattern, Route, Snapshot
from lmx.protocol.messages.speech import Speak, Transcribe
from lmx.protocol.messages.tasks import DescribeTokenizer, Detokenize, Embed, Rerank, Task, Tokenize
from lmx.protocol.states import ExitCause, FinishReason, SlotState, WorkerState
from lmx.protocol.wire.codec import decode, encode
from lmx.protocol.wire.endpoints import RunDirectory, new_epoch
from lmx.protocol.wire.sockets import Role, open_socket

_T = TypeVar("_T")

DEADLINE_S = 90.0
MAX_WAITING = 1000


async def until(condition: Callable[[], _T], deadline_s: float = DEADLINE_S) -> _T:
    """Wait until ``condition()`` is true and return its value; fails after ``deadline_s``."""
    give_up_at = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > give_up_at:
            raise AssertionError(f"not so within {deadline_s} s")
        await asyncio.sleep(0.005)
    return value


@contextlib.contextmanager
def short_run_directory() -> Any:
    """A run directory whose path leaves room for a socket's name (pytest's own does not)."""
    path = Path(tempfile.mkdtemp(prefix="lmx-"))
    try:
        run_dir = RunDirectory(path)
        run_dir.prepare()
        yield run_dir
    finally:
        shutil.rmtree(path, ignore_errors=True)


def ready(model_id: str, instance: str, **fields: Any) -> ModelView:
    """A model that answers in worker ``instance``."""
    fields.setdefault("max_waiting", MAX_WAITING)
    return ModelView(
        model_id=model_id,
        aliases=fields.pop("aliases", ()),
        source=fields.pop("source", f"owner/{model_id}"),
        slot=SlotState.OCCUPIED,
        worker=WorkerState.READY,
        instance=instance,
        **fields,
    )


def cold(model_id: str, slot: SlotState = SlotState.COLD, **fields: Any) -> ModelView:
    """A model that has no worker."""
    fields.setdefault("max_waiting", MAX_WAITING)
    return ModelView(
        model_id=model_id,
        aliases=fields.pop("aliases", ()),
        source=fields.pop("source", f"owner/{model_id}"),
        slot=slot,
        **fields,
    )


class FakeSupervisor:
    """Binds control and events. ``seen`` holds every message that came, in order.

    ``answers_beats`` and ``answers_acquire`` can be switched off; ``acquire_reply`` decides
    what an Acquire gets (None: nothing, until the test calls :meth:`reply`). ``replies`` has the
    reply to any other kind of question, or a function of the question that returns it; None means
    that none comes. A kind that it lacks is refused.
    """

    def __init__(self, context: zmq.asyncio.Context, run_dir: RunDirectory) -> None:
        self.epoch = new_epoch()
        self.since_s = time.time()
        self.revision = 0
        self.keyring = ""
        self.models: tuple[ModelView, ...] = ()
        self.default_model: str | None = None
        self.routes: tuple[Route, ...] = ()
        self.patterns: tuple[NamePattern, ...] = ()
        self.drained = False
        self.free_bytes = 0
        self.no_loads: str | None = None
        self.seen: list[Any] = []
        self.acquires: list[tuple[bytes, int, Acquire]] = []
        self.answers_beats = True
        self.publishes = True
        self.acquire_reply: Callable[[Acquire], Acquired | Denied | None] = lambda _: None
        self.replies: dict[type, Any] = {}
        self._known: set[bytes] = set()
        self._control = open_socket(context, Role.DATA_SERVER)
        self._control.bind(run_dir.control)
        self._events = context.socket(zmq.XPUB)
        self._events.bind(run_dir.events)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Vanish, as a supervisor that was killed."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._control.close()
        self._events.close()

    async def publish(
        self,
        *models: ModelView,
        default: str | None = None,
        routes: tuple[Route, ...] = (),
        patterns: tuple[NamePattern, ...] = (),
        free_bytes: int = 0,
        no_loads: str | None = None,
        drained: bool = False,
    ) -> None:
        """Have these models, and tell the router (unless ``publishes`` is off)."""
        self.models, self.default_model = models, default
        self.routes, self.free_bytes, self.no_loads = routes, free_bytes, no_loads
        self.patterns, self.drained = patterns, drained
        self.revision += 1
        if self.publishes:
            await self._events.send(encode(self.snapshot()))

    async def publish_raw(self, payload: bytes) -> None:
        """Send any bytes on the events socket."""
        await self._events.send(payload)

    async def exited(self, instance: str, model_id: str, cause: ExitCause, detail: str) -> None:
        """Tell that a worker has ended."""
        await self._events.send(encode(WorkerExited(instance, model_id, cause, detail)))

    def snapshot(self) -> Snapshot:
        """The present state."""
        return Snapshot(
            self.epoch,
            self.revision,
            self.default_model,
            self.models,
            routes=self.routes,
            free_bytes=self.free_bytes,
            no_loads=self.no_loads,
            patterns=self.patterns,
            drained=self.drained,
        )

    async def reply(self, index: int, message: Acquired | Denied) -> None:
        """Answer the Acquire of that index, once it has come."""
        await until(lambda: len(self.acquires) > index)
        identity, correlation, _ = self.acquires[index]
        await self._control.send_multipart([identity, encode(message, correlation)])

    def count(self, kind: type) -> int:
        """How many messages of a kind have come."""
        return sum(isinstance(message, kind) for message in self.seen)

    async def _run(self) -> None:
        while True:
            identity, payload = await self._control.recv_multipart()
            envelope = decode(payload)
            if not isinstance(envelope.message, ReportCounts):  # like beats, and not waited for
                self.seen.append(envelope.message)
            for answer, correlation in self._answers(identity, envelope):
                await self._control.send_multipart([identity, encode(answer, correlation)])

    def _answers(self, identity: bytes, envelope: Any) -> list[tuple[Any, int]]:
        match envelope.message:
            case RouterHello():
                self._known.add(identity)
            case RouterBeat() if self.answers_beats:
                if identity not in self._known:
                    return [(Identify(self.epoch), 0)]
                return [(BeatSeen(self.epoch, self.revision, self.keyring), 0)]
            case GetSnapshot() if self.answers_beats:
                return [(self.snapshot(), envelope.correlation)]
            case ReportCounts() if self.answers_beats and ReportCounts not in self.replies:
                return [(CountsKept(1, self.since_s), envelope.correlation)]
            case Acquire() as question:
                self.acquires.append((identity, envelope.correlation, question))
                answer = self.acquire_reply(question)
                if answer is not None:
                    return [(answer, envelope.correlation)]
            case other if type(other) in self.replies:
                answer = self.replies[type(other)]
                answer = answer(other) if callable(answer) else answer
                if answer is not None:
                    return [(answer, envelope.correlation)]
            case other if envelope.correlation and self.answers_beats:
                refused = Denied(ErrorCode.SUPERVISOR_UNAVAILABLE, "This question is not scripted.")
                return [(refused, envelope.correlation)]
        return []


class FakeStream:
    """One stream as a fake worker's script sees it."""

    def __init__(
        self, worker: FakeWorker, identity: bytes, request: Generate, blobs: Sequence[bytes] = ()
    ) -> None:
        self.request = request
        self.blobs = tuple(blobs)
        self.credit = request.credit_deltas
        self.cancelled = False
        self._worker = worker
        self._ended: set[int] = set()
        self.identity = identity

    async def send(self, message: Any) -> None:
        """Send any message to this stream's router."""
        await self._worker.send(self.identity, message)

    async def prepare(self) -> None:
        """Begin with the prompt."""
        await self.send(Preparing(self.request.stream_id))

    async def accept(self, prompt_tokens: int = 7, **fields: Any) -> None:
        """Take the request."""
        await self.send(Accepted(self.request.stream_id, prompt_tokens, queued=0, **fields))

    async def refuse(self, code: ErrorCode, message: str, **fields: Any) -> None:
        """Don't."""
        await self.send(Refused(self.request.stream_id, code, message, **fields))

    async def say(self, *texts: str) -> None:
        """Send deltas, all in one message."""
        stream_id = self.request.stream_id
        self.credit -= len(texts)
        await self.send(Outputs(deltas=tuple(Delta(stream_id, text, 1) for text in texts)))

    async def say_within_credit(self, text: str) -> None:
        """Send one delta, once there is credit for it; nothing when cancelled first."""
        await until(lambda: self.credit > 0 or self.cancelled)
        if not self.cancelled:
            await self.say(text)

    async def send_deltas(self, *deltas: Delta) -> None:
        """Send deltas of any shape, all in one message; their stream id is filled in."""
        self.credit -= len(deltas)
        stream_id = self.request.stream_id
        await self.send(
            Outputs(deltas=tuple(replace(delta, stream_id=stream_id) for delta in deltas))
        )

    async def end_choice(
        self, index: int, reason: FinishReason = FinishReason.STOP, stop: str | None = None
    ) -> None:
        """End one answer."""
        fact = ChoiceEnded(self.request.stream_id, index, reason, stop)
        self._ended.add(index)
        await self.send(Outputs(ended=(fact,)))

    async def finish(
        self,
        *last: str,
        tokens: int = 3,
        reason: FinishReason = FinishReason.STOP,
        usage: Usage | None = None,
        timings: Timings | None = None,
        reread: Reread | None = None,
    ) -> None:
        """End well, with the last text and the ends of all open answers in the same message."""
        stream_id = self.request.stream_id
        left = [index for index in range(self.request.search.n) if index not in self._ended]
        await self.send(
            Outputs(
                deltas=tuple(Delta(stream_id, text, 1) for text in last),
                ended=tuple(ChoiceEnded(stream_id, index, reason) for index in left),
                finished=(
                    Finished(
                        stream_id,
                        usage or Usage(prompt_tokens=7, completion_tokens=tokens, cached_tokens=4),
                        timings or Timings(queue_s=0.01, prefill_s=0.02, decode_s=0.5),
                        reread=reread,
                    ),
                ),
            )
        )

    async def fail(self, code: ErrorCode, message: str) -> None:
        """End badly."""
        await self.send(Outputs(failed=(Failed(self.request.stream_id, code, message),)))


Script = Callable[[FakeStream], Coroutine[Any, Any, None]]


def plays(*steps: str | Delta | tuple[Delta, ...] | asyncio.Event | Script) -> Script:
    """A script that takes the request and then does each step: it says a text, sends deltas (a
    tuple of them in one message), waits for an event, or runs another script."""

    async def script(stream: FakeStream) -> None:
        await stream.accept()
        await _play(stream, steps)

    return script


async def _play(stream: FakeStream, steps: Iterable[Any]) -> None:
    for step in steps:
        match step:
            case str():
                await stream.say(step)
            case Delta():
                await stream.send_deltas(step)
            case tuple():
                await stream.send_deltas(*step)
            case asyncio.Event():
                await step.wait()
            case _:
                await step(stream)


def ends(*last: str, **fields: Any) -> Script:
    """End well: the arguments are those of :meth:`FakeStream.finish`."""
    return lambda stream: stream.finish(*last, **fields)


def fails(code: ErrorCode, message: str) -> Script:
    """End badly."""
    return lambda stream: stream.fail(code, message)


def refuses(
    code: ErrorCode, message: str, after: asyncio.Event | None = None, **fields: Any
) -> Script:
    """A script that does not take the request, once the event is set."""

    async def script(stream: FakeStream) -> None:
        await _play(stream, [after] if after else [])
        await stream.refuse(code, message, **fields)

    return script


async def until_cancelled(stream: FakeStream) -> None:
    """Wait until the router cancels the stream."""
    await until(lambda: stream.cancelled)


class FakeWorker:
    """Binds ``w-<instance>`` and runs ``script`` for every Generate that comes. A task gets the
    messages that ``task_script`` makes of it; ``tasks`` has them all, ``task_blobs`` the bytes of
    those with media, and ``cancelled_tasks`` the numbers of those that were cancelled.

    Sends pulses while ``pulses`` is true. ``streams`` holds every stream ever asked for.
    """

    def __init__(
        self, context: zmq.asyncio.Context, run_dir: RunDirectory, instance: str, script: Script
    ) -> None:
        self.instance = instance
        self.script = script
        self.pulses = True
        self.streams: list[FakeStream] = []
        self.tasks: list[Task] = []
        self.task_blobs: list[tuple[bytes, ...]] = []
        self.cancelled_tasks: list[int] = []
        self.task_script: Callable[[Any], Iterable[Any]] = lambda _: ()
        self._by_key: dict[tuple[bytes, int], FakeStream] = {}
        self._socket = open_socket(context, Role.DATA_SERVER)
        self._socket.bind(run_dir.worker(instance))
        self._scripts: set[asyncio.Task[None]] = set()
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._pulse())]

    async def stop(self) -> None:
        """Vanish."""
        tasks = [*self._tasks, *self._scripts]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()

    async def send(self, identity: bytes, message: Any) -> None:
        """Send to one router."""
        await self._socket.send_multipart([identity, encode(message)])

    async def send_raw(self, stream: FakeStream, payload: bytes) -> None:
        """Send any bytes to a stream's router."""
        await self._socket.send_multipart([stream.identity, payload])

    async def stream(self, index: int = 0) -> FakeStream:
        """Wait for the stream of that index."""
        await until(lambda: len(self.streams) > index)
        return self.streams[index]

    async def _run(self) -> None:
        while True:
            identity, payload, *blobs = await self._socket.recv_multipart()
            match decode(payload).message:
                case Generate() as request:
                    stream = FakeStream(self, identity, request, blobs)
                    self.streams.append(stream)
                    self._by_key[identity, request.stream_id] = stream
                    task = asyncio.create_task(self.script(stream))
                    self._scripts.add(task)
                    task.add_done_callback(self._scripts.discard)
                case Credit() as credit:
                    self._by_key[identity, credit.stream_id].credit += credit.deltas
                case Cancel() as cancel if (identity, cancel.stream_id) in self._by_key:
                    self._by_key[identity, cancel.stream_id].cancelled = True
                case Cancel(stream_id):
                    self.cancelled_tasks.append(stream_id)
                case (
                    Embed()
                    | Rerank()
                    | Transcribe()
                    | Speak()
                    | Tokenize()
                    | Detokenize()
                    | DescribeTokenizer()
                ) as task:
                    self.tasks.append(task)
                    if blobs:
                        self.task_blobs.append(tuple(blobs))
                    for reply in self.task_script(task):
                        await self.send(identity, reply)
            del blobs  # A test may look at who else has them.

    async def _pulse(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            identities = {identity for identity, _ in self._by_key}
            if self.pulses:
                for identity in identities:
                    with contextlib.suppress(zmq.ZMQError):
                        await self.send(identity, Pulse(self.instance, len(self._by_key)))


@contextlib.asynccontextmanager
async def fake_peers() -> AsyncIterator[tuple[zmq.asyncio.Context, RunDirectory]]:
    """A context and a run directory for peers; both are gone afterwards."""
    with short_run_directory() as run_dir:
        context = zmq.asyncio.Context()
        try:
            yield context, run_dir
        finally:
            context.destroy(linger=0)
