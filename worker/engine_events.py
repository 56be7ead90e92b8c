"""What the engine thread tells the event loop."""

from __future__ import annotations

from typing import Any, Protocol

from lmx.protocol.states import LoadPhase
from lmx.worker.engine import Engine, ModelFacts
from lmx.worker.jobs import JobOutput


class EngineEvents(Protocol):
    """What the engine thread reports; every call arrives on the event loop."""

    def load_advanced(self, phase: LoadPhase, fraction: float | None, detail: str) -> None:
        """The load made progress."""

    def loaded(self, engine: Engine, facts: ModelFacts, load_s: float) -> None:
        """The engine can take rows."""

    def load_failed(self, error: Exception) -> None:
        """The engine is of no use."""

    def deliver(self, outputs: list[JobOutput]) -> None:
        """Jobs advanced or ended: the outputs of one or more steps."""

    def computed(self, task_id: int, result: Any) -> None:
        """A task is done; ``result`` is an exception when it failed."""

    def engine_broke(self, error: Exception) -> None:
        """A step raised. No row ends any more, and none will be taken."""
