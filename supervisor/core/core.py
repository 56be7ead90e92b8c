"""The supervisor's single writer: every fact comes in here, every decision goes out of here.

One thread, no awaits: each method takes one event to its end, and then decides anew who starts and
who gives way (:mod:`lmx.supervisor.decisions.placement`). What touches the world (processes,
sockets, files) is behind :class:`lmx.supervisor.core.actions.Actions`, so that the whole of it
runs in tests without any."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.messages.snapshot import Snapshot
from lmx.protocol.messages.status import ModelStatus
from lmx.protocol.states import ExitCause, LoadPhase, MemoryPressure, SlotState
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.config.settings import Change, Settings
from lmx.supervisor.config.sources import HubSource, parse_source
from lmx.supervisor.core.actions import Actions
from lmx.supervisor.core.apply_config import ApplyConfig
from lmx.supervisor.core.inspect_files import inspect_files
from lmx.supervisor.core.operator_commands import OperatorCommands
from lmx.supervisor.core.placer import Placer, positions
from lmx.supervisor.core.slot import MAX_WAITERS, Asker, Slot, Waiter
from lmx.supervisor.core.slot_life import SlotLife
from lmx.supervisor.core.unavailable import drained, not_ready, quarantined
from lmx.supervisor.core.view import PublicState, known_names, model_status
from lmx.supervisor.decisions import lifecycle
from lmx.supervisor.decisions.ledger import Ledger
from lmx.supervisor.decisions.reclaim import Returned
from lmx.supervisor.decisions.worker import (
    DrainAsked,
    KillAsked,
    ProcessExited,
    StopAsked,
    Tick,
    Worker,
)
from lmx.supervisor.memory.inspection import Inspection

log = structlog.get_logger()


class Core:
    """All slots, the ledger, and the rules between them. ``pins``: what operators pinned and
    unpinned, where it differs from the configuration. ``held``: the models that they drained."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        actions: Actions,
        epoch: str,
        pins: Mapping[str, bool] | None = None,
        held: Collection[str] = (),
    ) -> None:
        self._settings = settings
        self.ledger = ledger
        self.epoch = epoch
        self.slots: dict[str, Slot] = {model.id: Slot(model) for model in settings.current.models}
        self._pins = dict(pins or {})
        self._actions = actions
        self._life = SlotLife(settings, ledger, actions, epoch, self.flush)
        self._placer = Placer(self.slots, ledger, self._life, actions, settings)
        self.operator = OperatorCommands(self._life, self._placer, actions, self._pins, self.want)
        self._public = PublicState(actions, epoch)
        self._unread: set[str] = set()
        self._take_names()
        for slot in self.slots.values():
            slot.pinned = self._pins.get(slot.model.id, slot.model.pinned)
            if slot.model.id in held:
                slot.held, slot.state = True, SlotState.HELD
            inspect_files(slot, actions)
        self._kept_holds = self._holds()

    def slot(self, name: str) -> Slot:
        """Return the slot of a model id, an alias or a repository. Raises :class:`LmxError`
        (model_not_found)."""
        model_id = self._names.get(name)
        if model_id is None:
            raise LmxError(
                ErrorCode.MODEL_NOT_FOUND,
                f"no model is named {name!r}; known: {known_names(self._configured())}",
                param="model",
            )
        return self.slots[model_id]

    @property
    def stopping(self) -> bool:
        """Whether lmx is going down: nothing is started any more."""
        return self._life.stopping

    def begin_stopping(self) -> None:
        """Start nothing from here on; what runs goes on until :meth:`stop_workers`."""
        self._life.stopping = True

    @property
    def workers(self) -> list[Worker]:
        """Every worker whose exit was not observed yet."""
        return [slot.worker for slot in self.slots.values() if slot.worker is not None]

    @property
    def swaps_total(self) -> int:
        """How many workers ended to make room for another model."""
        return self._life.swaps_total

    # Wishes.

    def acquire(
        self, slot: Slot, asker: Asker, wait_s: float, waited_s: float, now_s: float
    ) -> None:
        """Have a request wait until the model is ready; it gets exactly one reply, within
        ``wait_s``. Raises :class:`LmxError` where it can't wait."""
        if slot.held:
            raise drained(slot)
        if slot.state is SlotState.QUARANTINED:
            raise quarantined(slot)
        if self.stopping:
            raise UnavailableError(ErrorCode.SHUTTING_DOWN, "lmx is shutting down")
        if len(slot.waiters) >= MAX_WAITERS:
            raise UnavailableError(
                ErrorCode.QUEUE_FULL,
                f"{MAX_WAITERS} requests wait for {slot.model.id} already",
                retry_after_s=10.0,
            )
        slot.waiters.append(Waiter(asker, now_s + wait_s, now_s - max(0.0, waited_s)))
        self.want(slot, now_s)

    def withdraw(self, name: str, identity: bytes, now_s: float) -> None:
        """Forget the questions of a router whose requests for a model have all left: nobody
        gives way for them any more. What has begun (a fetch, a load, a drain) goes on."""
        slot = self.slots.get(self._names.get(name, name))
        if slot is None or not slot.take_waiters_of(identity):
            return
        if slot.state is SlotState.QUEUED and slot.asked_at_s(now_s) is None:
            self._life.park(slot, SlotState.COLD)
            slot.wanted = False
            detail = "the requests that waited for it have left: its next one loads it"
            self._actions.note("model.stays_cold", slot.model.id, detail)
        self._placer.place(now_s)

    def want(self, slot: Slot, now_s: float) -> None:
        """Have the model running: start it if it is cold, else let it go on. Nobody is evicted
        for it unless somebody waits."""
        if self.stopping:
            raise UnavailableError(ErrorCode.SHUTTING_DOWN, "lmx is shutting down")
        slot.wanted = True
        if slot.state is SlotState.COLD:
            self._life.begin(slot, now_s)
        self._placer.place(now_s)

    def preload(self, now_s: float, but: Collection[str] = ()) -> None:
        """Start what is to be there from the beginning, pinned models first, as far as there is
        room; not those whose ids are in ``but``."""
        cold = [
            slot
            for slot in self._configured()
            if slot.model.preload and slot.state is SlotState.COLD and slot.model.id not in but
        ]
        for slot in sorted(cold, key=lambda slot: not slot.pinned):
            slot.wanted = True
            self._life.begin(slot, now_s)
        self._placer.place(now_s)

    def stop_workers(self, now_s: float, *, at_once: bool) -> None:
        """End every worker and fetch; nothing starts from here on."""
        self.begin_stopping()
        for slot in self.slots.values():
            try:
                self._stop_worker(slot, now_s, at_once=at_once)
            except Exception:
                # A bug in one model's affairs must not keep the others running.
                log.exception("stop.failed", model=slot.model.id)

    def _stop_worker(self, slot: Slot, now_s: float, *, at_once: bool) -> None:
        detail = "lmx is shutting down"
        slot.wanted = False
        if slot.worker is not None:
            ask = KillAsked if at_once else StopAsked
            self._life.step(slot, ask(ExitCause.SHUTDOWN, detail), now_s)
        if slot.state in (SlotState.FETCHING, SlotState.QUEUED):
            self._life.park(slot, SlotState.COLD)
        self._life.failures.deny_waiters(slot, UnavailableError(ErrorCode.SHUTTING_DOWN, detail))

    def reconfigured(self, change: Change, now_s: float) -> None:
        """Take another configuration while all goes on: only the models that it changes notice.
        The ledger has the budget of the new one already."""
        planned_anew = change.new.memory != change.old.memory
        changes = change.diff.models
        ApplyConfig(self.slots, self._life, self._pins).carry_out(change.new, changes, now_s)
        self._take_names()
        anew = (*changes.added, *changes.respawned, *changes.touched)
        for slot in self._configured():
            if slot.state is SlotState.QUEUED and (planned_anew or slot.model.id in anew):
                self._life.enqueue(slot, now_s)
            elif planned_anew or slot.model.id in anew:
                inspect_files(slot, self._actions)
        self._placer.place(now_s)

    # Facts.

    def adopt(self, instance: str, model_id: str, pid: int, held_bytes: int, now_s: float) -> bool:
        """Take over a worker that an earlier supervisor started; False if it has no place."""
        slot = self.slots.get(model_id)
        if self.stopping or slot is None or slot.worker is not None:
            return False
        if slot.state is SlotState.FETCHING:
            self._actions.stop_fetch(model_id)
        slot.worker = lifecycle.adopted(
            instance, model_id, pid, self._life.limits(slot.model), now_s
        )
        slot.state, slot.wanted, slot.plan = SlotState.OCCUPIED, not slot.held, None
        slot.retry_at_s = None
        slot.path = self._actions.local_path(slot.model)
        self._life.by_instance[instance] = slot
        self.ledger.adopt(instance, held_bytes)
        log.info("worker.adopted", model=model_id, instance=instance, worker_pid=pid)
        if slot.held:
            detail = "an operator drained the model, before this supervisor took over"
            self._life.step(slot, DrainAsked(False, ExitCause.UNLOADED, detail), now_s)
        return True

    def reserve_once_read(self, instance: str) -> None:
        """Have an adopted worker hold at least what a start of its model would reserve, once the
        model's files have been read."""
        self._unread.add(instance)

    def planned_bytes(self, model_id: str, model: ModelConfig | None = None) -> int:
        """Return what a worker of the model would have reserved if it were started now, as it is
        or as ``model`` says; 0 if that can't be told: it has no folder on this machine, none that
        can be planned for, or one that was not read yet."""
        slot = self.slots.get(model_id)
        if slot is None:
            return 0
        model = model or slot.model
        if slot.inspection is None or slot.inspection.files is None:
            return 0
        try:
            return self._actions.plan_memory(model, slot.inspection).reserve_bytes
        except LmxError as error:
            log.warning("model.not_planned", model=model_id, error=error.message)
            return 0

    def knows(self, instance: str) -> bool:
        """Whether this instance is a worker of ours."""
        return instance in self._life.by_instance

    def worker(self, instance: str) -> Worker:
        """Return a worker of ours. Raises ``KeyError`` for another."""
        worker = self._life.by_instance[instance].worker
        assert worker is not None
        return worker

    def worker_said(self, instance: str, message: Any, now_s: float) -> None:
        """Take a worker's message; one of an unknown instance is dropped by the caller."""
        slot = self._life.by_instance[instance]
        self._life.step(slot, message, now_s)
        self._placer.place(now_s)

    def worker_exited(
        self, instance: str, status: int | None, now_s: float, *, out_of_memory: bool = False
    ) -> None:
        """Take the observed end of a worker process. Its bytes are nobody's until
        :meth:`memory_settled`."""
        slot = self._life.by_instance.get(instance)
        if slot is None:
            return
        self._life.step(slot, ProcessExited(status, out_of_memory), now_s)
        if slot.removed:
            del self.slots[slot.model.id]
        self._placer.place(now_s)

    def memory_settled(
        self, instance: str, missing_bytes: int, now_s: float, returned: Returned | None = None
    ) -> None:
        """Take what was measured back of an exited worker: all but ``missing_bytes``. Said
        again when more comes back. ``returned`` is what came back at first, for people."""
        self.ledger.settle(instance, missing_bytes)
        for slot in self.slots.values():
            if slot.last_exit is not None and slot.last_exit.instance == instance and returned:
                slot.last_exit = replace(slot.last_exit, returned=returned)
        self._placer.place(now_s)

    def set_pressure(self, level: MemoryPressure, now_s: float) -> None:
        """Take how near the machine is to running out of memory. While it is near nothing is
        begun, and idle models that are not pinned go, one after the other."""
        self._placer.pressure = level
        self._placer.place(now_s)

    def kill_for_memory(self, instance: str, detail: str, now_s: float) -> None:
        """SIGKILL a worker that grows while the machine runs out of memory; nothing if it has
        ended."""
        slot = self._life.by_instance.get(instance)
        if slot is not None:
            self._life.step(slot, KillAsked(ExitCause.OUT_OF_MEMORY, detail), now_s)

    def fetch_advanced(self, model_id: str, phase: LoadPhase, fraction: float | None) -> None:
        """Take a fetch's progress."""
        slot = self.slots.get(model_id)
        if slot is not None and slot.state is SlotState.FETCHING:
            slot.fetch_phase, slot.fetch_fraction = phase, fraction

    def fetch_ended(self, model_id: str, outcome: Path | LmxError, now_s: float) -> None:
        """Take a fetch's end: the model's folder, or why there is none."""
        slot = self.slots.get(model_id)
        if slot is None or slot.state is not SlotState.FETCHING:
            return
        slot.fetch_phase = slot.fetch_fraction = None
        slot.state = SlotState.COLD
        if isinstance(outcome, Path):
            slot.path = outcome
            if not self.stopping:
                self._life.enqueue(slot, now_s)
        else:
            self._life.failures.give_up(slot, outcome, now_s)
        self._placer.place(now_s)

    def inspected(self, model_id: str, found: Inspection, now_s: float) -> None:
        """Take what a model's files say."""
        slot = self.slots.get(model_id)
        if slot is not None:
            self._life.inspected(slot, found, now_s)
            worker = slot.worker
            if worker is not None and worker.instance in self._unread and slot.needs is not None:
                self._unread.discard(worker.instance)
                self.ledger.raise_to(worker.instance, slot.needs.reserve_bytes)
            self._placer.place(now_s)

    def files_changed(self, model_id: str) -> None:
        """Take that a model's files have come or are gone: what is told of it is read anew, and
        its next load begins with its fetch."""
        slot = self.slots.get(model_id)
        if slot is None:
            return
        if slot.worker is None and slot.state is not SlotState.QUEUED:
            slot.path = None
        inspect_files(slot, self._actions)

    def tick(self, now_s: float, paused_s: float) -> None:
        """Let time pass: deadlines of workers, backoffs, waiting requests, idle models."""
        for slot in list(self.slots.values()):
            try:
                self._tick_slot(slot, now_s, paused_s)
            except Exception:
                # A bug in one model's affairs must not stop the clock of the others.
                log.exception("tick.failed", model=slot.model.id)
        try:
            self._placer.place(now_s)
        except Exception:
            log.exception("tick.failed", model=None)

    def _tick_slot(self, slot: Slot, now_s: float, paused_s: float) -> None:
        if slot.worker is not None:
            self._life.step(slot, Tick(paused_s), now_s)
        elif slot.retry_at_s is not None and now_s >= slot.retry_at_s:
            slot.retry_at_s = None
            slot.state = SlotState.COLD
            if slot.wanted:
                self._life.begin(slot, now_s)
        for waiter in slot.take_overdue(now_s):
            late = not_ready(slot, self.positions(now_s).get(slot.model.id), now_s)
            self._actions.reply(waiter.asker, late)

    # What others see.

    @property
    def revision(self) -> int:
        """The number of the latest published snapshot."""
        return self._public.revision

    def positions(self, now_s: float) -> dict[str, int]:
        """Return the place of each model that waits for memory, from 1."""
        return positions(self.slots.values(), now_s)

    def flush(self, now_s: float) -> None:
        """Publish a snapshot if what it says has changed, and keep what operators drained. Called
        after each event."""
        self._public.flush(self.snapshot(now_s))
        holds = self._holds()
        if holds != self._kept_holds:
            self._kept_holds = holds
            self._actions.save_holds(holds)

    def snapshot(self, now_s: float) -> Snapshot:
        """Return the public state as of the last :meth:`flush`'s revision."""
        return self._public.snapshot(
            self._configured(), self._settings.current, self.ledger.free_bytes, now_s,
            stopping=self.stopping, no_loads=self._placer.hindrance or self._life.hindrance,
        )  # fmt: skip

    def status(self, now_s: float) -> tuple[ModelStatus, ...]:
        """Return every model as ``lmx-supervisor status`` shows it."""
        places = self.positions(now_s)
        memory = self._settings.current.memory
        return tuple(
            model_status(slot, self.ledger, memory, places.get(slot.model.id), now_s)
            for slot in self.slots.values()
        )

    # Within.

    def _configured(self) -> list[Slot]:
        return [slot for slot in self.slots.values() if not slot.removed]

    def _holds(self) -> frozenset[str]:
        return frozenset(slot.model.id for slot in self.slots.values() if slot.held)

    def _take_names(self) -> None:
        models = self._settings.current.models
        self._names = {name: model.id for model in models for name in (model.id, *model.aliases)}
        for model in models:
            # A repository is a name too, of the first model that is made of it.
            source = parse_source(model.source)
            if isinstance(source, HubSource):
                self._names.setdefault(source.repo_id, model.id)
