"""structlog set up alike in every process, and a log file that a process keeps small itself.

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

from lmx.protocol.host.log_limit import LogLimit, keep_forever, keep_to
from lmx.protocol.host.set_aside import clear_for_file

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
    """The file behind this process's stdout and stderr, kept within its limit.

    Descriptors 1 and 2 point at the file, so that what C code, ``faulthandler`` and an abort print
    is kept too. The process keeps to the limit itself (:mod:`lmx.protocol.host.log_limit`): it can
    log without a supervisor."""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self.limit = LogLimit(max_bytes, keep)
        self._path = path

    def attach(self) -> None:
        """Point descriptors 1 and 2 at the file, appending; make its folder if needed."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        clear_for_file(self._path)
        sys.stdout.flush()
        sys.stderr.flush()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def keep(self) -> None:
        """Keep it within its limit from here on, in a thread of its own: neither a stuck disk nor
        a busy event loop holds up the other. A file that was removed is made anew."""
        keep_forever(self._keep_once, "log limit")

    def _keep_once(self) -> None:
        if not keep_to(self._path, self.limit):
            self.attach()
