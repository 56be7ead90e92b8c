"""The commands of operators about one model: load, unload, restart, kill, hold, reset, pin."""

from dataclasses import dataclass, replace

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.states import ExitCause
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.core.actions import Actions
from lmx.supervisor.core.inspect_files import plan_again
from lmx.supervisor.core.placer import Placer
from lmx.supervisor.core.slot_store import SlotStore
from lmx.supervisor.decisions.slots import events
from lmx.supervisor.decisions.worker import KillRequested, Worker


@dataclass(eq=False, repr=False)
class OperatorCommands:
    """A part of the core. Each method carries out one command about a model, which is named by its
    id. ``pins`` is what operators pinned and unpinned, and belongs to the core."""

    _store: SlotStore
    _placer: Placer
    _actions: Actions
    _pins: dict[str, bool]

    def load(self, model_id: str, now_s: float) -> None:
        """Load the model, like a request that waits for ever. The model leaves backoff, quarantine
        and hold at once, and its failures are forgotten. Raises :class:`LmxError` while lmx is
        being stopped."""
        self._store.refuse_while_stopping()
        self.take(model_id, events.Ordered(), now_s)

    def load_with(self, model: ModelConfig, now_s: float) -> None:
        """Do what :meth:`load` does, with other settings than those in effect. A worker with the
        old settings ends after its streams. The settings hold until the next such command, or
        until the configuration changes the model."""
        self._store.refuse_while_stopping()
        slot = replace(self._store.slots[model.id], model=model)
        self._store.put(plan_again(slot, self._actions))
        detail = f"it is loaded with a context of {model.context_length}"
        self.take(model.id, events.ReloadOrdered(detail), now_s)

    def kill(self, model_id: str, now_s: float) -> Worker:
        """Send SIGKILL to the model's worker. Raises :class:`LmxError` (model_not_loaded)."""
        slot = self._store.slots[model_id]
        if slot.worker is None:
            raise LmxError(
                ErrorCode.MODEL_NOT_LOADED,
                f"{model_id} has no worker process: it is {slot.state}",
                param="model",
            )
        detail = "an operator killed the model's worker"
        self.take(model_id, KillRequested(ExitCause.KILLED, detail), now_s)
        return slot.worker

    def pin(self, model_id: str, pinned: bool, now_s: float) -> str | None:
        """Never evict the model, or treat it like others again. This outlives the supervisor,
        unless it could not be written. Returns None, or the file and the reason why it could not be
        written."""
        slot = self._store.slots[model_id]
        if slot.pinned is not pinned:
            name = "model.pinned" if pinned else "model.unpinned"
            self._actions.note(name, model_id, "by an operator")
        self._store.put(replace(slot, pinned=pinned))
        self._pins.pop(model_id, None)
        if pinned is not slot.model.pinned:
            self._pins[model_id] = pinned
        not_written = self._actions.save_pins(dict(self._pins))
        self._placer.place(now_s)
        return not_written

    def take(self, model_id: str, event: object, now_s: float) -> None:
        """Take an event of :mod:`lmx.supervisor.decisions.slots.events` that an operator caused:
        ``Unloaded``, ``ReloadOrdered``, ``Held``, ``Reset`` or ``FilesLeaving``."""
        self._store.step(model_id, event, now_s)
        self._placer.place(now_s)
