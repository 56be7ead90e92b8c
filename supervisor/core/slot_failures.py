"""What a model's failures lead to: another try, quarantine, and word to those who wait for it."""

from __future__ import annotations

import random

import structlog

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.states import ExitCause, SlotState
from lmx.supervisor.config.settings import Settings
from lmx.supervisor.core.actions import Actions
from lmx.supervisor.core.slot import Slot
from lmx.supervisor.core.unavailable import denied, quarantined
from lmx.supervisor.decisions import restart

log = structlog.get_logger()


class SlotFailures:
    """Carries out what :mod:`lmx.supervisor.decisions.restart` decides against a model. Starts
    nothing."""

    def __init__(self, settings: Settings, actions: Actions) -> None:
        self._settings = settings
        self._actions = actions

    @property
    def _policy(self) -> restart.RestartPolicy:
        config = self._settings.current.restart
        return restart.RestartPolicy(
            config.backoff_base_s,
            config.backoff_max_s,
            config.stable_after_s,
            config.max_failures,
            config.window_s,
        )

    def judge(
        self,
        slot: Slot,
        cause: ExitCause,
        *,
        wanted: bool,
        was_ready_for_s: float,
        permanent: bool,
        now_s: float,
    ) -> restart.Decision:
        """Count a worker's end against its model, and return what follows."""
        slot.failures, decision = restart.after_exit(
            slot.failures, cause, wanted=wanted, was_ready_for_s=was_ready_for_s,
            now_s=now_s, jitter=random.random(), policy=self._policy, permanent=permanent,
        )  # fmt: skip
        return decision

    def give_up(self, slot: Slot, error: LmxError, now_s: float) -> None:
        """Leave the slot cold, with its problem told to whoever waits.

        A source that keeps failing is quarantined like a worker that does, or each request
        would fetch it anew. Missing memory is no fault of the model's.
        """
        slot.state, slot.wanted, slot.problem = SlotState.COLD, False, error.message
        slot.given_up = error
        self.deny_waiters(slot, error)
        if error.code is ErrorCode.INSUFFICIENT_MEMORY:
            # Each request hears it, and would push all else out of the events.
            log.error("model.no_room", model=slot.model.id, error=error.message)
            return
        self._actions.note("model.not_started", slot.model.id, error.message, code=str(error.code))
        slot.failures, decision = restart.after_exit(
            slot.failures, ExitCause.LOAD_FAILED, wanted=False, was_ready_for_s=0.0,
            now_s=now_s, jitter=0.0, policy=self._policy,
        )  # fmt: skip
        if isinstance(decision, restart.Quarantine):
            self.quarantine(slot, decision.failures, error.message)

    def quarantine(
        self, slot: Slot, failures: int, detail: str, *, permanent: bool = False
    ) -> None:
        """Have only an operator start the model again. ``permanent``: its first failure says it
        all."""
        slot.state, slot.wanted = SlotState.QUARANTINED, False
        how = (
            "can't be loaded as it is"
            if permanent
            else f"failed {failures} times within {self._policy.window_s:g} s, last"
        )
        slot.problem = (
            f"{how}: {detail.rstrip('.')}. Mend it, then run `lmx-supervisor restart "
            f"{slot.model.id}`"
        )
        self._actions.note("model.quarantined", slot.model.id, slot.problem, failures=failures)
        self.deny_waiters(slot, quarantined(slot))

    def deny_waiters(self, slot: Slot, error: LmxError) -> None:
        """Tell every request that waits for the model that it waits in vain."""
        for waiter in slot.take_waiters():
            self._actions.reply(waiter.asker, denied(error))
