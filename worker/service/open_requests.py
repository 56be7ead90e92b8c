"""The requests of any kind that a loaded model has accepted and not answered yet."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from lmx.protocol.errors import ErrorCode
from lmx.protocol.fair_share import has_capacity
from lmx.protocol.messages.data import (
    BACKGROUND_PRIORITY,
    Generate,
    Preparing,
    Pulse,
    Refused,
)
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.messages.speech import Transcribe
from lmx.protocol.messages.tasks import Embed, Task, Tokenize
from lmx.protocol.states import ModelKind
from lmx.worker.media.decoder import MediaDecoder
from lmx.worker.media.values import Media, MediaNeeds, check_media
from lmx.worker.scheduling.progress import InFlight
from lmx.worker.service.admission import QueueEstimate, Refusal
from lmx.worker.service.fair_thread import FairThread

log = structlog.get_logger()

_T = TypeVar("_T")

_DECODED, _FULL = "decoded", "full"
"""Why no further media are decoded."""

_LARGE_BYTES: Final = 64 << 20
"""Decoded media of this size are held alone: 22 million pixels, or 17 minutes of sound."""


_MAX_FILE_BYTES: Final = 512 << 20
"""How many bytes the files of all requests' media take together."""

_MAX_HELD_BYTES: Final = 1 << 30
"""How much memory the media of all prompts take that are not read yet, but no more than is reserved
for decoding. Beyond it no further ones are decoded until a prompt has been read. A picture of 12
million pixels takes up to 300 MB in the form that a model's encoder wants."""

_MAX_SOUND_BYTES: Final = 512 << 20
"""The same for the sounds that are being transcribed: more than two hours of them."""

_TOO_MUCH_MEDIA: Final = Refusal(
    ErrorCode.QUEUE_FULL,
    "There is no room now for these images, sounds or videos: the files of this model's requests "
    f"take {_MAX_FILE_BYTES >> 20} MiB at most, and a part is kept for others. Try again later.",
    2.0,
)


@dataclass(slots=True, eq=False)
class OpenRequest(ABC):
    """One such request, until its end has been sent. Event loop only."""

    router: bytes
    """The router that sent it and gets the answer."""
    request: Generate | Task
    blobs: Sequence[bytes] = field(default=(), init=False)
    """The files of its media, for as long as they may be decoded."""
    media: Sequence[Media] = field(default=(), init=False)
    """What they are once they are decoded, until the prompt thread takes them."""
    decode_s: float = field(default=0.0, init=False)
    """How long it took to decode them, which does not count as waiting."""
    held_bytes: int = field(default=0, init=False)
    """What its decoded media take, until the model has read them."""
    restoring: bool = field(default=False, init=False)
    """Whether its media are decoded again while the engine has it."""
    gone: bool = field(default=False, init=False)
    """Whether it has left the table: nothing is sent for it any more."""

    @property
    def priority(self) -> int:
        """Its place on each thread: what belongs to the background waits for all others."""
        return priority_of(self.request)

    def turn_came(self) -> None:
        """Note that its first turn on the prompt thread has come."""
        return

    @abstractmethod
    def release(self) -> None:
        """Free its resources, once it has left the table; called at every end."""

    @abstractmethod
    def cancelled(self) -> None:
        """Stop its work: its router does not want it any more. Called after ``release``."""

    @abstractmethod
    def fail(self, code: ErrorCode, message: str) -> None:
        """Take it out of the table, and send its router the reason."""


