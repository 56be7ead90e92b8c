"""The worker's end of its renderer: a process of its own, so that a bad chat template can't end the
worker.

A process that renders for too long or takes too much memory is killed, and only the request that it
rendered for fails. The next request gets a new process, which is ready in about a tenth of a
second.
"""

import signal
from collections.abc import Mapping
from typing import Any, Final

import structlog

from lmx.worker.isolation.child import (
    MAX_SLOWDOWN,
    ChildEndedError,
    ChildMemoryError,
    ChildProcess,
    ChildTimeoutError,
    Exchange,
)
from lmx.worker.templates.render_wire import REPLY_HEAD, REQUEST_HEAD, Outcome, RenderRequest

log = structlog.get_logger()

MAX_BYTES: Final = 1 << 30
"""The most memory that rendering may take. The largest body that a router accepts by default, with
its copies in Python and its text, is half of it."""

_ALARM_GRACE_S: Final = 2.0
_BROKEN: Final = "broke the process that renders it"


class TemplateRefusedError(Exception):
    """The template raised an error; its words are the message."""


class TextTooLongError(Exception):
    """The template made more text than is wanted."""

    def __init__(self, text_bytes: int) -> None:
        super().__init__(f"{text_bytes} bytes")
        self.text_bytes = text_bytes


class RenderingEndedError(Exception):
    """The template took more time or memory than it may, or broke its process twice. The message
    continues a sentence that begins with "The template"."""


class Renderer(ChildProcess):
    """Renders one template at a time, for one thread, in at most one process."""

    def __init__(self, timeout_s: float, max_memory_bytes: int = MAX_BYTES) -> None:
        self._timeout_s = timeout_s
        super().__init__(
            "lmx.worker.templates.render_main", (str(max_memory_bytes),), max_memory_bytes
        )

    def render(self, source: str, variables: Mapping[str, Any], max_bytes: int) -> str:
        """Return the text that a template makes, at most ``max_bytes`` of UTF-8.

        ``variables`` are values of Python's own types. Blocks, but no longer than the time-out.
        Raises :class:`TemplateRefusedError`, also for variables that are nested too deeply,
        :class:`TextTooLongError`, :class:`RenderingEndedError`, ``OSError`` if no process can be
        started, and INSUFFICIENT_MEMORY if the process was killed from outside, twice.
        """
        alarm_s = MAX_SLOWDOWN * self._timeout_s + _ALARM_GRACE_S
        request = RenderRequest(source, dict(variables), max_bytes, alarm_s)
        try:
            payload = request.encode()
        except RecursionError as error:
            raise TemplateRefusedError("its values are nested too deeply") from error
        except ValueError as error:
            raise TemplateRefusedError("one of its numbers has too many digits") from error
        try:
            outcome, data = self._send(payload)
        except RenderingEndedError as error:
            log.warning("template.ended", reason=f"it {error}")
            raise
        match outcome:
            case Outcome.TEXT:
                return data.decode()
            case Outcome.REFUSED:
                raise TemplateRefusedError(data.decode())
            case Outcome.TOO_LONG:
                raise TextTooLongError(int(data))
            case Outcome.OUT_OF_MEMORY:
                # Its memory may be fragmented by now.
                self.close()
                log.warning("template.ended", reason="it took too much memory")
                raise self._too_large()

    def _send(self, payload: bytes) -> tuple[Outcome, bytes]:
        def talk(exchange: Exchange) -> tuple[Outcome, bytes]:
            exchange.send(REQUEST_HEAD.pack(len(payload)))
            exchange.send(payload)
            outcome, length = REPLY_HEAD.unpack(exchange.read(REPLY_HEAD.size))
            return Outcome(outcome), bytes(exchange.read(length))

        try:
            return self.ask(self._timeout_s, talk)
        except ChildTimeoutError as error:
            raise self._too_slow() from error
        except ChildMemoryError as error:
            raise self._too_large() from error
        except ChildEndedError as error:
            # On a busy machine its own alarm may come before this thread has its turn.
            if error.status == -signal.SIGALRM:
                raise self._too_slow() from error
            raise RenderingEndedError(_BROKEN) from error
        except ValueError as error:
            raise RenderingEndedError(_BROKEN) from error

    def _too_slow(self) -> RenderingEndedError:
        return RenderingEndedError(
            f"had not come to an end after {self._timeout_s:g} s and was stopped"
        )

    def _too_large(self) -> RenderingEndedError:
        mib = self._max_memory_bytes >> 20
        return RenderingEndedError(f"took more than {mib} MiB of memory and was stopped")
