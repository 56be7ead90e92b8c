"""What models were measured at, kept from one run to the next."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.supervisor.whole_file import write_whole

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
    """Measurements by settings key (:mod:`lmx.supervisor.settings_key`), in a file.

    A file that can't be used is set aside, and one that can't be written costs a line in the
    log: the estimate goes on without. One writer: the supervisor; others may read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries = self._read()

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

    def _read(self) -> dict[str, Measurement]:
        try:
            return _parse(json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.warning("measured.unreadable", path=str(self._path), reason=str(error))
            return {}
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            aside = self._path.with_suffix(".damaged")
            log.warning("measured.damaged", path=str(aside), reason=str(error))
            try:
                self._path.replace(aside)
            except OSError as failed:
                log.warning("measured.not_set_aside", reason=str(failed))
            return {}

    def _write(self) -> None:
        text = json.dumps({key: asdict(entry) for key, entry in self._entries.items()}, indent=1)
        try:
            write_whole(self._path, text)
        except OSError as error:
            log.warning("measured.not_written", path=str(self._path), reason=str(error))


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
