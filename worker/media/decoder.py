"""The worker's end of its decoding process, which makes pixels and samples of files."""

from __future__ import annotations

import json
import os
import signal
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.models.decode_limits import DecodeLimits
from lmx.protocol.states import MediaKind
from lmx.worker.isolation.child import (
    MAX_SLOWDOWN,
    ChildEndedError,
    ChildMemoryError,
    ChildProcess,
    ChildTimeoutError,
    Exchange,
)
from lmx.worker.media.values import Media, MediaNeeds, Picture, Sound, Video
from lmx.worker.media.wire import REPLY_HEAD, REQUEST_HEAD, DecodeOrder, Outcome, ResultHead

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

log = structlog.get_logger()

_DEFAULT_FPS: Final = 1.0
_ALARM_GRACE_S: Final = 2.0
_MAX_REASON: Final = 4096

_INHERITED_VARIABLES: Final = (
    *("DYLD_", "LANG", "LC_", "LD_", "LMX_HOME", "LMX_PROCESS", "PATH", "PYTHON", "TMPDIR"),
    "VIRTUAL_ENV",
)
"""How the variables begin that a Python program needs, and those that show whose process it is.
The others, which may be secrets, stay where no file of a stranger is read."""


class _Done(NamedTuple):
    """What was decoded of one file."""

    media: Media
    size_bytes: int
    spent_s: float
    """How much of the request's time it took."""