class OpenRequests:
    """The table of open requests: it decides which are let in, and sends their messages. Event loop
    only.

    It holds at most ``max_rows + max_queue`` requests, and no owner may fill it so far that others
    find no place (:mod:`lmx.protocol.fair_share`). Cancelled requests that still have their row
    take a place too. ``send`` sends a message to a router, and returns whether it can be reached.
    ``became_idle`` is called each time the last request has ended.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        prompts: FairThread,
        media: FairThread,
        checks: FairThread,
        decoder: MediaDecoder,
        needs: MediaNeeds | None,
        in_flight: InFlight,
        send: Callable[[bytes, Any], bool],
        became_idle: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._prompts = prompts
        self._media = media
        self._checks = checks
        self._decoder = decoder
        self._needs = needs
        self._file_bytes = 0
        self._held_bytes = 0
        self._foreground_held_bytes = 0
        self._in_flight = in_flight
        self._send = send
        self._became_idle = became_idle
        self._open: dict[tuple[bytes, int], OpenRequest] = {}
        self.estimate = QueueEstimate()

    def find(self, router: bytes, stream_id: int) -> OpenRequest | None:
        """Return the request with that number; None if it has ended."""
        return self._open.get((router, stream_id))

    def admits(
        self, router: bytes, request: Generate | Task, blobs: Sequence[bytes], rows: int
    ) -> bool:
        """Return whether a request may begin. If not, the reason has been sent to its router.
        ``blobs`` are the files of its media; ``rows`` is how many rows run now."""
        if (router, request.stream_id) in self._open:
            log.warning("data.stream_id_in_use", request_id=request.request_id)
            return False
        refusal = self._refusal(request.owner, rows)
        if refusal is None and blobs and not self._has_room(request, _size(blobs)):
            refusal = _TOO_MUCH_MEDIA
        if refusal is not None:
            self.send(router, refusal.message_for(request.stream_id))
        return refusal is None

    def _has_room(self, request: Generate | Task, size_bytes: int) -> bool:
        """Return whether there is room for the files of a request's media. As with places, no owner
        may take so much that others find none, and the background takes a half at most."""
        if not self._file_bytes:
            return size_bytes <= _MAX_FILE_BYTES
        of_background = priority_of(request) >= BACKGROUND_PRIORITY
        most_bytes = _MAX_FILE_BYTES // 2 if of_background else _MAX_FILE_BYTES
        own_bytes = sum(
            _size(one.blobs) for one in self._open.values() if one.request.owner == request.owner
        )
        taken_bytes = self._file_bytes + size_bytes
        return taken_bytes <= most_bytes and has_capacity(most_bytes, self._file_bytes, own_bytes)

    def begin(
        self,
        opened: OpenRequest,
        prepare: Callable[[], _T],
        prepared: Callable[[asyncio.Future[_T | None]], None],
        blobs: Sequence[bytes],
        *,
        decodes: bool,
    ) -> None:
        """Put a request into the table. When its turn has come, call ``prepare`` on the prompt
        thread, and then ``prepared`` with the result; with None if the request was gone by then.
        ``blobs`` are the files of its media; ``decodes`` as for :meth:`queue`."""
        self._open[opened.router, opened.request.stream_id] = opened
        opened.blobs = blobs
        self._file_bytes += _size(blobs)
        begins = partial(self._report_preparing, opened)
        self.queue(opened, prepare, prepared, begins, decodes=decodes)

    def queue(
        self,
        opened: OpenRequest,
        prepare: Callable[[], _T],
        prepared: Callable[[asyncio.Future[_T | None]], None],
        on_start: Callable[[], None] | None = None,
        *,
        decodes: bool,
        expires: bool = True,
    ) -> None:
        """Give a request a turn on the prompt thread, for which it waits ``max_queue_s`` at most if
        it ``expires``; ``on_start`` is called right before.

        With ``decodes`` the request's media are decoded first, on the media thread: the prompts of
        other requests don't wait for that, and its time does not count as waiting. If it raises an
        exception, that is the result.
        """
        until_s = time.monotonic() + self._spec.max_queue_s if expires else None
        if not decodes:
            self._run(self._prompts, opened, prepare, prepared, on_start, until_s, opened.priority)
            return

        def decoded(future: asyncio.Future[Any]) -> None:
            if opened.gone or future.exception() is not None:
                prepared(future)
                return
            # Decoded media are large: those of one request at most wait for the prompt thread. The
            # largest are alone until the prompt is made, which makes further copies of them.
            alone = (future.result() or 0) >= _LARGE_BYTES
            self._media.pause(_DECODED)

            def begin_prompt() -> None:
                if not alone:
                    self._media.resume(_DECODED)
                if on_start is not None:
                    on_start()

            def made(prompt: asyncio.Future[_T | None]) -> None:
                try:
                    prepared(prompt)
                finally:
                    if alone:
                        self._media.resume(_DECODED)

            # Not by its priority: the media thread waits for this turn, for whomever it works next.
            expires_s = None if until_s is None else until_s + opened.decode_s
            self._run(self._prompts, opened, prepare, made, begin_prompt, expires_s)

        # The router does not learn of this turn: decoding can't end the worker.
        self._run(
            self._media,
            opened,
            lambda: self._decode(opened),
            decoded,
            until_s=until_s,
            priority=opened.priority,
        )

    def _decode(self, opened: OpenRequest) -> int:
        """Decode the media of a request; return their size. Media thread."""
        assert isinstance(opened.request, Generate | Tokenize | Transcribe)
        check_media(opened.request.media, self._needs)
        began_s = time.monotonic()
        if self._needs is not None:
            opened.media = self._decoder.decode(opened.request.media, opened.blobs, self._needs)
        opened.decode_s = time.monotonic() - began_s
        return sum(one.size_bytes for one in opened.media)

    def drop_files(self, opened: OpenRequest) -> None:
        """Forget the files of a request's media: they are not decoded again."""
        self._file_bytes -= _size(opened.blobs)
        opened.blobs = opened.media = ()

    def note_restoring(self, opened: OpenRequest, restoring: bool) -> None:
        """Note whether the media of a request are decoded again while the engine has it: it takes
        one place all the same."""
        self._in_flight.twice += restoring - opened.restoring
        opened.restoring = restoring

    def hold(self, opened: OpenRequest, size_bytes: int) -> None:
        """Note what the decoded media of a request take now. While those of all requests take as
        much as they may, no further ones are decoded: so no request that holds media may wait for
        the media thread. Beyond a half, none of the background are."""
        if size_bytes == opened.held_bytes:
            return
        more_bytes = size_bytes - opened.held_bytes
        self._held_bytes += more_bytes
        if opened.priority < BACKGROUND_PRIORITY:
            self._foreground_held_bytes += more_bytes
        opened.held_bytes = size_bytes
        transcribes = self._spec.kind is ModelKind.TRANSCRIPTION
        max_bytes = min(
            _MAX_SOUND_BYTES if transcribes else _MAX_HELD_BYTES, self._spec.decode.memory_bytes
        )
        # What the background holds may wait for all others: it takes a half, and never keeps them
        # from having one at least.
        if self._held_bytes >= max_bytes and self._foreground_held_bytes:
            self._media.pause(_FULL)
        elif 2 * self._held_bytes >= max_bytes:
            self._media.pause(_FULL, BACKGROUND_PRIORITY)
        else:
            self._media.resume(_FULL)

    def review(
        self,
        opened: OpenRequest,
        check: Callable[[], _T],
        checked: Callable[[asyncio.Future[_T | None]], None],
    ) -> None:
        """Check a request's answers on a thread for that alone, so that no prompt waits."""
        self._run(self._checks, opened, check, checked)

    def _run(
        self,
        thread: FairThread,
        opened: OpenRequest,
        function: Callable[[], Any],
        done: Callable[[asyncio.Future[Any]], None],
        on_start: Callable[[], None] | None = None,
        until_s: float | None = None,
        priority: int = 0,
    ) -> None:
        """``until_s``: if its turn has not come by then, the request ends with QUEUE_TIMEOUT."""
        loop, timer = asyncio.get_running_loop(), None
        if until_s is not None:
            timer = loop.call_later(until_s - time.monotonic(), self._expire, opened)

        def begin() -> None:
            if timer is not None:
                timer.cancel()
            if on_start is not None:
                on_start()

        # A request that was cancelled meanwhile is not worked on.
        thread.run(
            opened.request.owner,
            begin,
            lambda: None if opened.gone else function(),
            done,
            priority,
        )

    def _expire(self, opened: OpenRequest) -> None:
        if opened.gone:
            return
        limit_s = self._spec.max_queue_s
        log.warning("request.expired", request_id=opened.request.request_id, limit_s=limit_s)
        opened.fail(
            ErrorCode.QUEUE_TIMEOUT,
            f"The request waited {limit_s:g} s for its turn (max_queue_s): nothing was made. Try "
            "again when the model has less to do.",
        )

    def send(self, router: bytes, message: Any) -> None:
        """Send a message. A router that can't be reached loses all its requests."""
        if not self._send(router, message):
            self.cancel_router(router)

    def refuse(
        self,
        opened: OpenRequest,
        code: ErrorCode,
        message: str,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """Forget a request, and send its router the refusal."""
        self.forget(opened)
        refused = Refused(opened.request.stream_id, code, message, param, retry_after_s)
        self.send(opened.router, refused)

    def forget(self, opened: OpenRequest) -> None:
        """Take a request out of the table."""
        opened.gone = True
        del self._open[opened.router, opened.request.stream_id]
        self.drop_files(opened)
        self.hold(opened, 0)
        self.note_restoring(opened, False)
        opened.release()

    def cancel(self, router: bytes, stream_id: int) -> None:
        """Forget a request that is not wanted any more; one that has ended is left alone."""
        opened = self.find(router, stream_id)
        if opened is not None:
            self.forget(opened)
            opened.cancelled()

    def cancel_router(self, router: bytes) -> None:
        """Forget every request of a router that can't be reached any more."""
        for owner, stream_id in list(self._open):
            if owner == router:
                self.cancel(owner, stream_id)

    def fail_all(self, code: ErrorCode, message: str) -> None:
        """End every request with an error, without waiting for its rows."""
        for opened in list(self._open.values()):
            # Its router could not be reached a moment ago, so all its requests are gone.
            if not opened.gone:
                opened.fail(code, message)

    def pulse(self) -> None:
        """Send every router with an open request a sign that this event loop runs."""
        counts: dict[bytes, int] = {}
        for router, _ in self._open:
            counts[router] = counts.get(router, 0) + 1
        for router, requests in counts.items():
            self.send(router, Pulse(self._spec.instance, requests))

    def report_if_idle(self) -> None:
        """Call ``became_idle`` if nothing is in flight any more."""
        if self._in_flight.count == 0:
            self._became_idle()

    def _report_preparing(self, opened: OpenRequest) -> None:
        if not opened.gone:
            opened.turn_came()
            self.send(opened.router, Preparing(opened.request.stream_id))

    def _refusal(self, owner: str, rows: int) -> Refusal | None:
        places = self._spec.max_rows + self._spec.max_queue
        held = self._in_flight.count
        own = sum(one.request.owner == owner for one in self._open.values())
        if has_capacity(places, held, own):
            return None
        whose = (
            "The queue of this model is full"
            if held >= places
            else f"{own} requests of yours run or wait already, and the rest of this model's "
            "queue is kept for others"
        )
        return Refusal(
            ErrorCode.QUEUE_FULL,
            f"{whose} ({self._spec.max_queue}): try again later.",
            self.estimate.retry_after_s(rows),
        )


def priority_of(request: Generate | Task) -> int:
    """Return a request's place on each thread."""
    match request:
        case Generate(priority=priority) if priority >= BACKGROUND_PRIORITY:
            return BACKGROUND_PRIORITY
        case Embed(background=True):
            return BACKGROUND_PRIORITY
        case _:
            return 0


def _size(blobs: Sequence[bytes]) -> int:
    return sum(map(len, blobs))
