"""``python -m lmx.worker.media.decoding.main``: decodes media for one worker, over the socket on
stdin.

It is a process of its own, because files of strangers may make a decoder hang, crash or fill the
memory, or may even take it over. Before it takes the first of them it gives up what it does not
need: it can open no file and no socket any more.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Final

from av.error import FFmpegError

from lmx.protocol.models.decode_limits import DecodeLimits
from lmx.protocol.states import MediaForm, MediaKind
from lmx.worker.isolation.confine import end_after, ignore_terminal, limit_memory, read_exactly
from lmx.worker.media.decoding import container, pictures
from lmx.worker.media.decoding.container import DEMUXERS
from lmx.worker.media.decoding.pictures import FORMATS, decode_picture
from lmx.worker.media.decoding.result import Decoded, RefusedError
from lmx.worker.media.decoding.sounds import decode_sound
from lmx.worker.media.decoding.videos import decode_video
from lmx.worker.media.wire import REPLY_HEAD, REQUEST_HEAD, DecodeOrder, Outcome

_Decoder = Callable[[bytearray, DecodeOrder, DecodeLimits], Decoded]
_DECODERS: Final[Mapping[MediaKind, tuple[_Decoder, frozenset[MediaForm]]]] = {
    MediaKind.IMAGE: (decode_picture, frozenset(FORMATS)),
    MediaKind.AUDIO: (decode_sound, frozenset(DEMUXERS)),
    MediaKind.VIDEO: (decode_video, frozenset(DEMUXERS)),
}

_MAX_REASON: Final = 200


def main() -> None:
    """Answer until the worker is gone. The one argument has the limits, as JSON."""
    limits = DecodeLimits(**json.loads(sys.argv[1]))
    ignore_terminal()
    pictures.prepare(limits)
    container.prepare()
    _confine(limits)
    # Both mean that the worker is gone.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _serve(limits)


def _confine(limits: DecodeLimits) -> None:
    # What the libraries write is about files of strangers, at their will.
    os.dup2(1, 2)
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(kind, (0, 0))
    limit_memory(limits.memory_bytes)
    # The three that are open stay so; every other one would get a higher number.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


def _serve(limits: DecodeLimits) -> None:
    with socket.socket(fileno=0) as worker:
        while (head := read_exactly(worker, REQUEST_HEAD.size)) is not None:
            order_bytes, file_bytes = REQUEST_HEAD.unpack(head)
            payload = read_exactly(worker, order_bytes)
            data = read_exactly(worker, file_bytes)
            if payload is None or data is None:
                return
            order = DecodeOrder.decode(payload)
            end_after(order.timeout_s)
            _limit_processor(order.cpu_s)
            result = _decode(data, order, limits)
            end_after(0)
            _reply(worker, result)
            del data, result
            # The objects of FFmpeg refer to each other in circles, and hold memory and threads.
            gc.collect()


def _limit_processor(max_s: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit_s = int(used.ru_utime + used.ru_stime + max_s) + 1
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    if most == resource.RLIM_INFINITY or limit_s < most:
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, most))


def _decode(
    data: bytearray, order: DecodeOrder, limits: DecodeLimits
) -> Decoded | tuple[Outcome, bytes]:
    decoder, forms = _DECODERS[order.kind]
    if order.form not in forms:
        return (
            Outcome.REFUSED,
            f"has the form {order.form.value}, which is not decoded here".encode(),
        )
    try:
        return decoder(data, order, limits)
    except MemoryError:
        return Outcome.OUT_OF_MEMORY, b""
    except RefusedError as error:
        return error.outcome, str(error).encode()
    except Exception as error:
        # The decoders raise whatever they run into.
        return Outcome.REFUSED, f"can't be decoded as {order.form.value}{_reason(error)}".encode(
            errors="replace"
        )


def _reason(error: Exception) -> str:
    """Return a decoder's words, where they are words for people."""
    if isinstance(error, FFmpegError):
        text = error.strerror or ""
    elif isinstance(error, (OSError, SyntaxError, ValueError)) and len(error.args) == 1:
        text = str(error)
    else:
        text = ""
    return f": {text[:_MAX_REASON]}" if text and "<" not in text else ""


def _reply(worker: socket.socket, result: Decoded | tuple[Outcome, bytes]) -> None:
    if not isinstance(result, Decoded):
        outcome, reason = result
        worker.sendall(REPLY_HEAD.pack(outcome, len(reason)) + reason)
        return
    head = result.head.encode()
    worker.sendall(REPLY_HEAD.pack(Outcome.DECODED, len(head)) + head)
    for array in (result.times_s, result.frames, result.samples):
        if array is not None:
            worker.sendall(array.data.cast("B") if array.flags.c_contiguous else array.tobytes())


if __name__ == "__main__":
    main()
