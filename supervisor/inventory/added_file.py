"""The file of the models that were added while lmx ran. It outlives the supervisor."""

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from lmx.protocol.errors import OperationError
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.state.state_file import StateFile, discard_notice

_KEYS: Final = ("id", "source", "context_length", "context_at_most", "parameters")
"""All keys of an added model. The other keys of a model have their defaults."""


class AddedFile:
    """``state/models.json``, ``{"models": [...]}``, each with :data:`_KEYS`."""

    def __init__(self, path: Path, notify: Callable[[str], None] = discard_notice) -> None:
        self._file = StateFile(path, _parse, notify)

    def load(self) -> dict[str, AddedModelConfig]:
        """Return the added models by id, none if there is no file.

        If some models in the file can't be read, the file is set aside, people are notified, and
        the models that can be read are written again. lmx starts in any case."""
        models, broken = self._file.load() or ({}, [])
        if broken:
            self._file.quarantine_file(f"has models that can't be served ({', '.join(broken)})")
            if models:
                with contextlib.suppress(OperationError):
                    self.save(models)
        return models

    def read(self) -> dict[str, AddedModelConfig]:
        """Return what :meth:`load` returns, and leave the file as it is, because it belongs to
        another process."""
        models, _ = self._file.peek() or ({}, [])
        return models

    def save(self, models: Mapping[str, AddedModelConfig]) -> None:
        """Write all models, completely or not at all. Raises :class:`OperationError`."""
        entries: list[dict[str, Any]] = [
            model.model_dump(mode="json", include=set(_KEYS)) for model in models.values()
        ]
        self._file.save_or_refuse({"models": entries})


def _parse(found: Any) -> tuple[dict[str, AddedModelConfig], list[str]]:
    """Return the models by id, and the ids of the entries that can't be read."""
    models: dict[str, AddedModelConfig] = {}
    broken: list[str] = []
    for entry in [dict(each) for each in found["models"]]:
        try:
            model = AddedModelConfig.model_validate(
                {key: entry[key] for key in _KEYS if key in entry}
            )
            _check_parameters(model)
        except (ValidationError, ValueError):
            broken.append(repr(entry.get("id"))[:80])
            continue
        models[model.id] = model
    return models, broken


def _check_parameters(model: AddedModelConfig) -> None:
    """Raise ``ValueError`` for values that could not be written or sent again."""
    json.dumps(model.parameters, allow_nan=False, ensure_ascii=False).encode()
