"""The memory that models were measured to take, kept in a file from one run to the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.supervisor.state.state_file import StateFile, discard_notice

log = structlog.get_logger()

_MOST_ENTRIES: Final = 200


@dataclass(frozen=True, slots=True)
class Measurement:
    """The memory of workers with the same settings."""

    static_bytes: int
    """What the worker took once its model was loaded. The latest figure counts."""
    peak_bytes: int
    """The most that any of these workers ever took; 0 while none has ended."""
    measured_at_s: float
    """In Unix time."""


class Measured:
    """Measurements by settings key (:mod:`lmx.supervisor.memory.plan`), in a file.

    A file that can't be read is set aside. When the file can't be written, the log says so, and
    the estimates continue without it. The supervisor is the only writer and calls ``load``; other
    processes call ``peek``.
    """

    def __init__(self, file: StateFile[dict[str, Measurement]]) -> None:
        self._file = file
        self._entries: dict[str, Measurement] = {}

    @classmethod
    def load(cls, path: Path, notify: Callable[[str], None] = discard_notice) -> Measured:
        """Return the measurements in the file, which this process may write."""
        measured = cls(StateFile(path, _parse, notify))
        measured._entries = measured._file.load() or {}
        return measured

    @classmethod
    def peek(cls, path: Path) -> Measured:
        """Return the measurements in the file, which belongs to another process."""
        measured = cls(StateFile(path, _parse))
        measured._entries = measured._file.peek() or {}
        return measured

    def lookup(self, key: str) -> Measurement | None:
        """Return the measurement for a key, or None."""
        return self._entries.get(key)

    def record(self, key: str, static_bytes: int, peak_bytes: int) -> None:
        """Keep a measurement. A figure of 0 was not taken. Nothing is kept for an empty key."""
        known = self._entries.pop(key, Measurement(0, 0, 0.0))
        static_bytes = static_bytes or known.static_bytes
        if not key or not static_bytes:
            return
        peak_bytes = max(peak_bytes, known.peak_bytes)
        # It goes to the end, so that the oldest come first.
        self._entries[key] = Measurement(static_bytes, peak_bytes, time.time())
        while len(self._entries) > _MOST_ENTRIES:
            del self._entries[next(iter(self._entries))]
        self._write()

    def _write(self) -> None:
        try:
            self._file.save({key: asdict(entry) for key, entry in self._entries.items()})
        except OSError as error:
            log.warning("measured.write_failed", path=str(self._file.path), reason=str(error))


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
