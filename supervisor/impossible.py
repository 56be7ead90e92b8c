"""Models that can't be started whoever gives way: told at once, with names and figures. Pure."""

from __future__ import annotations

from lmx.supervisor.budget import format_bytes
from lmx.supervisor.scene import Scene, Stage, Waiting


def why_never(one: Waiting, scene: Scene) -> str | None:
    """Return why it can't be started as things stand, or None."""
    need, budget = format_bytes(one.need_bytes), format_bytes(scene.budget_bytes)
    if one.need_bytes > scene.budget_bytes:
        return (
            f"{one.model_id} needs {need}, which is more than the whole budget of {budget}: raise "
            "memory.budget_bytes or memory.budget_fraction, lower the model's context_length or "
            "concurrency, or choose a smaller model"
        )
    pinned = [
        resident
        for resident in scene.residents
        if resident.pinned and resident.stage is not Stage.LEAVING
    ]
    for resident in pinned:
        if scene.groups.conflict(one.model_id, resident.model_id):
            return (
                f"{one.model_id} can't be loaded beside {resident.model_id}, which is pinned, by "
                f"the rules of their groups: run `lmx-supervisor unpin {resident.model_id}`, or "
                "unload it"
            )
    held_bytes = sum(resident.held_bytes for resident in pinned)
    if one.need_bytes <= scene.budget_bytes - held_bytes - scene.missing_bytes:
        return None
    missing = (
        f"{format_bytes(scene.missing_bytes)} did not come back from workers that ended (only a "
        "reboot of the machine may help)"
    )
    if not pinned:
        return f"{one.model_id} needs {need} of a budget of {budget}, of which {missing}"
    names = ", ".join(
        f"{resident.model_id} ({format_bytes(resident.held_bytes)})" for resident in pinned
    )
    also = f", and {missing}" if scene.missing_bytes else ""
    return (
        f"{one.model_id} needs {need}, but everything else is pinned: of the budget of {budget}, "
        f"{names} may not be evicted{also}. Run `lmx-supervisor unpin {pinned[0].model_id}`, "
        "unload a model, or raise memory.budget_bytes"
    )
