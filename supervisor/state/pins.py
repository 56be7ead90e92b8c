"""The file of the models that operators pinned or unpinned. It outlives the supervisor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from lmx.supervisor.state.state_file import StateFile, say_nothing

log = structlog.get_logger()


class Pins:
    """A small JSON file, ``{model id: pinned}``, of what differs from the configuration."""

    def __init__(self, path: Path, say: Callable[[str], None] = say_nothing) -> None:
        self._file = StateFile(path, _parse, say)

    def load(self) -> dict[str, bool]:
        """Return the pins, empty if there are none. An unreadable file is set aside and counts as
        empty, because the pins of the configuration are as good a start."""
        return self._file.load() or {}

    def save(self, pins: Mapping[str, bool]) -> str | None:
        """Write all pins, completely or not at all. Returns None, or for people the file and the
        reason why it could not be written. Then the pins hold until the supervisor ends."""
        try:
            self._file.save(dict(sorted(pins.items())))
        except OSError as error:
            log.error("pins.not_written", path=str(self._file.path), error=str(error))
            return f"{self._file.path}: {error.strerror or error}"
        return None


def _parse(found: Any) -> dict[str, bool]:
    if not isinstance(found, dict):
        raise TypeError("it is no object")
    return {
        name: pinned
        for name, pinned in found.items()
        if isinstance(pinned, bool) and name.isprintable()
    }
