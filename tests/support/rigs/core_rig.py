"""A core with nothing real around it, and short words for what its tests do to it."""

from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmx.protocol.messages import control
from lmx.protocol.messages.status import WorkerFigures
from lmx.protocol.states import WorkerState
from lmx.supervisor.config.model import AddedModelConfig, ModelConfig
from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.control.handlers import Handlers
from lmx.supervisor.control.inventory import added_handlers
from lmx.supervisor.control.loading import Loading
from lmx.supervisor.control.models import ModelCommands
from lmx.supervisor.control.planning import Planning
from lmx.supervisor.core.core import Core
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.decisions.ledger import Ledger
from lmx.supervisor.decisions.slots.demand import Requester
from lmx.supervisor.decisions.worker import Worker
from lmx.supervisor.inventory.added import AddedModels, with_added
from lmx.supervisor.inventory.added_file import AddedFile
from lmx.supervisor.memory.inspect_main import inspect
from lmx.supervisor.memory.inspection import Inspection, Question
from lmx.supervisor.memory.plan import Estimate, MemoryPlan
from lmx.supervisor.state.home import Home
from tests.support.fakes.fake_actions import FakeActions

REQUESTER = Requester(b"router", 7)


class NoFile(AddedFile):
    """Nothing on a disk."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))

    def load(self) -> dict[str, AddedModelConfig]:
        return {}

    def save(self, models: Mapping[str, AddedModelConfig]) -> None:
        pass


class AtOnce(Handlers):
    """Answers that need no event loop: nothing that they wait for takes any time here."""

    def _answer_later(self, requester: Requester, work: Coroutine[Any, Any, Any]) -> None:
        answering = self._work(requester, work)
        try:
            answering.send(None)
        except StopIteration:
            return
        answering.close()
        raise AssertionError("this waits")


class CoreRig:
    """``needs``: bytes by model. ``models``: settings by model, beside ``config``'s sections.
    ``up``: the models that are up at the start.
    Workers may be silent for as long as they like: no test here has them beat each second."""

    def __init__(
        self,
        needs: dict[str, int],
        budget: int = 1000,
        models: dict[str, dict[str, Any]] | None = None,
        pins: dict[str, bool] | None = None,
        added_file: AddedFile | None = None,
        up: Iterable[str] = (),
        **config: Any,
    ) -> None:
        self.actions = FakeActions(needs)
        self.config = make_config(needs, models, **config)
        self.in_cache: set[str] = set()
        file = added_file or NoFile()
        in_file = file.load()
        self.settings = Settings(with_added(self.config, in_file))
        self.core = Core(self.settings, Ledger(budget), self.actions, "epoch", pins or {})
        self.settings.on_change(self.core.reconfigured)
        self.added = AddedModels(
            file, in_file, self.core, self.settings, self.inspect, lambda: self.now_s
        )
        self.replacing = False
        loading = Loading(
            self.core, self.added, self.inspect, lambda: self.now_s, lambda: self.replacing
        )
        self.commands = AtOnce(self.actions.reply)
        planning = Planning(
            self.core, self.inspect, self.no_hub, self.no_estimate, lambda: self.now_s
        )
        commands = ModelCommands(self.core, loading, planning)
        self.commands.add(commands.handlers)
        self.commands.add_waiter(control.Acquire, commands.acquire)
        self.commands.add(added_handlers(self.added, lambda: self.replacing))
        self.now_s = 0.0
        self._asked = 0
        for name in up:
            self.up(name)

    async def inspect(self, question: Question) -> Inspection:
        if question.source in self.in_cache:
            return Inspection(question, "/models/cached")
        found = inspect(question, Home(Path("/nowhere")))
        if found.problem is not None or found.source_problem is not None:
            return found
        return replace(found, facts=self.actions.facts)

    async def no_hub(self, question: Question) -> tuple[int, Inspection]:
        raise AssertionError(f"the hub is asked for {question.source}")

    def no_estimate(self, model: ModelConfig, found: Inspection) -> tuple[Estimate, MemoryPlan]:
        raise AssertionError(f"{model.id} is estimated: the actions plan for it")

    def slot(self, name: str) -> Slot:
        return self.core.slots[name]

    def worker(self, name: str) -> Worker:
        worker = self.slot(name).worker
        assert worker is not None
        return worker

    def state(self, name: str) -> str:
        slot = self.slot(name)
        return str(slot.worker.state if slot.worker else slot.state)

    def ask(self, name: str, wait_s: float = 600.0, waited_s: float = 0.0) -> Requester:
        """A router's request for a model."""
        self._asked += 1
        requester = Requester(b"router", self._asked)
        self.commands.answer(requester, control.Acquire(name, wait_s, "r", waited_s), self.now_s)
        return requester

    def operate(self, question: Any) -> Any:
        """An operator's question; returns the answer."""
        self.commands.answer(REQUESTER, question, self.now_s)
        return self.actions.replies[-1][1]

    def answer(self, requester: Requester) -> Any:
        """What an asker was told, None while it waits."""
        found = [message for to, message in self.actions.replies if to == requester]
        assert len(found) <= 1
        return found[0] if found else None

    def said(self, name: str, message: type[Any], *fields: Any, **named: Any) -> None:
        instance = self.worker(name).instance
        self.core.worker_reported(instance, message(instance, *fields, **named), self.now_s)

    def bring_up(self, name: str, memory_bytes: int | None = None) -> None:
        """Its worker says Hello and has loaded what it needs."""
        measured = self.actions.needs.get(name, 100) if memory_bytes is None else memory_bytes
        self.said(name, control.WorkerHello, name, 1, WorkerState.STARTING)
        self.said(name, control.Loaded, measured, 2048, 0.1)

    def beat(
        self,
        name: str,
        rows: int = 0,
        idle_for_s: float = 0.0,
        keep_alive_s: float | None = None,
        **figures: Any,
    ) -> None:
        """What it measures and counts is usual but for ``figures``."""
        usual: dict[str, Any] = {
            "memory_bytes": self.actions.needs.get(name, 100),
            "requests_total": 1,
        }
        self.said(
            name, control.WorkerBeat, self.worker(name).state, rows, 0, 0.0,
            WorkerFigures(**(usual | figures)), idle_for_s=0.0 if rows else idle_for_s,
            keep_alive_s=keep_alive_s,
        )  # fmt: skip

    def up(self, name: str) -> None:
        """A request, its answer, and the model is idle."""
        self.ask(name)
        self.bring_up(name)
        self.beat(name)

    def exits(self, name: str, status: int = 0, *, settled: bool = True) -> None:
        instance = self.worker(name).instance
        self.core.worker_exited(instance, status, self.now_s)
        if settled:
            self.settle(instance)

    def settle(self, instance: str, missing_bytes: int = 0) -> None:
        self.actions.parted.pop(instance, None)
        of = (name for name, one in self.core.slots.items() if one.past.last_instance == instance)
        self.core.memory_settled(instance, next(of, None), missing_bytes, self.now_s)

    def drains(self, name: str) -> None:
        """It agrees to go, and goes."""
        self.said(name, control.Drained)
        self.exits(name)

    def at(self, now_s: float) -> None:
        self.now_s = now_s
        self.core.tick(now_s, 0.0)

    def sent(self, name: str) -> list[Any]:
        instance = self.worker(name).instance
        return [message for to, message in self.actions.sent if to == instance]

    def noted(self, name: str) -> list[tuple[str | None, dict[str, Any]]]:
        return [(model, data) for event, model, data in self.actions.notes if event == name]


def make_config(
    needs: dict[str, int], models: dict[str, dict[str, Any]] | None = None, **config: Any
) -> Config:
    settings = models or {}
    timing = {"beat_timeout_s": 86_400, **config.pop("timing", {})}
    return Config.model_validate(
        {
            "models": [
                {
                    "id": name,
                    "source": f"/{name}",
                    "aliases": [f"{name}-alias"],
                    **settings.get(name, {}),
                }
                for name in needs
            ],
            "timing": timing,
            **config,
        }
    )
