"""One worker's socket: it sends requests, and passes outputs on to the streams they belong to."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog
import zmq.asyncio

from lmx.protocol.errors import (
    ErrorCode,
    GenerationError,
    LmxError,
    ProtocolError,
    RequestError,
    UnavailableError,
)
from lmx.protocol.messages.data import (
    Accepted,
    Cancel,
    Credit,
    Generate,
    Outputs,
    Preparing,
    Pulse,
    Refused,
)
from lmx.protocol.messages.speech import Spoken, Transcript
from lmx.protocol.messages.tasks import (
    Detokenized,
    Scores,
    Task,
    TaskFinished,
    TaskPart,
    Tokenized,
    TokenizerDescribed,
    Vectors,
)
from lmx.protocol.wire.codec import MAX_MESSAGE_BYTES, decode, encode
from lmx.protocol.wire.sockets import Role, open_socket, send_nowait
from lmx.router.http.errors import rejection
from lmx.router.workers.stream import CREDIT_DELTAS, WorkerStream
from lmx.router.workers.task import Last, OrderedPart, WorkerTask

_SILENCE_CHECKS: Final = 4
"""Silence is counted in checks and not read from a clock: a router that was itself stopped for a
while (a debugger, a sleeping laptop) must first read what has piled up."""

_MOST_TOGETHER: Final = 8
_MOST_BYTES_TOGETHER: Final = 64 * 1024
"""This many messages that have come already are read before their text is delivered, and no more
after this many bytes: with logprobs, reading 64 KiB takes 3 ms."""

_log = structlog.get_logger()


class WorkerLink:
    """Owns the socket to one worker instance and the streams on it.

    The socket has a random identity that zmq chooses: under a fixed name a restarted router could
    inherit its predecessor's streams. Used from one event loop only.
    """

    def __init__(
        self, context: zmq.asyncio.Context, endpoint: str, instance: str, silence_s: float
    ) -> None:
        self.instance = instance
        self.messages_total = 0
        """How many messages of the worker were read."""
        self._silence_s = silence_s
        self._socket = open_socket(context, Role.DATA_CLIENT)
        self._socket.connect(endpoint)
        self._ids = itertools.count(1)
        self._streams: dict[int, WorkerStream] = {}
        self._fed: dict[int, WorkerStream] = {}
        """Those with text that was read and not delivered. It is delivered after the ends that came
        with it, so that an answer's end goes out with its last text."""
        self._pending: dict[int, WorkerTask] = {}
        self._received = False
        self._tasks = (
            asyncio.create_task(self._read(), name=f"read {instance}"),
            asyncio.create_task(self._watch(), name=f"watch {instance}"),
        )
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    @property
    def broken(self) -> bool:
        """Whether one of its tasks has failed, so that it receives nothing any more."""
        return any(task.done() for task in self._tasks)

    @property
    def open_streams(self) -> int:
        """How many streams and tasks have not ended and were not closed."""
        return len(self._streams) + len(self._pending)

    def submit(self, request: Generate, blobs: Sequence[bytes] = ()) -> WorkerStream:
        """Send a request under an id and a credit of this link; return its stream. ``blobs`` are
        the bytes of its media.

        The stream must be given to :meth:`close_stream` in the end. A worker that does not exist
        gives no answer; its exit or its silence ends the stream. Raises MODEL_UNLOADED if the
        worker reads nothing any more.
        """
        stream = WorkerStream(next(self._ids), request.search.n)
        numbered = replace(request, stream_id=stream.stream_id, credit_deltas=CREDIT_DELTAS)
        self._ask(numbered, blobs)
        self._streams[stream.stream_id] = stream
        return stream

    def submit_task(
        self,
        numbered: Callable[[int], Task],
        inputs: int,
        blobs: Sequence[bytes] = (),
        on_part: Callable[[OrderedPart], None] | None = None,
    ) -> WorkerTask:
        """Send the task that ``numbered`` makes of an id of this link, and the bytes of its media.
        The task has ``inputs`` inputs; ``on_part`` is called with each part of a transcript or a
        sound.

        It must be given to :meth:`close_task` in the end; the rest is as in :meth:`submit`.
        """
        task = WorkerTask(next(self._ids), inputs, on_part)
        self._ask(numbered(task.stream_id), blobs)
        self._pending[task.stream_id] = task
        return task

    def close_task(self, task: WorkerTask) -> None:
        """Forget a task. It is cancelled on the worker unless it has ended there. Idempotent."""
        if self._pending.pop(task.stream_id, None) is not None:
            self._send(Cancel(task.stream_id))

    def grant(self, stream: WorkerStream) -> None:
        """Give the worker back the credit for the deltas that were taken, once it is worth a
        message."""
        due = stream.grant_due()
        if due:
            self._send(Credit(stream.stream_id, due))

    def close_stream(self, stream: WorkerStream) -> None:
        """Forget a stream. It is cancelled on the worker unless it has ended there. Idempotent."""
        if self._streams.pop(stream.stream_id, None) is not None:
            self._send(Cancel(stream.stream_id))

    def fail_all(self, error: LmxError) -> None:
        """End every open stream with ``error``, because the worker is gone."""
        for stream in self._streams.values():
            stream.fail(error)
        for task in self._pending.values():
            task.fail(error)
        self._streams.clear()
        self._pending.clear()

    def give_up_all(self, error: LmxError) -> None:
        """Do the same as :meth:`fail_all`, and also cancel on the worker, which may still be
        running."""
        for stream in tuple(self._streams.values()):
            stream.fail(error)
            self.close_stream(stream)
        for task in tuple(self._pending.values()):
            task.fail(error)
            self.close_task(task)

    def close(self) -> None:
        """Close the socket and end the tasks. No stream may be open any more."""
        for task in self._tasks:
            task.cancel()
        self._socket.close()

    async def _read(self) -> None:
        together = read_bytes = 0
        receiving = self._socket.recv()
        while True:
            payload = await receiving
            read_bytes += len(payload)
            self._received = True
            self.messages_total += 1
            try:
                self._dispatch(decode(payload).message)
            except ProtocolError as error:
                _log.warning("worker.bad_message", worker=self.instance, error=error.message)
            receiving = self._socket.recv()
            more = together < _MOST_TOGETHER and read_bytes < _MOST_BYTES_TOGETHER
            if receiving.done() and more:
                together += 1  # A router that is behind writes what has piled up at once.
                continue
            together = read_bytes = 0
            self._deliver()
            if receiving.done():
                # Others get their turn all the same: streams that are delivered at once get their
                # credit at once, so this could continue for ever.
                await asyncio.sleep(0)

    def _deliver(self) -> None:
        fed, self._fed = self._fed, {}
        for stream in fed.values():
            if stream.deliver():
                self.grant(stream)
            elif stream.ended:
                self.close_stream(stream)

    def _dispatch(self, message: Any) -> None:
        match message:
            case Outputs():
                self._dispatch_outputs(message)
            case Accepted():
                # The stream is unknown because it was cancelled meanwhile. So it is in the next
                # cases.
                if (stream := self._streams.get(message.stream_id)) is not None:
                    stream.feed_accepted(message)
            case Preparing():
                self._begun(message.stream_id)
            case Refused():
                self._end(message.stream_id, _refusal(message))
            case (
                Vectors()
                | Scores()
                | Transcript()
                | Spoken()
                | TaskFinished()
                | Tokenized()
                | Detokenized()
                | TokenizerDescribed()
            ):
                self._feed_task(message)
            case Pulse():
                pass
            case _:
                raise ProtocolError(f"unexpected {type(message).__name__} from a worker")

    def _dispatch_outputs(self, outputs: Outputs) -> None:
        streams = self._streams
        for delta in outputs.deltas:
            if (stream := streams.get(delta.stream_id)) is not None:
                stream.feed_delta(delta)
                self._fed[delta.stream_id] = stream
        for ended in outputs.ended:
            if (stream := streams.get(ended.stream_id)) is not None:
                stream.feed_ended(ended)
                if stream.ended:
                    self.close_stream(stream)
        for finished in outputs.finished:
            if (stream := streams.pop(finished.stream_id, None)) is not None:
                stream.feed_finished(finished)
        for failed in outputs.failed:
            self._end(failed.stream_id, GenerationError(failed.code, failed.message))

    def _begun(self, number: int) -> None:
        request = self._streams.get(number) or self._pending.get(number)
        if request is not None:  # It was not cancelled meanwhile.
            request.timeout.begin()

    def _feed_task(self, message: TaskPart | Last) -> None:
        task = self._pending.get(message.stream_id)
        if task is None:
            return  # Cancelled meanwhile.
        task.feed(message)
        if isinstance(message, Last):
            del self._pending[task.stream_id]
        elif task.ended:
            self.close_task(task)

    def _end(self, stream_id: int, error: LmxError) -> None:
        if (stream := self._streams.pop(stream_id, None)) is not None:
            stream.fail(error)
        if (task := self._pending.pop(stream_id, None)) is not None:
            task.fail(error)

    async def _watch(self) -> None:
        silent_checks = 0
        while True:
            await asyncio.sleep(self._silence_s / _SILENCE_CHECKS)
            silent_checks = 0 if self._received or not self.open_streams else silent_checks + 1
            self._received = False
            if silent_checks >= _SILENCE_CHECKS:
                silent_checks = 0
                _log.error("worker.silent", worker=self.instance, streams=self.open_streams)
                self.give_up_all(
                    GenerationError(
                        ErrorCode.WORKER_LOST,
                        f"The model's worker has been silent for {self._silence_s:g} s.",
                    )
                )

    def _ask(self, request: Any, blobs: Sequence[bytes] = ()) -> None:
        payload = encode(request)
        if len(payload) > MAX_MESSAGE_BYTES:
            # The worker would drop the connection, and all streams with it.
            raise RequestError(
                ErrorCode.REQUEST_TOO_LARGE,
                f"The request has {len(payload)} bytes with all that it refers to, more than the "
                f"{MAX_MESSAGE_BYTES} that a model can get at once: send less text.",
            )
        if not send_nowait(self._socket, payload, *blobs):
            raise UnavailableError(
                ErrorCode.MODEL_UNLOADED,
                "The model's worker can't be reached: it is being replaced.",
                retry_after_s=1.0,
            )
        if not self.open_streams:
            self._received = True  # Nothing was due before it.

    def _send(self, message: Any) -> None:
        if not send_nowait(self._socket, encode(message)):
            # The worker has gone or reads nothing any more; its exit or its silence will show it.
            _log.warning("worker.unreachable", worker=self.instance, message=type(message).__name__)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.error("worker_link.failed", worker=self.instance, exc_info=error)
        self.fail_all(
            GenerationError(ErrorCode.INTERNAL, "The router failed on a worker's output.")
        )


def _refusal(fact: Refused) -> LmxError:
    return rejection(fact.code, fact.message, param=fact.param, retry_after_s=fact.retry_after_s)
