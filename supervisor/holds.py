"""Which models operators drained, on disk: it outlives the supervisor."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import structlog

from lmx.supervisor.whole_file import write_whole

log = structlog.get_logger()


class Holds:
    """A small JSON file, a list of model ids."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> frozenset[str]:
        """Return the ids, none if there is no file. An unreadable file is logged, and no model
        is held: a model that answers does less harm than one that refuses and nobody knows why."""
        try:
            found = json.loads(self.path.read_text())
        except FileNotFoundError:
            return frozenset()
        except (OSError, ValueError, RecursionError) as error:
            log.warning("holds.unreadable", path=str(self.path), error=str(error))
            return frozenset()
        if not isinstance(found, list):
            log.warning("holds.unreadable", path=str(self.path), error="not a list")
            return frozenset()
        return frozenset(name for name in found if isinstance(name, str))

    def save(self, held: Collection[str]) -> None:
        """Write all, whole or not at all. Raises ``OSError``."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(self.path, json.dumps(sorted(held)))
