"""What models were measured at, kept from one run to the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.supervisor.state.state_file import StateFile, say_nothing

log = structlog.get_logger()

_MOST_ENTRIES: Final = 200


@dataclass(frozen=True, slots=True)
class Measurement:
    """``static_bytes``: of the worker once it was loaded, the latest figure. ``peak_bytes``: the
    most that any worker with these settings ever took, 0 while none has ended. ``measured_at_s``:
    since 1970."""

    static_bytes: int
    peak_bytes: int
    measured_at_s: float


class Measured:
    """Measurements by settings key (:mod:`lmx.supervisor.memory.plan`), in a file.

    A file that can't be used is set aside, and one that can't be written costs a line in the
    log: the estimate goes on without. One writer, the supervisor, has ``load`` of it; others
    ``peek``.
    """

    def __init__(self, file: StateFile[dict[str, Measurement]]) -> None:
        self._file = file
        self._entries: dict[str, Measurement] = {}

    @classmethod
    def load(cls, path: Path, say: Callable[[str], None] = say_nothing) -> Measured:
        """Return what is in the file of this process."""
        measured = cls(StateFile(path, _parse, say))
        measured._entries = measured._file.load() or {}
        return measured

    @classmethod
    def peek(cls, path: Path) -> Measured:
        """Return what is in another process's file."""
        measured = cls(StateFile(path, _parse))
        measured._entries = measured._file.peek() or {}
        return measured

    def lookup(self, key: str) -> Measurement | None:
        """Return what was measured, None if nothing was."""
        return self._entries.get(key)

    def record(self, key: str, static_bytes: int, peak_bytes: int) -> None:
        """Keep a measurement; 0 for a figure that wasn't taken. An empty key has no place."""
        known = self._entries.pop(key, Measurement(0, 0, 0.0))
        static_bytes = static_bytes or known.static_bytes
        if not key or not static_bytes:
            return
        peak_bytes = max(peak_bytes, known.peak_bytes)
        # At the end: the oldest come first.
        self._entries[key] = Measurement(static_bytes, peak_bytes, time.time())
        while len(self._entries) > _MOST_ENTRIES:
            del self._entries[next(iter(self._entries))]
        self._write()

    def _write(self) -> None:
        try:
            self._file.save({key: asdict(entry) for key, entry in self._entries.items()})
        except OSError as error:
            log.warning("measured.not_written", path=str(self._file.path), reason=str(error))


def _parse(found: Any) -> dict[str, Measurement]:
    entries = {
        str(key): Measurement(
            _whole(entry["static_bytes"]),
            _whole(entry["peak_bytes"]),
            float(entry["measured_at_s"]),
        )
        for key, entry in found.items()
    }
    return dict(sorted(entries.items(), key=lambda item: item[1].measured_at_s)[-_MOST_ENTRIES:])


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no number of bytes")
    return value
