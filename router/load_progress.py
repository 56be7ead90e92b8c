"""How far a model is on its way to being ready, in words and in seconds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lmx.protocol.control import ModelView
from lmx.protocol.ordinal import ordinal
from lmx.protocol.states import LoadPhase, SlotState, WorkerState

_ADVANCING: Final = frozenset({SlotState.FETCHING, SlotState.OCCUPIED})

_LOAD_S: Final = 10.0
"""A load of which nothing is known yet: some gigabytes from an SSD, and the start of a process."""

_THEN_S: Final[dict[LoadPhase, float]] = {
    LoadPhase.DOWNLOAD: 20.0,
    LoadPhase.CONVERT: 10.0,
    LoadPhase.CHECK: 10.0,
    LoadPhase.START: 8.0,
    LoadPhase.WEIGHTS: 2.0,
    LoadPhase.WARMUP: 0.0,
}
"""What usually follows a phase."""

_LEAST_FRACTION: Final = 0.01
"""Of less progress no pace can be told."""

_LONGEST_S: Final = 600.0
"""A client that is told to wait longer than this had better ask again meanwhile."""

_WORKER_WORDS: Final[dict[WorkerState, str]] = {
    WorkerState.STARTING: "is loading",
    WorkerState.LOADING: "is loading",
    WorkerState.READY: "is ready",
    WorkerState.DRAINING: "ends what it does, and is loaded again",
    WorkerState.STOPPING: "is being loaded again",
    WorkerState.EXITED: "is being loaded again",
}

_SLOT_WORDS: Final[dict[SlotState, str]] = {
    SlotState.COLD: "is about to be loaded",
    SlotState.QUEUED: "waits for memory",
    SlotState.FETCHING: "is being fetched",
    SlotState.OCCUPIED: "is loading",
    SlotState.BACKOFF: "failed, and is loaded again soon",
    SlotState.QUARANTINED: "is in quarantine",
    SlotState.HELD: "was drained by an operator",
}


def progress_text(model: ModelView) -> str:
    """Return a model's state and progress as one line: ``tiny is loading: weights 40%``."""
    if model.slot is SlotState.OCCUPIED and model.worker is not None:
        words = _WORKER_WORDS[model.worker]
    else:
        words = _SLOT_WORDS[model.slot]
    text = f"{model.model_id} {words}"
    if model.slot is SlotState.QUEUED and model.position is not None:
        return f"{text}, {ordinal(model.position)} in line"
    if model.phase is None or words not in ("is loading", "is being fetched"):
        return text
    done = "" if model.fraction is None else f" {int(100 * model.fraction)}%"
    return f"{text}: {model.phase.value}{done}"


@dataclass(slots=True)
class LoadPace:
    """How fast a load goes, from when it was first looked at in its present phase. Until that
    shows, the supervisor's word holds: it knows what loads of this model took."""

    phase: LoadPhase | None = None
    began_s: float = 0.0
    began_fraction: float = 0.0

    def remaining_s(self, model: ModelView, now_s: float) -> float:
        """Return in how many seconds the model is likely to be ready; 1 to 600."""
        if model.phase is not self.phase:
            self.phase, self.began_s, self.began_fraction = (
                model.phase,
                now_s,
                model.fraction or 0.0,
            )
        return min(max(self._estimate_s(model, now_s), 1.0), _LONGEST_S)

    def _estimate_s(self, model: ModelView, now_s: float) -> float:
        then_s = 0.0 if model.phase is None else _THEN_S[model.phase]
        fraction = model.fraction or 0.0
        made = fraction - self.began_fraction
        if model.slot in _ADVANCING and made >= _LEAST_FRACTION:
            return then_s + (1.0 - fraction) * (now_s - self.began_s) / made
        if model.retry_after_s is not None:
            return model.retry_after_s
        if model.slot is SlotState.QUEUED:
            # One model after the other gets its turn.
            return (model.position or 1) * _LOAD_S
        return then_s + _LOAD_S
