"""The supervisor's single writer: every fact comes in here, and every decision goes out from here.

It has one thread and no awaits. Each method handles one event completely, and then decides again
which models start and which are evicted (:mod:`lmx.supervisor.decisions.placement`). What touches
the world (processes, sockets, files) is behind :class:`lmx.supervisor.core.actions.Actions`, so
that all of the core runs in tests without any of it."""

import math
import random
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import structlog

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.messages.snapshot import Snapshot
from lmx.protocol.messages.status import ModelStatus, ReturnedMemory
from lmx.protocol.states import DOWN, ExitCause, LoadPhase, MemoryPressure, SlotState
from lmx.supervisor.config.known_models import repository_of
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.config.settings import Change, Settings
from lmx.supervisor.config.sources import HubSource, parse_source
from lmx.supervisor.core.actions import Actions
from lmx.supervisor.core.apply_config import ApplyConfig
from lmx.supervisor.core.inspect_files import inspect_files
from lmx.supervisor.core.keep_alive import expires_at_s
from lmx.supervisor.core.operator_commands import OperatorCommands
from lmx.supervisor.core.placement_input import positions
from lmx.supervisor.core.placer import Placer
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.core.slot_store import SlotStore
from lmx.supervisor.core.view import PublicState, known_names, model_status
from lmx.supervisor.decisions import lifecycle
from lmx.supervisor.decisions.ledger import Ledger
from lmx.supervisor.decisions.placement_view import PlacementView
from lmx.supervisor.decisions.slots import events
from lmx.supervisor.decisions.slots.demand import Requester, Waiter
from lmx.supervisor.decisions.slots.life import SlotLife, held_life
from lmx.supervisor.decisions.worker import KillRequested, Tick, Worker
from lmx.supervisor.memory.inspection import Inspection

log = structlog.get_logger()

MACHINE: Final = "*"
"""What stands for the machine among the models that operators drained. No model has that name."""