class MediaDecoder(ChildProcess):
    """Decodes the media of one request at a time, for one thread. It has at most one process, which
    ends with this process."""

    def __init__(self, limits: DecodeLimits | None = None) -> None:
        self._limits = limits or DecodeLimits()
        environment = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_INHERITED_VARIABLES)
        }
        super().__init__(
            "lmx.worker.media.decoding.main",
            (json.dumps(asdict(self._limits)),),
            # It is measured from here with all that it takes at rest.
            self._limits.process_bytes,
            # Its threads would only take memory.
            {**environment, "OPENBLAS_NUM_THREADS": "1"},
        )

    def decode(
        self, items: Sequence[MediaItem], blobs: Sequence[Any], needs: MediaNeeds
    ) -> tuple[Media, ...]:
        """Return the decoded media of ``items``, whose files are ``blobs``: objects that have a
        buffer.

        Whether the model takes those kinds, and that many, is not checked here. Blocks, but no
        longer than the deadline of a request, or ``MAX_SLOWDOWN`` as long where the machine is
        busy. Raises ``RequestError`` that names the item's ``param``: for a file that can't be
        decoded, one that has more than is taken, and when the time is over. Raises ``OSError`` if
        no process can be started, or if it can't begin, and INSUFFICIENT_MEMORY if it was killed
        from outside, twice.
        """
        until_s = time.monotonic() + MAX_SLOWDOWN * self._limits.deadline_s
        left_s, left_bytes = self._limits.deadline_s, self._limits.request_bytes
        found: list[Media] = []
        for item, blob in zip(items, blobs, strict=True):
            timeout_s = max(0.0, min(left_s, until_s - time.monotonic()))
            done = self._decode(item, blob, needs, timeout_s, left_bytes)
            left_s -= done.spent_s
            left_bytes -= done.size_bytes
            found.append(done.media)
        return tuple(found)

    def _decode(
        self, item: MediaItem, blob: Any, needs: MediaNeeds, timeout_s: float, left_bytes: int
    ) -> _Done:
        order = self._order(item, needs, MAX_SLOWDOWN * timeout_s + _ALARM_GRACE_S)
        began_s = time.monotonic()
        try:
            reply = self.ask(
                timeout_s, lambda exchange: self._converse(exchange, order, blob, item, left_bytes)
            )
        except ChildTimeoutError as error:
            raise self._too_slow(item) from error
        except ChildMemoryError as error:
            reason = f"takes more than {self._limits.memory_bytes >> 20} MiB of memory to decode"
            raise _ended(item, ErrorCode.MEDIA_TOO_LARGE, reason) from error
        except ChildEndedError as error:
            if error.status is not None and error.status > 0:
                # No file makes it exit so: it could not begin.
                raise OSError(f"the decoding process exited with {error.status}") from error
            # On a busy machine its own alarm may come before this thread has its turn.
            if error.status == -signal.SIGALRM:
                raise self._too_slow(item) from error
            reason = "broke its decoder"
            if error.status == -signal.SIGXCPU:
                reason = f"takes more than {self._limits.cpu_s:g} s of the processor's time"
            raise _ended(item, ErrorCode.INVALID_MEDIA, reason) from error
        if isinstance(reply, RequestError):
            raise reply
        log.debug("media.decoded", form=item.form.value, took_s=time.monotonic() - began_s)
        return reply

    def _too_slow(self, item: MediaItem) -> RequestError:
        reason = f"could not be decoded within {self._limits.deadline_s:g} s"
        return _ended(item, ErrorCode.MEDIA_TIMEOUT, reason)

    def _order(self, item: MediaItem, needs: MediaNeeds, timeout_s: float) -> DecodeOrder:
        wants_sound = item.kind is MediaKind.AUDIO or (
            item.kind is MediaKind.VIDEO and needs.audio_in_video and item.use_audio_in_video
        )
        limits = (item.max_frames, needs.max_frames, self._limits.frames)
        return DecodeOrder(
            item.kind,
            item.form,
            rate_hz=needs.sample_rate_hz if wants_sound else None,
            fps=item.fps or _DEFAULT_FPS,
            max_frames=min(limit for limit in limits if limit is not None),
            min_pixels=item.min_pixels,
            max_pixels=item.max_pixels,
            cpu_s=self._limits.cpu_s,
            timeout_s=timeout_s,
        )

    def _converse(
        self, exchange: Exchange, order: DecodeOrder, blob: Any, item: MediaItem, left_bytes: int
    ) -> _Done | RequestError:
        payload = order.encode()
        exchange.send(REQUEST_HEAD.pack(len(payload), memoryview(blob).nbytes))
        exchange.send(payload)
        exchange.send(blob)
        number, length = REPLY_HEAD.unpack(exchange.read(REPLY_HEAD.size))
        if length > _MAX_REASON:
            raise ChildEndedError
        data = exchange.read(length)
        try:
            outcome = Outcome(number)
            if outcome is Outcome.DECODED:
                return self._result(exchange, order, item, ResultHead.decode(data), left_bytes)
        except (ValueError, struct.error) as error:
            # A file has taken the process over: it would not send this itself.
            raise ChildEndedError from error
        match outcome:
            case Outcome.REFUSED:
                return _refusal(item, ErrorCode.INVALID_MEDIA, data.decode(errors="replace"))
            case Outcome.TOO_LARGE:
                return _refusal(item, ErrorCode.MEDIA_TOO_LARGE, data.decode(errors="replace"))
            case Outcome.OUT_OF_MEMORY:
                # Its memory may be in pieces by now.
                raise ChildMemoryError

    def _result(
        self,
        exchange: Exchange,
        order: DecodeOrder,
        item: MediaItem,
        head: ResultHead,
        left_bytes: int,
    ) -> _Done:
        """Read a result. Raises ``ValueError`` for one that does not fit the order."""
        import numpy as np  # A worker starts before it is loaded.

        size_bytes = head.pixel_bytes + head.sample_bytes
        if size_bytes > left_bytes:
            self.close()
            raise _refusal(
                item,
                ErrorCode.MEDIA_TOO_LARGE,
                "makes the media of this request take more than "
                f"{self._limits.request_bytes >> 20} MiB when they are decoded: send fewer or "
                "smaller ones",
            )
        is_video = order.kind is MediaKind.VIDEO
        if head.frames > (order.max_frames if is_video else 1):
            raise ValueError(f"{head.frames} frames")
        times_s = np.empty(head.frames if is_video else 0)
        pixels = np.empty((head.frames, head.height, head.width, 3), np.uint8)
        samples = np.empty(head.samples, np.float32)
        for array in (times_s, pixels, samples):
            if array.size:
                exchange.read_into(array.data.cast("B"))
        media = _value(order.kind, head, times_s, pixels, samples)
        return _Done(media, size_bytes, exchange.spent_s)


def _value(
    kind: MediaKind,
    head: ResultHead,
    times_s: npt.NDArray[np.float64],
    pixels: npt.NDArray[np.uint8],
    samples: npt.NDArray[np.float32],
) -> Media:
    sound = Sound(samples, head.rate_hz) if head.samples else None
    match kind:
        case MediaKind.IMAGE:
            return Picture(pixels.reshape(head.height, head.width, 3))
        case MediaKind.AUDIO:
            if sound is None:
                raise ValueError("no samples")
            return sound
        case MediaKind.VIDEO:
            return Video(pixels, tuple(times_s.tolist()), head.duration_s, sound)


def _ended(item: MediaItem, code: ErrorCode, reason: str) -> RequestError:
    log.warning("media.ended", form=item.form.value, size_bytes=item.size_bytes, reason=reason)
    return _refusal(item, code, reason)


def _refusal(item: MediaItem, code: ErrorCode, reason: str) -> RequestError:
    return RequestError(code, f"The {item.kind.noun} in `{item.param}` {reason}.", param=item.param)
