"""``python -m lmx.worker.templates.render_main``: renders chat templates for one worker, over the
socket on stdin.

It is a process of its own, because a template is code that came with a model: it may run for ever
or fill the memory, and then only the end of its process stops it.
"""

import contextlib
import socket
import sys
from typing import Final

from lmx.worker.isolation.confine import end_after, ignore_terminal, limit_memory, read_exactly
from lmx.worker.templates.environment import render
from lmx.worker.templates.render_wire import (
    REPLY_HEAD,
    REQUEST_HEAD,
    Outcome,
    RenderRequest,
    decode_request,
)

_MAX_REASON: Final = 2000


def main() -> None:
    """Answer until the worker is gone. The argument is how many bytes the process may take."""
    ignore_terminal()
    limit_memory(int(sys.argv[1]))
    # Both mean that the worker is gone.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _serve()


def _serve() -> None:
    with socket.socket(fileno=0) as worker:
        while (head := read_exactly(worker, REQUEST_HEAD.size)) is not None:
            payload = read_exactly(worker, *REQUEST_HEAD.unpack(head))
            if payload is None:
                return
            request = decode_request(payload)
            del payload
            end_after(request.timeout_s)
            outcome, data = _render(request)
            end_after(0)
            worker.sendall(REPLY_HEAD.pack(outcome, len(data)))
            worker.sendall(data)


def _render(request: RenderRequest) -> tuple[Outcome, bytes]:
    try:
        data = _encoded(render(request.source, request.variables))
    except MemoryError:
        return Outcome.OUT_OF_MEMORY, b""
    except Exception as error:
        # A template is the model's code with a stranger's values: it may raise anything.
        return Outcome.REFUSED, str(error)[:_MAX_REASON].encode(errors="replace")
    if len(data) > request.max_bytes:
        return Outcome.TOO_LONG, str(len(data)).encode()
    return Outcome.TEXT, data


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        # The arguments of a call may have half of a surrogate pair, as an escape: no tokenizer
        # takes it.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


if __name__ == "__main__":
    main()
