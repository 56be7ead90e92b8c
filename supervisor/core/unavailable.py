"""Says why a request can't have a model now, and when it might, for routers and the CLI. This
module is pure."""

from typing import Final

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages import control
from lmx.protocol.states import LoadPhase, SlotState
from lmx.supervisor.core.slot import Slot

_LOAD_S: Final = 10.0
"""How long a load is assumed to take before one was seen."""

_LEAST_S: Final = 1.0
_MOST_S: Final = 120.0


def denied(error: LmxError) -> control.Denied:
    """Return an error as the reply to a question."""
    return control.Denied(error.code, error.message, error.param, error.retry_after_s, error.final)


def not_ready(slot: Slot, position: int | None, now_s: float) -> control.Denied:
    """Return the reply to a request whose time to wait is over."""
    return control.Denied(
        ErrorCode.MODEL_LOADING,
        f"{slot.model.id} is not ready yet: {_where(slot, position)}",
        retry_after_s=ready_in_s(slot, position, now_s),
    )


def _where(slot: Slot, position: int | None) -> str:
    if slot.state is SlotState.QUEUED:
        return f"it waits for memory, number {position or 1} in the queue"
    phase, fraction = slot.life.fetch_phase, slot.life.fetch_fraction
    if slot.worker is not None:
        phase, fraction = slot.worker.phase, slot.worker.fraction
    if slot.state is SlotState.BACKOFF and slot.life.problem is not None:
        return f"it is started again soon, after this: {slot.life.problem.message}"
    state = slot.worker.state if slot.worker else slot.state
    how_far = "" if phase is None else f", {phase}"
    return f"it is {state}{how_far}" + ("" if fraction is None else f" {fraction:.0%}")


def ready_in_s(slot: Slot, position: int | None, now_s: float) -> float | None:
    """Return in how many seconds the model may be ready, between 1 and 120, from how long its loads
    took and how far this one is. Returns None if the model is ready or nobody is loading it."""
    if slot.ready_worker is not None:
        return None
    past = slot.past
    load_s = past.load_s_total / past.loads_total if past.loads_total else _LOAD_S
    match slot.state:
        case SlotState.OCCUPIED:
            left_s = _left_of_load_s(slot, load_s, now_s)
        case SlotState.QUEUED:
            left_s = load_s * (position or 1)
        case SlotState.FETCHING:
            left_s = _MOST_S if slot.life.fetch_fraction is None else load_s * 3
        case SlotState.BACKOFF:
            left_s = max(0.0, (slot.life.retry_at_s or now_s) - now_s) + load_s
        case _:
            return None
    return round(min(max(left_s, _LEAST_S), _MOST_S), 1)


def _left_of_load_s(slot: Slot, load_s: float, now_s: float) -> float:
    worker = slot.worker
    if worker is None or slot.life.spawned_at_s is None or worker.cause is not None:
        return load_s
    took_s = now_s - slot.life.spawned_at_s
    if worker.phase is LoadPhase.WEIGHTS and worker.fraction and worker.fraction >= 0.05:
        return took_s * (1.0 - worker.fraction) / worker.fraction
    # A load that takes longer than earlier ones is likely to take a good deal longer.
    return load_s - took_s if took_s < load_s else took_s / 2
