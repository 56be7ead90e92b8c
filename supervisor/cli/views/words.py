"""The status of models in words for a person: what `status`, `top` and progress say. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.ordinal import ordinal
from lmx.protocol.messages.status import ModelStatus, RouterStatus, SupervisorStatus
from lmx.protocol.states import ExitCause, LoadPhase, MediaKind, MemoryPressure, ModelState
from lmx.supervisor.config.known_models import repository_of
from lmx.supervisor.decisions.ledger import format_bytes

if TYPE_CHECKING:
    from lmx.supervisor.config.model import ModelConfig  # commands would wait for pydantic

COLOURS: Final[dict[ModelState, str]] = {
    ModelState.READY: "green",
    ModelState.COLD: "dim",
    ModelState.QUARANTINED: "red",
    ModelState.FAILED: "red",
    ModelState.DRAINED: "magenta",
    ModelState.BACKOFF: "yellow",
    ModelState.QUEUED: "yellow",
    ModelState.STOPPING: "yellow",
    ModelState.DRAINING: "yellow",
}
"""The colours of states. Any other state means that the model is being loaded or ended, and is
cyan."""

SETTLED: Final = frozenset(
    {
        ModelState.READY,
        ModelState.COLD,
        ModelState.FAILED,
        ModelState.QUARANTINED,
        ModelState.DRAINED,
    }
)
"""States in which a model stays until something asks for it."""

_PHASES: Final = {
    LoadPhase.DOWNLOAD: "downloading",
    LoadPhase.CONVERT: "converting",
    LoadPhase.CHECK: "checking",
    LoadPhase.START: "starting",
    LoadPhase.WARMUP: "warming up",
}
_TAKEN: Final = {MediaKind.IMAGE: "images", MediaKind.AUDIO: "sound", MediaKind.VIDEO: "videos"}
_FAILURES: Final = frozenset(
    {
        ExitCause.CRASH,
        ExitCause.SIGNAL,
        ExitCause.OUT_OF_MEMORY,
        ExitCause.HANG,
        ExitCause.LOAD_FAILED,
        ExitCause.HOST,
    }
)
_GAVE_WAY: Final = (ExitCause.EVICTED, ExitCause.EXPIRED)


def find_model(models: Sequence[ModelStatus], name: str) -> ModelStatus:
    """Return a model's part of the status by id, alias, adapter, repository or short name.

    Raises :class:`OperationError` (model_not_found), naming the models there are.
    """
    for model in models:
        if name in (model.model, *model.aliases, *(one.id for one in model.adapters)):
            return model
    for model in models:
        if model.source.partition("@")[0] in (name, repository_of(name)):
            return model
    raise no_such_model(name, [model.model for model in models])


def find_configured(models: "Sequence[ModelConfig]", name: str) -> "ModelConfig":
    """Return a model of a configuration by id, alias, adapter, repository or short name. Raises as
    :func:`find_model` does."""
    for model in models:
        if name in model.names:
            return model
    for model in models:
        if model.source.partition("@")[0] in (name, repository_of(name)):
            return model
    raise no_such_model(name, [model.id for model in models])


def no_such_model(name: str, model_ids: Sequence[str]) -> OperationError:
    """Return the error for a name that no model has, which names the models there are."""
    known = ", ".join(model_ids) or "none is configured"
    return OperationError(ErrorCode.MODEL_NOT_FOUND, f"no model is named {name!r}; known: {known}")


def doing(model: ModelStatus) -> str:
    """Return what a model that is on its way is busy with: ``weights``, ``reading its files``,
    ``waits for memory, 2nd in line``, ``draining, 3 requests left``."""
    if model.state is ModelState.QUEUED:
        if model.needed_bytes is None:
            return "reading its files"  # what it needs is not known yet
        place = model.position
        return "waits for memory" + (f", {ordinal(place)} in line" if place else "")
    if model.state is ModelState.DRAINING and model.requests_active:
        count = model.requests_active
        return f"draining, {count} request{'' if count == 1 else 's'} left"
    if model.phase is None:
        return model.state.value
    return _PHASES.get(model.phase, model.phase.value)


def remarks(model: ModelStatus) -> str:
    """Return what a table has no column for, short: progress, its place in line, pinned, what it
    takes besides text, its ranks, whether it may run code of its own, and its adapters."""
    words = []
    if model.retry_in_s is not None:
        words.append(f"again in {model.retry_in_s:.0f} s")
    progress = doing(model) + ("" if model.fraction is None else f" {model.fraction:.0%}")
    if (model.phase or model.state is ModelState.QUEUED) and progress != model.state:
        words.append(progress)
    if model.pinned:
        words.append("pinned")
    if model.media:
        words.append(f"takes {', '.join(_TAKEN[kind] for kind in model.media)}")
    if model.figures.ranks:
        words.append(f"{1 + len(model.figures.ranks)} ranks")
    if model.allow_checkpoint_code:
        words.append("may run its own code")
    if model.adapters:
        words.append(f"with {', '.join(adapter.id for adapter in model.adapters)}")
    last = model.last_exit
    if model.state is ModelState.COLD and last is not None and last.cause in _GAVE_WAY:
        words.append(last.cause.value)
    return ", ".join(words)


def trouble(model: ModelStatus, now_s: float) -> str | None:
    """Return what is wrong with a model, or was when its worker last ended; None if nothing.

    ``now_s`` is the time of day.
    """
    # The problem of a model that is ready is over, and the last exit is shown with its own reason.
    problem = None if model.state is ModelState.READY else model.problem
    last = model.last_exit
    if last is None or last.cause not in _FAILURES:
        return problem
    when = f"{last.cause.replace('_', ' ')} {short_duration(now_s - last.at_s)} ago"
    if problem:
        return f"{problem} (last exit: {when})"
    return f"last exit: {when}" + (f": {last.detail}" if last.detail else "")


def note_text(model: ModelStatus, remark: str, now_s: float) -> str:
    """Return a remark and the trouble of a model as one text, for a place that names it."""
    words = (trouble(model, now_s) or "").removeprefix(f"{model.model} ")
    return "; ".join(part for part in (remark, words) if part)


def router_words(router: RouterStatus) -> str:
    """Return how many requests the router has: ``2 open, 20 waiting, 22 served``."""
    waiting = f"{router.waiting} waiting, " if router.waiting else ""
    return f"{router.streams} open, {waiting}{router.requests_total} served"


def memory_words(supervisor: SupervisorStatus) -> str:
    """Return what is to be said about memory besides the budget: pressure, missing bytes."""
    words = []
    if supervisor.memory_pressure is not MemoryPressure.NONE:
        words.append(
            f"memory pressure is {supervisor.memory_pressure}: "
            f"{format_bytes(supervisor.machine_used_bytes)} of the machine's "
            f"{format_bytes(supervisor.machine_memory_bytes)} are in use, nothing new is loaded"
        )
    if supervisor.missing_bytes:
        words.append(
            f"{format_bytes(supervisor.missing_bytes)} did not come back from processes "
            "that ended: see `lmx events`"
        )
    return "; ".join(words)


def power_words(supervisor: SupervisorStatus) -> str:
    """Return the machine's power and its energy so far: ``31 W, 4.2 kJ``. It is empty where nothing
    is measured."""
    words = []
    if supervisor.machine_watts is not None:
        words.append(f"{supervisor.machine_watts:.0f} W")
    if supervisor.machine_energy_joules is not None:
        words.append(f"{supervisor.machine_energy_joules / 1000:.1f} kJ since it was started")
    return ", ".join(words)


def duration(seconds: float) -> str:
    """Return a duration with two units: ``3 h 2 min``, ``2 min 5 s``, ``5 s``."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def short_duration(seconds: float) -> str:
    """Return a duration in its largest unit, for a narrow column: ``5 s``, ``2 min``, ``3 h``."""
    seconds = max(0.0, seconds)
    for size_s, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size_s:
            return f"{int(seconds // size_s)} {unit}"
    return f"{int(seconds)} s"
