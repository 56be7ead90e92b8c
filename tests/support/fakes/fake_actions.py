"""An :class:`lmx.supervisor.core.actions.Actions` that touches nothing and remembers everything."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.specs import AdapterSpec
from lmx.protocol.models.memory import Activations, MemoryModel
from lmx.protocol.states import ModelKind
from lmx.protocol.wire.endpoints import new_instance_id
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.core.actions import WorkerStart
from lmx.supervisor.decisions.slots.demand import Requester
from lmx.supervisor.decisions.worker import Worker
from lmx.supervisor.memory.inspection import Inspection, ModelFacts, ModelFiles, Question
from lmx.supervisor.memory.plan import MemoryPlan

FILES = ModelFiles(MemoryModel(100, 0, 0, (), Activations(1, False, 0, 0, 1, 0)), None, "0" * 64)
"""Of a model that says nothing."""


class FakeActions:
    """Processes are numbers; ``needs`` is what each model claims to need, in bytes. ``told``
    has replies and publications in their order. ``parted``: exited workers whose memory is being
    measured back; nothing settles it by itself. ``details``: the latest of each event's name.
    ``unread``: models whose files are still being read. ``working`` is what each needs on top of
    what it needs once it is loaded."""

    def __init__(self, needs: dict[str, int] | None = None) -> None:
        self.needs = needs or {}
        self.kinds: dict[str, ModelKind] = {}
        self.estimate_error: LmxError | None = None
        self.spawn_error: Exception | None = None
        self.alive: dict[int, str] = {}
        self.spawned: list[str] = []
        self.adapters: dict[str, tuple[AdapterSpec, ...]] = {}
        """What the last worker of each model was started with."""
        self.signals: list[tuple[int, int]] = []
        self.sent: list[tuple[str, Any]] = []
        self.replies: list[tuple[Requester, Any]] = []
        self.published: list[Any] = []
        self.reported: list[Any] = []
        self.fetching: set[str] = set()
        self.forgotten: list[str] = []
        self.notes: list[tuple[str, str | None, dict[str, Any]]] = []
        self.details: dict[str, str] = {}
        self.parted: dict[str, int] = {}
        self.remembered: list[tuple[str, int, int]] = []
        self.kept: dict[str, int] = {}
        self.pins: dict[str, bool] | None = None
        self.pins_write_failure: str | None = None
        self.held: frozenset[str] | None = None
        self.working: dict[str, int] = {}
        self.remote: set[str] = set()
        self.facts = ModelFacts()
        self.inspected: list[str] = []
        self.unread: set[str] = set()
        self._next_pid = 1000

    def wall_s(self) -> float:
        return 1_700_000_000.0

    def local_path(self, model: ModelConfig) -> Path | None:
        return None if model.id in self.remote else Path("/models") / model.id

    def inspect(self, model_id: str, question: Question) -> Inspection | None:
        self.inspected.append(model_id)
        if model_id in self.unread:
            return None
        if model_id in self.remote and question.path is None:
            return Inspection(question)
        kind = question.kind or self.kinds.get(model_id, ModelKind.CHAT)
        path = question.path or f"/models/{model_id}"
        return Inspection(question, path, kind=kind, facts=self.facts, files=FILES)

    def start_fetch(self, model: ModelConfig) -> None:
        assert model.id not in self.fetching
        self.fetching.add(model.id)

    def stop_fetch(self, model_id: str) -> None:
        self.fetching.discard(model_id)

    def plan_memory(self, model: ModelConfig, found: Inspection) -> MemoryPlan:
        if self.estimate_error is not None:
            raise self.estimate_error
        return MemoryPlan(
            self.needs.get(model.id, 100),
            activation_bytes=self.working.get(model.id, 0),
            settings_key=model.id,
        )

    def remember(self, plan: MemoryPlan, static_bytes: int, peak_bytes: int) -> None:
        self.remembered.append((plan.settings_key, static_bytes, peak_bytes))

    def instance_for(self, model: ModelConfig) -> str:
        return new_instance_id()

    def spawn(self, start: WorkerStart) -> int:
        if self.spawn_error is not None:
            raise self.spawn_error
        self.adapters[start.model.id] = start.adapters
        self._next_pid += 1
        self.alive[self._next_pid] = start.instance
        self.spawned.append(start.model.id)
        return self._next_pid

    def keep_reservation(self, worker: Worker, reserved_bytes: int) -> None:
        self.kept[worker.instance] = reserved_bytes

    def signal(self, worker: Worker, number: int) -> None:
        self.signals.append((worker.pid, number))

    def waited_s(self, worker: Worker, now_s: float) -> float:
        return 0.0

    def send(self, worker: Worker, message: Any) -> None:
        self.sent.append((worker.instance, message))

    def forget(self, worker: Worker) -> None:
        self.forgotten.append(worker.instance)
        self.alive.pop(worker.pid, None)

    def measure_back(self, worker: Worker, reserved_bytes: int) -> None:
        assert worker.instance not in self.parted
        self.parted[worker.instance] = reserved_bytes

    def save_pins(self, pins: Mapping[str, bool]) -> str | None:
        self.pins = dict(pins)
        return self.pins_write_failure

    def save_holds(self, held: Collection[str]) -> None:
        self.held = frozenset(held)

    def note(self, name: str, model_id: str | None, detail: str, **data: Any) -> None:
        self.notes.append((name, model_id, data))
        self.details[name] = detail

    def reply(self, requester: Requester, message: Any) -> None:
        self.replies.append((requester, message))
        self.reported.append(message)

    def publish(self, message: Any) -> None:
        self.published.append(message)
        self.reported.append(message)