class Core:
    """All slots, the ledger, and the rules between them. ``pins`` is what operators pinned and
    unpinned, if it differs from the configuration. ``held`` are the models that they drained, and
    ``MACHINE`` if they drained the machine."""

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
        self._pins = dict(pins or {})
        self._actions = actions
        self._store = SlotStore(settings, ledger, actions, epoch, self.flush)
        self._placer = Placer(self._store, ledger, actions, settings)
        self.operator = OperatorCommands(self._store, self._placer, actions, self._pins)
        self._public = PublicState(actions, epoch)
        self._unread: set[str] = set()
        self.drained = MACHINE in held
        """Whether an operator drained the machine."""
        self._take_names()
        for model in settings.current.models:
            life = held_life(model.id) if model.id in held else SlotLife(model.id)
            slot = Slot(model, life, self._pins.get(model.id, model.pinned))
            self._store.put(inspect_files(slot, actions))
        self._kept_holds = self._holds()
        self.after_event: Callable[[], None] = lambda: None
        """Called by each :meth:`flush`."""

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The present slot of every model, by model id. The next event may replace it."""
        return self._store.slots

    def slot(self, name: str) -> Slot:
        """Return the slot of a model id, an alias, an adapter, a repository or a short name of one.
        Raises :class:`LmxError` (model_not_found)."""
        model_id = self._names.get(name) or self._names.get(repository_of(name))
        if model_id is None:
            raise LmxError(
                ErrorCode.MODEL_NOT_FOUND,
                f"no model is named {name!r}; known: {known_names(self._configured())}",
                param="model",
            )
        return self.slots[model_id]

    def context_set_by_operator(self, slot: Slot) -> int | None:
        """Return the context that a model has by an operator's order, None if it has the one of the
        configuration."""
        found = slot.model.context_length
        configured = (
            model.context_length
            for model in self._settings.current.models
            if model.id == slot.model.id
        )
        return None if found in configured else found

    @property
    def stopping(self) -> bool:
        """Whether lmx is being stopped, so that nothing is started any more."""
        return self._store.stopping

    def refuse_while_stopping(self) -> None:
        """Raise :class:`LmxError` (shutting_down) if lmx is being stopped."""
        self._store.refuse_while_stopping()

    def begin_stopping(self) -> None:
        """Start nothing from here on. What runs continues until :meth:`stop_workers`."""
        self._store.stopping = True

    @property
    def workers(self) -> list[Worker]:
        """Every worker whose exit was not observed yet."""
        return [slot.worker for slot in self.slots.values() if slot.worker is not None]

    @property
    def swaps_total(self) -> int:
        """How many workers were evicted for another model."""
        return self._store.swaps_total

    # Wishes.

    def acquire(
        self, model_id: str, requester: Requester, wait_s: float, waited_s: float, now_s: float
    ) -> None:
        """Let a request wait until the model is ready. It gets exactly one reply, within
        ``wait_s``."""
        waiter = Waiter(requester, now_s + wait_s, now_s - max(0.0, waited_s))
        self._take(model_id, events.Requested(waiter), now_s)

    def withdraw(self, name: str, identity: bytes, now_s: float) -> None:
        """Forget the questions of a router whose requests for a model have all left, so that
        nothing is evicted for them any more. What has begun (a fetch, a load, a drain)
        continues."""
        model_id = self._names.get(name, name)
        if model_id in self.slots:
            self._take(model_id, events.Withdrawn(identity), now_s)

    def withdraw_all(self, identity: bytes, now_s: float) -> None:
        """Forget all questions of a router that has ended, as :meth:`withdraw` does."""
        for model_id in list(self.slots):
            self._store.step(model_id, events.Withdrawn(identity), now_s)
        self._placer.place(now_s)

    def preload(self, now_s: float, but: Collection[str] = ()) -> None:
        """Start the models that the configuration wants from the beginning, the pinned ones first,
        as far as there is room. Those whose ids are in ``but`` are left out."""
        cold = [
            slot
            for slot in self._configured()
            if slot.model.preload and slot.state is SlotState.COLD and slot.model.id not in but
        ]
        for slot in sorted(cold, key=lambda slot: not slot.pinned):
            self._store.step(slot.model.id, events.Preloaded(), now_s)
        self._placer.place(now_s)

    def drain(self, drained: bool, now_s: float) -> None:
        """Drain the machine, or let it take requests again. Models stay as they are."""
        if drained is not self.drained:
            self.drained = drained
            name = "machine.drained" if drained else "machine.undrained"
            self._actions.note(name, None, "by an operator")
            self.flush(now_s)

    def stop_workers(self, now_s: float, *, at_once: bool) -> None:
        """End every worker and fetch. Nothing starts from here on."""
        self.begin_stopping()
        for model_id in list(self.slots):
            try:
                self._store.step(model_id, events.ShutDown(at_once), now_s)
            except Exception:
                # A bug with one model must not keep the others running.
                log.exception("stop.failed", model=model_id)

    def reconfigured(self, change: Change, now_s: float) -> None:
        """Take another configuration while lmx runs. Only the models that it changes are affected.
        The ledger has the budget of the new configuration already."""
        replanned = change.new.memory != change.old.memory
        changes = change.diff.models
        ApplyConfig(self._store, self._pins).carry_out(change.new, changes, now_s)
        self._take_names()
        affected = (*changes.added, *changes.respawned, *changes.touched)
        for slot in self._configured():
            if slot.state is SlotState.QUEUED and (replanned or slot.model.id in affected):
                self._store.step(slot.model.id, events.Reread(), now_s)
            elif replanned or slot.model.id in affected:
                self._store.put(inspect_files(slot, self._actions))
        self._placer.place(now_s)

    # Facts.

    def adopt(self, instance: str, model_id: str, pid: int, held_bytes: int, now_s: float) -> bool:
        """Take over a worker that an earlier supervisor started. Returns False if there is no place
        for it."""
        slot = self.slots.get(model_id)
        if self.stopping or slot is None or slot.worker is not None:
            return False
        worker = lifecycle.adopted(instance, model_id, pid, self._store.limits(slot.model), now_s)
        # The plan of an adopted worker is not known.
        files = replace(slot.files, path=self._actions.local_path(slot.model))
        self._store.put(replace(slot, plan=None, files=files))
        self._store.by_instance[instance] = model_id
        self.ledger.adopt(instance, held_bytes)
        log.info("worker.adopted", model=model_id, instance=instance, worker_pid=pid)
        self._store.step(model_id, events.Adopted(worker), now_s)
        return True

    def reserve_once_read(self, instance: str) -> None:
        """Let an adopted worker hold at least what a start of its model would reserve, once the
        model's files have been read."""
        self._unread.add(instance)

    def is_unread(self, instance: str) -> bool:
        """Return whether the reservation of :meth:`reserve_once_read` is still to come."""
        return instance in self._unread

    def planned_bytes(self, model_id: str, model: ModelConfig | None = None) -> int:
        """Return what would be reserved for a worker of the model if it were started now, with the
        present settings or those of ``model``. Returns 0 if that is not known: the model has no
        folder on this machine, or the folder can't be planned for or was not read yet."""
        slot = self.slots.get(model_id)
        if slot is None:
            return 0
        model = model or slot.model
        inspection = slot.files.inspection
        if inspection is None or inspection.files is None:
            return 0
        try:
            return self._actions.plan_memory(model, inspection).reserve_bytes
        except LmxError as error:
            log.warning("model.not_planned", model=model_id, error=error.message)
            return 0

    def has_worker(self, instance: str) -> bool:
        """Return whether this instance is a worker of this supervisor."""
        return instance in self._store.by_instance

    def worker(self, instance: str) -> Worker:
        """Return a worker of this supervisor. Raises ``KeyError`` for any other instance."""
        worker = self.slots[self._store.by_instance[instance]].worker
        assert worker is not None
        return worker

    def worker_reported(self, instance: str, message: Any, now_s: float) -> None:
        """Take a worker's message. The caller drops messages of unknown instances."""
        self._take(self._store.by_instance[instance], message, now_s)

    def worker_exited(
        self, instance: str, status: int | None, now_s: float, *, out_of_memory: bool = False
    ) -> None:
        """Take the observed end of a worker process. No other worker can have its bytes until
        :meth:`memory_settled`."""
        model_id = self._store.by_instance.get(instance)
        if model_id is not None:
            exited = events.Exited(status, out_of_memory, jitter=random.random())
            self._take(model_id, exited, now_s)

    def memory_settled(
        self,
        instance: str,
        model_id: str | None,
        missing_bytes: int,
        now_s: float,
        memory: ReturnedMemory | None = None,
    ) -> None:
        """Take how much of an exited worker's memory came back: all but ``missing_bytes``. This is
        called again when more comes back. ``memory`` is what came back at first, for people.
        ``model_id`` is None for a process that was no worker of a model's own."""
        self.ledger.settle(instance, missing_bytes)
        slot = None if model_id is None else self.slots.get(model_id)
        if slot is not None:
            last_exit = slot.past.last_exit
            # The next worker may have ended too by now.
            is_last = slot.past.last_instance == instance
            if memory is not None and is_last and last_exit is not None:
                past = replace(slot.past, last_exit=replace(last_exit, memory=memory))
                self._store.put(replace(slot, past=past))
            if memory is not None or (is_last and not missing_bytes):
                # What comes back later is not another loss.
                event = events.MemorySettled(missing_bytes)
                self._store.step(slot.model.id, event, now_s)
        self._placer.place(now_s)

    @property
    def no_loads(self) -> str | None:
        """Why nothing at all can be started now, None if something can."""
        return self._placer.hindrance or self._store.no_starts

    def set_pressure(self, level: MemoryPressure, now_s: float) -> None:
        """Take how near the machine is to running out of memory. While it is near, nothing is
        started, and idle models that are not pinned are evicted, one after the other."""
        self._placer.pressure = level
        self._placer.place(now_s)

    def kill_for_memory(self, instance: str, detail: str, now_s: float) -> None:
        """End a worker that grows while the machine runs out of memory. Does nothing if it has
        ended.

        It gets SIGKILL; on macOS SIGTERM first, because there the wired memory of a process that is
        killed may never come back, and the memory would be shorter than before.
        """
        model_id = self._store.by_instance.get(instance)
        if model_id is not None:
            asked = KillRequested(ExitCause.OUT_OF_MEMORY, detail, sys.platform == "darwin")
            self._take(model_id, asked, now_s)

    def fetch_advanced(
        self, model_id: str, phase: LoadPhase, fraction: float | None, now_s: float
    ) -> None:
        if model_id in self.slots:
            self._store.step(model_id, events.FetchAdvanced(phase, fraction), now_s)

    def fetch_ended(
        self,
        model_id: str,
        outcome: Path | LmxError | OSError,
        now_s: float,
        unfetched: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Take the end of a fetch: the model's folder, or the error; an ``OSError`` if this machine
        ran no fetch. ``unfetched`` says why adapters could not be fetched, by their sources. The
        end of a fetch that was given up is ignored."""
        slot = self.slots.get(model_id)
        if slot is None or slot.state is not SlotState.FETCHING:
            return
        if isinstance(outcome, Path):
            for source, why in unfetched.items():
                self._actions.note("adapter.not_fetched", model_id, why, source=source)
            self._store.put(slot.with_files(replace(slot.files, path=outcome, unfetched=unfetched)))
            self._take(model_id, events.Fetched(), now_s)
        elif isinstance(outcome, OSError):
            message = f"can't fetch {slot.model.source}: {outcome.strerror or outcome}"
            error = UnavailableError(ErrorCode.DOWNLOAD_FAILED, message)
            failed = events.FetchFailed(error, by_host=True, jitter=random.random())
            self._take(model_id, failed, now_s)
        else:
            self._take(model_id, events.FetchFailed(outcome), now_s)

    def inspected(self, model_id: str, found: Inspection, now_s: float) -> None:
        """Take what a model's files say."""
        if model_id not in self.slots:
            return
        self._store.inspected(model_id, found, now_s)
        slot = self.slots[model_id]
        worker, needs = slot.worker, slot.files.needs
        if worker is not None and worker.instance in self._unread and needs is not None:
            self._unread.discard(worker.instance)
            self.ledger.raise_to(worker.instance, needs.reserve_bytes)
        self._placer.place(now_s)

    def files_changed(self, model_id: str) -> None:
        """Take the news that a model's files have arrived or were deleted. They are read again, and
        the model's next load begins with its fetch."""
        slot = self.slots.get(model_id)
        if slot is None:
            return
        if slot.state is not SlotState.QUEUED:
            slot = slot.with_files(replace(slot.files, path=None))
        self._store.put(inspect_files(slot, self._actions))

    def tick(self, now_s: float, paused_s: float) -> None:
        """Let time pass: deadlines of workers, backoffs, waiting requests, idle models."""
        for model_id, slot in list(self.slots.items()):
            try:
                waited_s = 0.0
                if slot.worker is not None and lifecycle.is_late(slot.worker, now_s):
                    waited_s = self._actions.waited_s(slot.worker, now_s)
                self._store.step(model_id, Tick(paused_s, waited_s), now_s)
            except Exception:
                # A bug with one model must not stop the clock of the others.
                log.exception("tick.failed", model=model_id)
        try:
            self._placer.place(now_s)
        except Exception:
            log.exception("tick.failed", model=None)

    def quiet_until_s(self, now_s: float) -> float | None:
        """Return until when no tick is needed: until an idle model expires, or the silence of a
        worker counts as late. Returns None if each tick is needed."""
        if self.stopping:
            return None
        until_s = math.inf
        for slot in self.slots.values():
            if slot.life.demand.requested_at_s(now_s) is not None:
                return None
            if slot.worker is not None:
                quiet_s = lifecycle.quiet_until_s(slot.worker, now_s)
                if quiet_s is None:
                    return None
                expires_s = expires_at_s(slot, self._settings.current.memory)
                until_s = min(until_s, quiet_s, math.inf if expires_s is None else expires_s)
            elif slot.state not in DOWN:
                return None
        return until_s

    # What others see.

    @property
    def revision(self) -> int:
        """The number of the latest published snapshot."""
        return self._public.revision

    def positions(self, now_s: float) -> dict[str, int]:
        """Return the place of each model that waits for memory, from 1."""
        return positions(self.slots.values(), now_s)

    def scene(self, now_s: float) -> PlacementView:
        """Return what is decided from which models start and which are evicted."""
        return self._placer.scene(now_s)

    def flush(self, now_s: float) -> None:
        """Publish a snapshot if it has changed, and save what operators drained. This is called
        after each event."""
        self.after_event()
        self._public.flush(self._snapshot(now_s, waits=False), lambda: self.snapshot(now_s))
        holds = self._holds()
        if holds != self._kept_holds:
            self._kept_holds = holds
            self._actions.save_holds(holds)

    def snapshot(self, now_s: float) -> Snapshot:
        """Return the public state, with the revision of the last :meth:`flush`."""
        return self._snapshot(now_s, waits=True)

    def status(self, now_s: float) -> tuple[ModelStatus, ...]:
        """Return every model as ``lmx status`` shows it."""
        places = self.positions(now_s)
        memory = self._settings.current.memory
        return tuple(
            model_status(slot, self.ledger, memory, places.get(slot.model.id), now_s)
            for slot in self.slots.values()
        )

    # Within.

    def _snapshot(self, now_s: float, *, waits: bool) -> Snapshot:
        return self._public.snapshot(
            self._configured(), self._settings.current, self.ledger.free_bytes, now_s,
            budget_bytes=self.ledger.budget_bytes, stopping=self.stopping, drained=self.drained,
            no_loads=self.no_loads, waits=waits,
        )  # fmt: skip

    def _take(self, model_id: str, event: object, now_s: float) -> None:
        self._store.step(model_id, event, now_s)
        self._placer.place(now_s)

    def _configured(self) -> list[Slot]:
        return [slot for slot in self.slots.values() if not slot.life.removed]

    def _holds(self) -> frozenset[str]:
        held = frozenset(slot.model.id for slot in self.slots.values() if slot.life.held)
        return held | {MACHINE} if self.drained else held

    def _take_names(self) -> None:
        models = self._settings.current.models
        self._names = {name: model.id for model in models for name in model.names}
        for model in models:
            # A repository is also a name of the first model that is made from it.
            source = parse_source(model.source)
            if isinstance(source, HubSource):
                self._names.setdefault(source.repo_id, model.id)
