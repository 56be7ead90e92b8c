"""What would become of a load, by the rules by which loads are decided. Pure."""

from dataclasses import dataclass, replace

from lmx.protocol.states import LoadOutcome
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.decisions.placement import attainable_bytes, decide, infeasible_reason
from lmx.supervisor.decisions.placement_view import Evict, PlacementView, Start, Waiting


@dataclass(frozen=True, slots=True)
class Forecast:
    """The outcome of a load that nobody has requested yet."""

    outcome: LoadOutcome
    detail: str
    """The same as a sentence for people."""
    evicts: tuple[str, ...] = ()


def forecast(one: Waiting, scene: PlacementView, now_s: float) -> Forecast:
    """Return what would follow if ``one`` waited for memory from now on, next to the models that
    wait already."""
    problem = infeasible_reason(one, scene)
    if problem is not None:
        return Forecast(LoadOutcome.IMPOSSIBLE, problem)
    needs = f"{one.model_id} needs {format_bytes(one.need_bytes)}"
    free = f"{format_bytes(max(0, scene.free_bytes))} are free"
    if scene.short_of_memory:
        why = "the machine is short of memory, and nothing is loaded meanwhile"
        return Forecast(LoadOutcome.WAITS, f"{needs}: {why}")
    scene = replace(scene, waiting=(*scene.waiting, replace(one, requested_at_s=now_s)))
    decisions = decide(scene, now_s)
    if Start(one.model_id) in decisions:
        return Forecast(LoadOutcome.STARTS, f"{needs}, {free}: it starts at once")
    if evicts := _evicted(one.model_id, decisions):
        names = ", ".join(evicts)
        return Forecast(LoadOutcome.EVICTS, f"{needs}, {free}: {names} would be evicted", evicts)
    if one.need_bytes > attainable_bytes(scene):
        why = (
            "no eviction makes enough room: it waits for the memory of a worker that does not "
            "end, or of a rank of another machine's model"
        )
        return Forecast(LoadOutcome.WAITS, f"{needs}, {free}; {why}")
    # By then it has waited long enough for busy models to be drained, and no model has just come.
    later_s = now_s + max(scene.fair_wait_s, scene.min_residency_s)
    evicts = _evicted(one.model_id, decide(scene, later_s))
    detail = f"{needs}, {free}: it waits for the models that work or have only just been loaded"
    if evicts:
        detail += f"; then {', '.join(evicts)} would be evicted"
    return Forecast(LoadOutcome.WAITS, detail, evicts)


def without(model_id: str, scene: PlacementView) -> PlacementView:
    """Return a scene in which a model neither waits nor has a worker: its load with other settings
    ends its worker first."""
    own = [resident for resident in scene.residents if resident.model_id == model_id]
    return replace(
        scene,
        waiting=tuple(one for one in scene.waiting if one.model_id != model_id),
        residents=tuple(one for one in scene.residents if one.model_id != model_id),
        free_bytes=scene.free_bytes + sum(resident.held_bytes for resident in own),
    )


def _evicted(model_id: str, decisions: tuple[object, ...]) -> tuple[str, ...]:
    found = (each for each in decisions if isinstance(each, Evict))
    return tuple(each.model_id for each in found if each.for_model == model_id)
