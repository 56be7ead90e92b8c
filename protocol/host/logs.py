"""Sets structlog up in the same way in every process, and has the log file that a process keeps
small itself.

Each event is one line of JSON, or a readable line if stderr is a terminal. Events have the names of
facts ("worker.ready"). Context variables that are bound with structlog (``request_id``) go into
each line. The loggers of libraries (stdlib logging) write in the same form. A line has a limit
(:mod:`lmx.protocol.free_text`), and writing one never raises.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, MutableMapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO, cast

import structlog

from lmx.protocol.free_text import MOST_VALUES, clamp, clamp_values, text_of
from lmx.protocol.host.log_files import append_to
from lmx.protocol.host.log_limit import LogLimit, keep_forever, keep_to
from lmx.protocol.host.quarantine_file import clear_for_file

log = structlog.get_logger()

_FIRST: Final = ("event", "level", "timestamp", "process", "pid")
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

    ``process`` and ``fields`` go into every line. ``copy_to`` also gets each line, as JSON, and
    then a terminal shows only warnings and worse. With ``changeable`` this function may be called
    again with another level, which then also holds for loggers that were used before; each line
    costs a little more. Raises ``KeyError`` for an unknown level.
    """
    threshold = _LEVELS[level]
    terminal = sys.stderr.isatty()
    stderr = cast("TextIO", _Stderr())
    # Tracebacks have no local variables, because in a router or a worker those hold people's
    # messages.
    tracebacks = structlog.processors.ExceptionRenderer(
        structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    )
    # Only ASCII is written: what a client sent must not reach a terminal as a control sequence.
    as_json = structlog.processors.JSONRenderer(default=str)
    to_line = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    fixed = {"process": process, "pid": os.getpid(), **fields}

    def add_fixed(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name, value in fixed.items():
            event.setdefault(name, value)
        return event

    shared: list[Callable[..., Any]] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]

    def copy(logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if copy_to is not None:
            full = add_fixed(logger, name, tracebacks(logger, name, dict(event)))
            line = as_json(logger, name, _cut(logger, name, full))
            copy_to.emit(logging.makeLogRecord({"msg": line}))
            if terminal and _LEVELS.get(event["level"], 50) < logging.WARNING:
                raise structlog.DropEvent
        return event

    last: list[Callable[..., Any]] = [copy]
    if terminal:
        last += [_local_time, lambda *event: clamp(str(to_line(*event)), MOST_VALUES)]
    else:
        last += [add_fixed, tracebacks, _cut, as_json]
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


def _cut(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cut what a line says to its limit. The first fields are the last to go: the event's name is
    put before them."""
    whole = {name: event[name] for name in _FIRST if name in event} | dict(event)
    cut: MutableMapping[str, Any] = clamp_values(whole)
    return cut


def _local_time(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Show the time as the clock on the wall does. Files have UTC."""
    if "timestamp" in event:
        at = datetime.fromisoformat(event["timestamp"]).astimezone()
        event["timestamp"] = at.strftime("%Y-%m-%d %H:%M:%S")
    return event


class _Stderr:
    """A stream that looks ``sys.stderr`` up at each write, and never raises: a full disk or a
    closed pipe must not end a server."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return sys.stderr.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


class LogFile:
    """The file behind this process's stdout and stderr, kept within its limit.

    Descriptors 1 and 2 point at the file, so that the output of C code, of ``faulthandler`` and of
    an abort is kept too. The process keeps the limit itself (:mod:`lmx.protocol.host.log_limit`),
    so that it can log without a supervisor."""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self.limit = LogLimit(max_bytes, keep)
        self._path = path
        self._seen = (0, 0)

    def attach(self) -> None:
        """Point descriptors 1 and 2 at the file, to append to it. Makes its folder if needed. Where
        the disk does not take a log, the process continues with the descriptors that it has."""
        try:
            self._attach()
        except OSError as error:
            log.warning("log.not_opened", path=str(self._path), error=text_of(error))

    def _attach(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        clear_for_file(self._path)
        sys.stdout.flush()
        sys.stderr.flush()
        descriptor = append_to(self._path)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def keep(self) -> None:
        """Keep the file within its limit from here on, in a thread of its own, so that a stuck disk
        does not delay the event loop, nor a busy event loop this. A file that was removed is made
        again."""
        keep_forever(self._keep_once, "log limit")

    def _keep_once(self) -> bool:
        """Return whether anything was written since the last time. The supervisor looks at this
        file twice a second all the same."""
        if not keep_to(self._path, self.limit):
            self._attach()
        found, before = self._path.stat(), self._seen
        self._seen = found.st_size, found.st_mtime_ns
        return self._seen != before
