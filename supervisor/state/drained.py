"""The file of the models that operators drained. It outlives the supervisor."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from lmx.supervisor.state.state_file import StateFile, say_nothing


class Holds:
    """A small JSON file, a list of model ids."""

    def __init__(self, path: Path, say: Callable[[str], None] = say_nothing) -> None:
        self._file = StateFile(path, _parse, say)

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._file.path

    def load(self) -> frozenset[str]:
        """Return the ids, none if there is no file. An unreadable file is set aside, and then no
        model is held: a model that answers does less harm than one that refuses requests while
        nobody knows why."""
        return self._file.load() or frozenset()

    def save(self, held: Collection[str]) -> None:
        """Write all ids, completely or not at all. Raises ``OSError``."""
        self._file.save(sorted(held))


def _parse(found: Any) -> frozenset[str]:
    if not isinstance(found, list):
        raise TypeError("it is no list")
    return frozenset(name for name in found if isinstance(name, str))
