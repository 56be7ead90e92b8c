"""Where a request's time went, and what it waits for now. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lmx.protocol.host.ordinal import ordinal
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.states import SlotState, WorkerState
from lmx.router.http.outcome import Outcome
from lmx.router.http.responses import Answer
from lmx.router.supervisor.directory import Directory
from lmx.router.supervisor.model_queues import progress_text
from lmx.router.workers.waits import Waits


class Phase(StrEnum):
    """What a request under way is in: in a line of its worker (`queue`), waiting for its model
    (`load`), its prompt being rendered and tokenized (`render`) or computed (`prefill`), or its
    answer being made (`decode`). An embedding and the like are computed in `prefill`."""

    QUEUE = "queue"
    LOAD = "load"
    RENDER = "render"
    PREFILL = "prefill"
    DECODE = "decode"


class Phases(Answer):
    """How long each part of a request took until now, in seconds. Null: it was not reached, or is
    not known."""

    queue_s: float | None
    """In the lines of the worker, for its turn and for a row."""
    load_s: float | None
    """Until the model was ready."""
    render_s: float | None
    """Making the prompt's tokens of the messages."""
    prefill_s: float | None
    """Computing the prompt, without what was cached."""
    decode_s: float | None
    """From the first token to the last."""


@dataclass(frozen=True, slots=True)
class Times:
    """What is known of a request's times, on the monotonic clock."""

    now_s: float
    """Now, or when it ended."""
    first_output_s: float | None = None
    """When its first output came."""
    has_row: bool = False
    """Whether its worker had a row for it when it was accepted."""
    is_task: bool = False
    """Whether it generates nothing: its worker begins with the work itself, and accepts nothing."""


def phases_of(waits: Waits, times: Times, measured: Outcome) -> tuple[Phases, Phase | None]:
    """Return how long each phase took, and the one that the request is in.

    ``measured`` has what the worker measured, of a generation that has ended. Until then the times
    are those that the router sees: the prefill of a request that waits for a row counts as its
    queue, because a worker does not report when the row comes.
    """
    begun_s = None if waits.turn is None else waits.turn.begun_s
    edges: list[tuple[Phase, float | None, float | None]] = [
        (Phase.QUEUE, waits.sent_s, begun_s),
        (Phase.PREFILL if times.is_task else Phase.RENDER, begun_s, waits.accepted_s),
        (
            Phase.PREFILL if times.has_row else Phase.QUEUE,
            waits.accepted_s,
            times.first_output_s,
        ),
        (Phase.DECODE, times.first_output_s, None),
    ]
    spent_s: dict[Phase, float] = {}
    phase: Phase | None = None
    for name, began_s, ended_s in edges:
        if began_s is not None:
            took_s = (times.now_s if ended_s is None else ended_s) - began_s
            spent_s[name] = spent_s.get(name, 0.0) + max(0.0, took_s)
            phase = name
    load_s = waits.load_s
    if waits.loading_since_s is not None:
        load_s += times.now_s - waits.loading_since_s
        phase = Phase.LOAD
    if measured.queue_s is not None:
        # The worker's queue begins with the arrival, and so has the rendering in it.
        spent_s[Phase.QUEUE] = max(0.0, measured.queue_s - spent_s.get(Phase.RENDER, 0.0))
        spent_s[Phase.PREFILL] = measured.prefill_s or 0.0
        spent_s[Phase.DECODE] = measured.decode_s or 0.0
    if load_s or phase is not None:
        spent_s[Phase.LOAD] = load_s
    shown: Phases = {
        "queue_s": _rounded(spent_s.get(Phase.QUEUE)),
        "load_s": _rounded(spent_s.get(Phase.LOAD)),
        "render_s": _rounded(spent_s.get(Phase.RENDER)),
        "prefill_s": _rounded(spent_s.get(Phase.PREFILL)),
        "decode_s": _rounded(spent_s.get(Phase.DECODE)),
    }
    return shown, phase


class WaitReason(StrEnum):
    """Why a request waits: its model is fetched (`download`), waits until others have made room
    (`memory`), is being loaded (`load`), ends its worker first (`restart`) or is loaded again after
    a failure (`backoff`); or the worker has other prompts to render (`turn`) or no free row
    (`row`)."""

    DOWNLOAD = "download"
    MEMORY = "memory"
    LOAD = "load"
    RESTART = "restart"
    BACKOFF = "backoff"
    TURN = "turn"
    ROW = "row"


class WaitsFor(Answer):
    """What a request waits for."""

    reason: WaitReason
    model: str
    """The model whose load or worker it waits for."""
    position: int | None
    """Its place in that line, 1 for the next; as of its arrival there for a row."""
    evicting: list[str]
    """The models that are being unloaded meanwhile, where it waits for memory."""
    text: str
    """The same for people."""


_SLOT_REASONS: Final = {
    SlotState.QUEUED: WaitReason.MEMORY,
    SlotState.FETCHING: WaitReason.DOWNLOAD,
    SlotState.BACKOFF: WaitReason.BACKOFF,
}

_ENDING: Final = (WorkerState.DRAINING, WorkerState.STOPPING)


def waits_for_model(model_id: str, position: int | None, directory: Directory | None) -> WaitsFor:
    """Return what a request waits for whose model is not ready."""
    model = None if directory is None else directory.model(model_id)
    if directory is None or model is None:
        return _waits(WaitReason.LOAD, model_id, position, f"{model_id} is about to be loaded")
    reason = _SLOT_REASONS.get(model.slot, WaitReason.LOAD)
    if model.slot is SlotState.OCCUPIED and model.worker in _ENDING:
        reason = WaitReason.RESTART
    text = progress_text(model)
    if reason is not WaitReason.MEMORY:
        return _waits(reason, model_id, position, text)
    evicting = _evicted(model, directory.bases)
    if evicting:
        text += f"; unloading {', '.join(evicting)}"
    elif directory.snapshot.no_loads:
        text += f"; {directory.snapshot.no_loads}"
    return _waits(reason, model_id, position, text, evicting)


def waits_for_worker(
    model_id: str, phase: Phase | None, position: int | None, *, accepted: bool
) -> WaitsFor | None:
    """Return what a request waits for in its model's worker; None if it waits for nothing."""
    if phase is not Phase.QUEUE:
        return None
    if not accepted:
        return _waits(
            WaitReason.TURN, model_id, None, f"{model_id} renders other requests' prompts first"
        )
    place = "" if position is None else f", {ordinal(position)} in line when it came"
    return _waits(WaitReason.ROW, model_id, position, f"{model_id} has no free row{place}")


def _evicted(model: ModelView, models: Iterable[ModelView]) -> list[str]:
    return [
        one.model_id
        for one in models
        if one.slot is SlotState.OCCUPIED
        and one.worker in _ENDING
        and one.model_id not in (model.model_id, model.base)
    ]


def _waits(
    reason: WaitReason,
    model_id: str,
    position: int | None,
    text: str,
    evicting: list[str] | None = None,
) -> WaitsFor:
    return {
        "reason": reason,
        "model": model_id,
        "position": position,
        "evicting": evicting or [],
        "text": text,
    }


def _rounded(time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s, 4)
