"""Owns the process that renders Markdown: it is started for the first text, does one request after
another, and is ended when it has been idle.

It is a process because the text is a model's and the patterns that read it are a library's: one
that never ends would hold the interpreter, and with it every stream
(docs/decisions/markdown-in-a-process.md).
"""

import asyncio
import contextlib
import signal
import sys
from collections import Counter
from typing import Final

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, RequestError, UnavailableError

# Not imported: what parses Markdown is for that process alone.
_MODULE: Final = "lmx.router.console.markdown_main"
_DEADLINE_S: Final = 5
_COMMAND: Final = (sys.executable, "-P", "-m", _MODULE, str(_DEADLINE_S))
_IDLE_S: Final = 60.0
_PATIENCE_S: Final = 30.0
"""The process ends itself after its time of the processor; this is for one that has been stopped,
say."""

_MOST_WAITING: Final = 32
_MOST_OWN: Final = 16
"""The most of them that one requester may have. A page sends one at a time, and more only where a
text is at fault."""

_LONGEST_LINE_BYTES: Final = 64 * 2**20
"""A tree takes about thirty bytes for a character, at worst."""

_log = structlog.get_logger()


class MarkdownProcess:
    """Renders for everybody, one request at a time. Used from one event loop only."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting: Counter[str] = Counter()
        self._process: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def render(self, line: bytes, requester: str) -> bytes:
        """Return the line that answers ``line``, without its end.

        Raises RATE_LIMIT_EXCEEDED (429) where many texts of ``requester`` wait, QUEUE_FULL (429)
        where many of all do, INVALID_VALUE (400) for a text that takes too long, INTERNAL where no
        process can be started.
        """
        if self._waiting[requester] >= _MOST_OWN:
            raise UnavailableError(
                ErrorCode.RATE_LIMIT_EXCEEDED,
                f"{_MOST_OWN} requests of this key or address wait to be rendered, as many as may "
                "at a time. Try again in a second.",
                retry_after_s=1.0,
            )
        if self._waiting.total() >= _MOST_WAITING:
            raise UnavailableError(
                ErrorCode.QUEUE_FULL,
                f"{_MOST_WAITING} texts wait to be rendered: try again in a few seconds.",
                retry_after_s=2.0,
            )
        self._waiting[requester] += 1
        try:
            async with self._turn:
                return await self._ask(line)
        finally:
            self._waiting[requester] -= 1
            if not self._waiting[requester]:
                del self._waiting[requester]

    async def close(self) -> None:
        """End the process."""
        process = self._process
        self._end()
        if process is not None:
            await process.wait()

    async def _ask(self, line: bytes) -> bytes:
        if self._idle is not None:
            self._idle.cancel()
        process = self._process
        was_idle = process is not None and process.returncode is None
        if process is None or process.returncode is not None:
            process = self._process = await _started()
        answer, status = b"", None
        try:
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    with contextlib.suppress(ConnectionError):
                        process.stdin.write(line + b"\n")
                        await process.stdin.drain()
                        answer = await process.stdout.readline()
                    if not answer.endswith(b"\n"):
                        status = await process.wait()
        finally:
            # Also where the client left: its answer would be taken for the next one's.
            if not answer.endswith(b"\n"):
                self._end()
        if was_idle and status not in (None, -signal.SIGPROF):
            # Somebody has ended it, perhaps before it had this text.
            return await self._ask(line)
        if not answer.endswith(b"\n"):
            _log.warning("markdown.given_up", size_bytes=len(line), exit_status=status)
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"The text takes more than {_DEADLINE_S} s of the processor to render: show it as "
                "it is.",
                param="blocks",
            )
        self._idle = asyncio.get_running_loop().call_later(_IDLE_S, self._end)
        return answer[:-1]

    def _end(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._process = None


async def _started() -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE_BYTES,
        )
    except OSError as error:
        raise LmxError(
            ErrorCode.INTERNAL, f"The process that renders Markdown was not started: {error}."
        ) from error
