"""The file of the latest events. It outlives the supervisor, so that after a crash or a restart the
story is still there."""

import json
from pathlib import Path
from typing import Any, Final

import structlog

from lmx.protocol.free_text import clamp, clamp_values
from lmx.protocol.host.log_files import append_to
from lmx.protocol.host.quarantine_file import clear_for_file, quarantine_file
from lmx.protocol.host.regular_file import TooLargeError, read_regular
from lmx.protocol.messages.control import Event, event_object
from lmx.supervisor.state.atomic_write import atomic_write

log = structlog.get_logger()

_MOST_BYTES: Final = 1024 * 1024
"""Beyond this size the older half goes. It is some thousand events."""

_READ_BYTES: Final = 8 * _MOST_BYTES


class EventFile:
    """``state/events.jsonl``: one event a line, in the form in which programs read it. One process
    writes to it at a time, and any number read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size_bytes: int | None = None
        """None: not known yet."""

        self._failed = False

    def keep(self, epoch: str, event: Event) -> None:
        """Add an event. Never raises: what happened continues, whatever becomes of its report. A
        disk that takes nothing costs the event alone, and is reported once: the log has the event
        too."""
        try:
            line = json.dumps(event_object(epoch, event)) + "\n"
            if self._size_bytes is None:
                clear_for_file(self._path)
                self._size_bytes = self._path.stat().st_size if self._path.exists() else 0
            if self._size_bytes > _MOST_BYTES:
                self._halve()
            self._append(line)
            self._size_bytes += len(line)
            self._failed = False
        except Exception as error:
            if not self._failed:
                log.error("events.write_failed", path=str(self._path), error=repr(error))
            self._failed = True

    def read(self) -> list[tuple[str, Event]]:
        """Return the events with their epochs, the oldest first. Lines that are no events, as after
        a crash, are left out."""
        try:
            text = read_regular(self._path, _READ_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError):
            return []
        found = []
        for line in text.splitlines():
            try:
                found.append(_event(json.loads(line)))
            except (ArithmeticError, ValueError, TypeError, LookupError, RecursionError):
                continue
        return found

    def _append(self, line: str) -> None:
        with open(append_to(self._path), "a", encoding="utf-8") as file:  # noqa: PTH123  of a descriptor
            file.write(line)

    def _halve(self) -> None:
        """Throw the older half away. A file that is far too large is not lmx's: it is set
        aside."""
        try:
            content = read_regular(self._path, _READ_BYTES)
        except TooLargeError as error:
            aside = quarantine_file(self._path)
            log.error(
                "events.quarantined", path=str(self._path), aside=aside.name, error=str(error)
            )
            self._size_bytes = 0
            return
        lines = content.decode("utf-8", "replace").splitlines(True)
        kept = "".join(lines[len(lines) // 2 :])
        atomic_write(self._path, kept)
        self._size_bytes = len(kept)


def _event(record: dict[str, Any]) -> tuple[str, Event]:
    event = Event(
        int(record["seq"]),
        float(record["at_s"]),
        str(record["name"]),
        None if record["model"] is None else str(record["model"]),
        clamp(str(record["detail"])),
        clamp_values(dict(record["data"])),
    )
    return str(record["epoch"]), event
