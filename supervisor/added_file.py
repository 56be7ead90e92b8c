"""The models that were added while lmx ran, on disk: they outlive the supervisor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import ValidationError

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.config_model import AddedModelConfig
from lmx.supervisor.whole_file import write_whole

log = structlog.get_logger()

_KEYS: Final = ("id", "source", "context_length", "context_at_most", "parameters")
"""All that an added model says; the rest is as by default."""


class AddedFile:
    """``state/models.json``, ``{"models": [...]}``, each with :data:`_KEYS`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, AddedModelConfig]:
        """Return the added models by id, none if there is no file. What can't be read of it is
        logged and left out, and the file is moved aside: lmx starts without."""
        found, problem = self._look()
        if problem is not None:
            self._move_aside(problem)
        return found

    def read(self) -> dict[str, AddedModelConfig]:
        """Return what :meth:`load` does, and leave the file as it is: it is another's."""
        return self._look()[0]

    def _look(self) -> tuple[dict[str, AddedModelConfig], str | None]:
        found: dict[str, AddedModelConfig] = {}
        try:
            values = json.loads(self._path.read_text(encoding="utf-8"))["models"]
            entries = [dict(each) for each in values]
        except FileNotFoundError:
            return found, None
        except (OSError, LookupError, TypeError, ValueError) as error:
            return found, f"{type(error).__name__}: {error}"
        broken = []
        for entry in entries:
            try:
                model = AddedModelConfig.model_validate(
                    {key: entry[key] for key in _KEYS if key in entry}
                )
                found[model.id] = model
            except ValidationError:
                broken.append(entry.get("id"))
        return found, f"these can't be served: {broken}" if broken else None

    def save(self, models: Mapping[str, AddedModelConfig]) -> None:
        """Write all of them, whole or not at all. Raises :class:`OperationError`."""
        entries: list[dict[str, Any]] = [
            model.model_dump(mode="json", include=set(_KEYS)) for model in models.values()
        ]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self._path, json.dumps({"models": entries}, indent=1))
        except OSError as error:
            raise OperationError(
                ErrorCode.INTERNAL,
                f"can't write {self._path} ({error.strerror or error}), so nothing was changed",
            ) from error

    def _move_aside(self, why: str) -> None:
        aside = self._path.with_suffix(".broken")
        log.error("added_models.unreadable", path=str(self._path), moved_to=str(aside), error=why)
        try:
            self._path.replace(aside)
        except OSError as error:
            log.error("added_models.not_moved", path=str(self._path), error=str(error))
