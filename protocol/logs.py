"""structlog set up alike in every process, and a log file that a process rotates itself.

One line of JSON an event when stderr is not a terminal, a readable line when it is. Events
are named as facts ("worker.ready"); context variables bound with structlog (``request_id``)
go into each line. Library loggers (stdlib logging) come out in the same form.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, TextIO, cast

import structlog

from lmx.protocol.log_files import rotated

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure_logs(
    process: str,
    level: str = "info",
    *,
    copy_to: logging.Handler | None = None,
    changeable: bool = False,
    **fields: Any,
) -> None:
    """Set up structlog and stdlib logging to write to stderr.

    ``process`` and ``fields`` go into every line. ``copy_to`` also gets each line, as JSON;
    a terminal is then spared all below warning. ``changeable``: called again, another level holds
    also for loggers that were used before; each line costs a little more. Raises ``KeyError`` for
    an unknown level.
    """
    threshold = _LEVELS[level]
    terminal = sys.stderr.isatty()
    stderr = cast("TextIO", _Stderr())
    # Without local variables: in a router or a worker those are people's messages.
    tracebacks = structlog.processors.ExceptionRenderer(
        structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    )
    # ASCII alone: what a client sent must not reach a terminal as a control sequence.
    as_json = structlog.processors.JSONRenderer(default=str)
    fixed = {"process": process, "pid": os.getpid(), **fields}

    def add_fixed(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name, value in fixed.items():
            event.setdefault(name, value)
        return event

    shared: list[Callable[..., Any]] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=not terminal),
        structlog.processors.StackInfoRenderer(),
    ]

    def copy(logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if copy_to is not None:
            full = add_fixed(logger, name, tracebacks(logger, name, dict(event)))
            line = as_json(logger, name, full)
            copy_to.emit(logging.makeLogRecord({"msg": line}))
            if terminal and _LEVELS.get(event["level"], 50) < logging.WARNING:
                raise structlog.DropEvent
        return event

    last: list[Callable[..., Any]] = [copy]
    if terminal:
        last += [structlog.dev.ConsoleRenderer()]
    else:
        last += [add_fixed, tracebacks, as_json]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(stderr),
        cache_logger_on_first_use=not changeable,
    )
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(threshold, logging.WARNING))


class _Stderr:
    """Looks ``sys.stderr`` up at each write, and never raises: a full disk or a closed pipe
    must not take a server down."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return sys.stderr.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


class LogFile:
    """The file behind this process's stdout and stderr, rotated by size.

    Descriptors 1 and 2 point at the file, so that what C code, ``faulthandler`` and an
    abort print is kept too. The process owns its file: it can log, and rotate, without a
    supervisor. Not for two processes at once.
    """

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep

    def limit(self, max_bytes: int, keep: int) -> None:
        """Keep to other limits from here on."""
        self._max_bytes = max_bytes
        self._keep = keep

    def attach(self) -> None:
        """Point descriptors 1 and 2 at the file, appending; make its folder if needed."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def rotate_if_large(self) -> bool:
        """Start a new file when the present one is over the limit; keep ``keep`` old ones.

        Called on a timer. Returns whether it rotated. A full disk is no reason to stop
        serving: a failure is logged, and the next call tries again.
        """
        try:
            return self._rotate_if_large()
        except OSError as error:
            structlog.get_logger().warning("log.not_rotated", error=str(error))
            return False

    def _rotate_if_large(self) -> bool:
        try:
            if self._path.stat().st_size < self._max_bytes:
                return False
        except FileNotFoundError:
            self.attach()
            return False
        oldest_first = range(self._keep - 1, 0, -1)
        for number in oldest_first:
            with contextlib.suppress(FileNotFoundError):
                self._numbered(number).replace(self._numbered(number + 1))
        self._path.replace(self._numbered(1))
        self.attach()
        return True

    def _numbered(self, number: int) -> Path:
        return rotated(self._path, number)
