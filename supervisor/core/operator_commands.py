"""What operators do to one model: load, unload, restart, kill, hold, reset, pin."""

from __future__ import annotations

from collections.abc import Callable

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.states import ExitCause, SlotState
from lmx.supervisor.config.schema import ModelConfig
from lmx.supervisor.core.actions import Actions
from lmx.supervisor.core.inspect_files import plan_again
from lmx.supervisor.core.placer import Placer
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.core.slot_life import SlotLife
from lmx.supervisor.core.unavailable import drained
from lmx.supervisor.core.view import public_state
from lmx.supervisor.decisions.restart import FailureRecord
from lmx.supervisor.decisions.worker import DrainAsked, KillAsked, Worker


class OperatorCommands:
    """Part of the core: each method takes one wish to its end. ``pins``: what operators pinned
    and unpinned, the core's; ``want`` is the core's too."""

    def __init__(
        self,
        life: SlotLife,
        placer: Placer,
        actions: Actions,
        pins: dict[str, bool],
        want: Callable[[Slot, float], None],
    ) -> None:
        self._life = life
        self._placer = placer
        self._actions = actions
        self._pins = pins
        self._want = want

    def load(self, slot: Slot, now_s: float) -> None:
        """As a request that waits for ever, and at once also out of backoff, quarantine and
        hold, its past forgiven."""
        if not self._life.stopping:
            slot.ordered_at_s = now_s
            self._forgive(slot)
        self._want(slot, now_s)

    def load_with(self, slot: Slot, model: ModelConfig, now_s: float) -> None:
        """As :meth:`load`, with other settings than those in force; a worker that has those ends
        after its streams. Until the next one, or until the configuration changes the model."""
        slot.model = model
        plan_again(slot, self._actions)
        if slot.worker is not None:
            slot.wanted, slot.held, slot.ordered_at_s = True, False, now_s
            detail = f"it is loaded with a context of {model.context_length}"
            self._life.step(slot, DrainAsked(False, ExitCause.UNLOADED, detail), now_s)
            self._placer.place(now_s)
            return
        if slot.state is SlotState.QUEUED:
            self._life.park(slot, SlotState.COLD)
        self.load(slot, now_s)

    def unload(self, slot: Slot, now_s: float) -> None:
        """End the model's worker after its streams; its next request loads it again."""
        detail = "an operator unloaded the model"
        slot.wanted = False
        self._life.failures.deny_waiters(slot, UnavailableError(ErrorCode.MODEL_UNLOADED, detail))
        if slot.worker is not None:
            self._life.step(slot, DrainAsked(False, ExitCause.UNLOADED, detail), now_s)
        elif slot.state not in (SlotState.QUARANTINED, SlotState.HELD):
            # Those two are down already, and only `load`, `restart` and `reset` forgive them.
            self._life.park(slot, SlotState.COLD)
        self._placer.place(now_s)

    def restart(self, slot: Slot, now_s: float) -> None:
        """End the model's worker after its streams and load it again. There must be a worker."""
        slot.wanted, slot.held, slot.ordered_at_s = True, False, now_s
        detail = "an operator restarted the model"
        self._life.step(slot, DrainAsked(False, ExitCause.UNLOADED, detail), now_s)
        self._placer.place(now_s)

    def kill(self, slot: Slot, now_s: float) -> Worker:
        """SIGKILL the model's worker. Raises :class:`LmxError` (model_not_loaded)."""
        worker = slot.worker
        if worker is None:
            raise LmxError(
                ErrorCode.MODEL_NOT_LOADED,
                f"{slot.model.id} has no worker process: it is {slot.state}",
                param="model",
            )
        detail = "an operator killed the model's worker"
        self._life.step(slot, KillAsked(ExitCause.KILLED, detail), now_s)
        return worker

    def hold(self, slot: Slot, now_s: float) -> None:
        """End the model's worker after its streams, and keep it down: it takes no request until
        it is loaded, restarted or reset."""
        slot.held, slot.wanted = True, False
        self._actions.note("model.held", slot.model.id, "by an operator")
        self._life.failures.deny_waiters(slot, drained(slot))
        if slot.worker is not None:
            detail = "an operator drained the model"
            self._life.step(slot, DrainAsked(False, ExitCause.UNLOADED, detail), now_s)
        else:
            self._life.park(slot, SlotState.HELD)
        self._placer.place(now_s)

    def reset(self, slot: Slot, now_s: float) -> None:
        """Forget the model's failures and its hold: its next request loads it."""
        self._actions.note("model.reset", slot.model.id, f"it was {public_state(slot)}")
        self._forgive(slot)
        if slot.state is SlotState.COLD:
            # Also by an operator's load that failed, and would have been tried again.
            slot.wanted, slot.problem = slot.asked_at_s(now_s) is not None, None
            if slot.wanted:
                self._life.begin(slot, now_s)
        self._placer.place(now_s)

    def pin(self, slot: Slot, pinned: bool, now_s: float) -> str | None:
        """Never evict the model, or treat it like others again. It outlives the supervisor,
        unless it could not be written: the file and why are returned then, else None."""
        if slot.pinned is not pinned:
            name = "model.pinned" if pinned else "model.unpinned"
            self._actions.note(name, slot.model.id, "by an operator")
        slot.pinned = pinned
        self._pins.pop(slot.model.id, None)
        if pinned is not slot.model.pinned:
            self._pins[slot.model.id] = pinned
        not_written = self._actions.save_pins(dict(self._pins))
        self._placer.place(now_s)
        return not_written

    def _forgive(self, slot: Slot) -> None:
        if slot.state in (SlotState.BACKOFF, SlotState.QUARANTINED, SlotState.HELD):
            slot.state = SlotState.COLD
        slot.failures, slot.retry_at_s, slot.held = FailureRecord(), None, False
