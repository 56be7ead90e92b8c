"""Retries small changes on the disk that must succeed in the end, and must not break their caller.

A disk may be full, read-only or gone for a while. The end of a process is a fact all the same: lmx
continues, and brings the file up to date when the disk is there again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from lmx.supervisor.events import Events

log = structlog.get_logger()

_FIRST_S: Final = 0.5
_MOST_S: Final = 30.0

Change = Callable[[], None]
"""A function that changes one file, and raises ``OSError`` when it can't. Calling it twice must do
no harm."""


def change_once(path: Path, change: Change) -> None:
    """Change a file, and log a failure. It is for processes that do not stay to try again."""
    try:
        change()
    except OSError as error:
        log.error("disk.failed", path=str(path), error=str(error))


@dataclass(slots=True)
class _Pending:
    change: Change
    wait_s: float
    at_s: float


class DiskRetry:
    """The latest failed change of each file. It is tried again, with a growing pause. There is one
    event when a file can't be changed, and one when it was changed at last."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._pending: dict[Path, _Pending] = {}

    def change(self, path: Path, change: Change) -> None:
        """Change a file now, or as soon as the disk allows it. Never raises ``OSError``."""
        try:
            change()
        except OSError as error:
            known = self._pending.get(path)
            wait_s = _FIRST_S if known is None else known.wait_s
            self._pending[path] = _Pending(change, wait_s, time.monotonic() + wait_s)
            if known is None:
                self._events.note(
                    "disk.failed", None, f"{error}: lmx continues, and tries again", path=str(path)
                )
            return
        self._settled(path)

    def tick(self, now_s: float, _paused_s: float) -> None:
        """Try the changes again that are due."""
        for path, pending in list(self._pending.items()):
            if now_s < pending.at_s:
                continue
            try:
                pending.change()
            except OSError:
                pending.wait_s = min(2 * pending.wait_s, _MOST_S)
                pending.at_s = now_s + pending.wait_s
            else:
                self._settled(path)

    def _settled(self, path: Path) -> None:
        if self._pending.pop(path, None) is not None:
            self._events.note(
                "disk.recovered", None, "the file is as it should be again", path=str(path)
            )
