"""Which models operators pinned or unpinned, on disk: it outlives the supervisor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import structlog

from lmx.supervisor.whole_file import write_whole

log = structlog.get_logger()


class Pins:
    """A small JSON file, ``{model id: pinned}``, of what differs from the configuration."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, bool]:
        """Return the pins, empty if there are none. An unreadable file is logged and taken as
        empty: the configuration's pins are as good a start."""
        try:
            found = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("pins.unreadable", path=str(self._path), error=str(error))
            return {}
        if not isinstance(found, dict):
            log.warning("pins.unreadable", path=str(self._path), error="not an object")
            return {}
        return {name: pinned for name, pinned in found.items() if isinstance(pinned, bool)}

    def save(self, pins: Mapping[str, bool]) -> str | None:
        """Write all pins, whole or not at all. Returns why they could not be written, to what
        file, for people; None: they were. Without it they hold until the supervisor ends."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self._path, json.dumps(dict(pins), sort_keys=True))
        except OSError as error:
            log.error("pins.not_written", path=str(self._path), error=str(error))
            return f"{self._path}: {error.strerror or error}"
        return None
