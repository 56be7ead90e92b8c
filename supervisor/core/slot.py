"""One configured model as the supervisor holds it: its settings, where it is in its life, and what
is known and counted of it. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Final

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.specs import AdapterSpec
from lmx.protocol.messages.status import LastExit
from lmx.protocol.messages.template import UNKNOWN_TEMPLATE, TemplateFacts
from lmx.protocol.states import ExitCause, MediaKind, ModelKind, SlotState
from lmx.supervisor.config.model import AddedModelConfig
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.decisions.slots.life import SlotLife
from lmx.supervisor.decisions.worker import Worker
from lmx.supervisor.memory.inspection import Inspection, ModelFacts
from lmx.supervisor.memory.plan import MemoryPlan

_MAY_PASS: Final = frozenset({ErrorCode.INSUFFICIENT_MEMORY})


@dataclass(frozen=True, slots=True)
class SlotFiles:
    """What is known about a model from its files."""

    path: Path | None = None
    """Its folder on this machine; None until a start or a fetch has found it."""
    inspection: Inspection | None = None
    """All that its files say; None until they were read."""
    kind: ModelKind | None = None
    """What the model is for; None if that is not configured and the files are not known."""
    facts: ModelFacts = field(default_factory=ModelFacts)
    """What its files say about it, for people."""
    needs: MemoryPlan | None = None
    """The memory that its next worker would get, from its files and from what was measured since.
    None if the files are not known, or the model can't be planned for."""
    unfetched: Mapping[str, str] = field(default_factory=dict)
    """Why adapters were not fetched with the model, for people, by their sources."""


@dataclass(frozen=True, slots=True)
class SlotPast:
    """What was counted and reported about a model's workers. No decision depends on it."""

    loads_total: int = 0
    """The loads that this supervisor saw from their start to their end."""
    load_s_total: float = 0.0
    """How long these loads took together."""
    loaded_at_s: float | None = None
    """The time of day when its worker became ready, in seconds since 1970; None if it has no worker
    that did."""
    restarts: int = 0
    """How often the model was started again after a worker's end, except an end that made room for
    another model."""
    exits: Mapping[ExitCause, int] = field(default_factory=dict)
    """The number of its workers' ends by cause."""
    last_exit: LastExit | None = None
    """How its last worker ended."""
    last_instance: str | None = None
    """That worker's name."""
    capabilities: tuple[str, ...] = ()
    """What its last worker said that requests may use."""
    template: TemplateFacts = UNKNOWN_TEMPLATE
    """What its last worker found that its chat template takes."""
    media: tuple[MediaKind, ...] | None = None
    """What its last worker said that the model takes besides text. None: no worker said it."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One model. Only the supervisor's core replaces it by another value."""

    model: ModelConfig
    """The configuration that its next worker gets."""
    life: SlotLife
    """Where the model is in its life. Only the transition table changes it."""
    pinned: bool = False
    """Whether the model is never evicted. An operator's word overrides the configuration."""
    files: SlotFiles = field(default_factory=SlotFiles)
    plan: MemoryPlan | None = None
    """The memory of the worker that it has or waits for. None for an adopted worker, and while the
    model's files are being read."""
    past: SlotPast = field(default_factory=SlotPast)

    @property
    def state(self) -> SlotState:
        return self.life.state

    @property
    def worker(self) -> Worker | None:
        """The model's worker, while the slot is OCCUPIED."""
        return self.life.worker

    @property
    def ready_worker(self) -> Worker | None:
        """The worker, if it takes requests."""
        return self.life.ready_worker

    @property
    def problem(self) -> str | None:
        """Why the model is down, or would be if it were started now, for people."""
        if self.life.problem is not None:
            return self.life.problem.message
        if self.worker is None and self.files.inspection is not None:
            return self.files.inspection.problem
        return None

    @property
    def failed(self) -> bool:
        """Whether that problem is one that somebody has to fix. A lack of memory may pass."""
        life = self.life.problem
        return self.problem is not None and (life is None or life.code not in _MAY_PASS)

    def adapter_problem(self, adapter_id: str) -> str | None:
        """Why one of the model's adapters can't be used, for people: that it could not be fetched;
        else what the worker says that has tried it, or what its files say. None: nothing is known
        to be wrong."""
        if (unfetched := self.files.unfetched.get(self.model.adapters[adapter_id])) is not None:
            return unfetched
        if self.ready_worker is not None:
            refused = self.ready_worker.refused_adapters
            return next((one.problem for one in refused if one.adapter_id == adapter_id), None)
        found = self.files.inspection
        if found is None or len(found.adapter_problems) != len(self.model.adapters):
            return None
        return dict(zip(self.model.adapters, found.adapter_problems, strict=True))[adapter_id]

    @property
    def adapter_specs(self) -> tuple[AdapterSpec, ...]:
        """The model's adapters as its next worker gets them."""
        found = self.files.inspection
        paths = found.adapter_paths if found is not None else ()
        specs = []
        for (adapter_id, source), path in zip_longest(self.model.adapters.items(), paths):
            problem = self.files.unfetched.get(source)
            if path is None and problem is None:
                problem = f"{source} is not on this machine: reload the model"
            specs.append(AdapterSpec(adapter_id, path or "", problem))
        return tuple(specs)

    @property
    def added(self) -> bool:
        """Whether the model was added while lmx ran."""
        return isinstance(self.model, AddedModelConfig)

    @property
    def context_length(self) -> int | None:
        """The context length that the model's worker has, or the next one will have, else the one
        that is set. None: the model's own, which is not known."""
        if self.worker is not None and self.worker.context_length:
            return self.worker.context_length
        planned = self.plan or self.files.needs
        return (planned.context_tokens if planned else None) or self.model.context_length

    def with_life(self, life: SlotLife) -> Slot:
        """Return the slot in another state of its life. A plan is for one run, and is dropped when
        the worker has ended or will not be started."""
        runs = life.worker is not None or life.need_bytes is not None
        return replace(self, life=life, plan=self.plan if runs else None)

    def with_files(self, files: SlotFiles) -> Slot:
        """Return the slot with other knowledge of its files."""
        return replace(self, files=files)
