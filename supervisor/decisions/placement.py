"""Decides which models start, which are evicted and which wait. It is one pure function of a frozen
:class:`~lmx.supervisor.decisions.placement_view.PlacementView`.

The rules, in the order in which they count:

- A model with requests in flight is never evicted, nor one that loads, nor a pinned one. To make
  room for a model that has waited ``fair_wait_s``, busy models are drained: they accept no new
  request and finish those that they have.
- Every model keeps its place for ``min_residency_s`` after it became ready.
- Models start in the order of their oldest requests. Memory that is being freed is for the first
  model in the queue. A later model starts only into memory that the first will not need, or while
  nothing can be freed for the first. No model takes what one that has waited ``fair_wait_s`` may
  need. Bytes that are about to come back are counted before any other model is evicted for them.
- Nothing is kept for a model that could not start even if every worker that can be evicted were
  gone, because a stuck worker or a rank of another machine has what it needs.
- Victims are the least recently used models that free enough. Those that turn out not to be needed
  are spared, the largest first, so that the fewest bytes are thrown away.
- A model that nobody waits for (a preload, a restart) evicts no other model.
- Nothing starts while the machine is short of memory. Then idle models are evicted, one after the
  other.

A model that can't be started whatever is evicted is refused at once, with names and figures.
"""

from collections.abc import Iterable, Sequence

from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.decisions.placement_view import (
    Decision,
    Deny,
    Drop,
    Evict,
    Expire,
    PlacementView,
    Resident,
    Stage,
    Start,
    Waiting,
)


def infeasible_reason(one: Waiting, scene: PlacementView) -> str | None:
    """Return why a model can't be started as things stand, or None if it can."""
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
                f"{one.model_id} can't be loaded together with {resident.model_id}, which is "
                f"pinned, by the rules of their groups: run `lmx unpin {resident.model_id}`, or "
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
        f"{names} may not be evicted{also}. Run `lmx unpin {pinned[0].model_id}`, "
        "unload a model, or raise memory.budget_bytes"
    )


def queue_order(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Return the models in the order of their oldest requests. Models that nobody waits for come
    last, the pinned ones first, in the order given."""
    return sorted(
        waiting,
        key=lambda one: (
            one.requested_at_s is None,
            one.requested_at_s or 0.0,
            one.requested_at_s is None and not one.pinned,
        ),
    )


def decide(scene: PlacementView, now_s: float) -> tuple[Decision, ...]:
    """Return what must be done now. The caller carries it out and decides again, until nothing is
    returned."""
    decisions: list[Decision] = []
    residents = {resident.model_id: resident for resident in scene.residents}
    leaving = {name for name, resident in residents.items() if resident.stage is Stage.LEAVING}
    for resident in scene.residents:
        if _expired(resident, now_s):
            decisions.append(Expire(resident.model_id))
            leaving.add(resident.model_id)
    denials = [
        Deny(one.model_id, why) for one in scene.waiting if (why := infeasible_reason(one, scene))
    ]
    decisions += denials
    denied = {denial.model_id for denial in denials}
    waiting = [one for one in queue_order(scene.waiting) if one.model_id not in denied]
    relief = _relief(scene, leaving, now_s)
    decisions += [Evict(victim.model_id, None, True) for victim in relief]
    leaving |= {victim.model_id for victim in relief}
    if not scene.short_of_memory:
        decisions += _Queue(scene, leaving, now_s).serve(waiting)
    return tuple(decisions)


def attainable_bytes(scene: PlacementView) -> int:
    """Return what is free once every worker has ended that can be evicted or is ending."""
    ending = (
        resident.held_bytes
        for resident in scene.residents
        if resident.stage is Stage.LEAVING or not (resident.pinned or resident.stage is Stage.STUCK)
    )
    return scene.free_bytes + scene.returning_bytes + sum(ending)


def _expired(resident: Resident, now_s: float) -> bool:
    return (
        resident.stage is Stage.SERVING
        and resident.idle_since_s is not None
        and not resident.pinned
        and resident.expires_at_s is not None
        and now_s >= max(resident.expires_at_s, resident.settled_at_s)
    )


def _relief(scene: PlacementView, leaving: set[str], now_s: float) -> list[Resident]:
    """Return which models are evicted because memory itself is short: one at a time if the machine
    is short of memory, and as many as needed if the ledger is over its budget."""
    idle = [
        resident
        for resident in _least_recent(scene.residents)
        if resident.model_id not in leaving and _settled(resident, now_s)
    ]
    coming = _coming(scene, leaving)
    lack_bytes = -scene.free_bytes - coming
    if lack_bytes > 0:
        return _suffice(idle, lack_bytes) or idle
    if scene.short_of_memory and not leaving and not scene.returning_bytes:
        return idle[:1]
    return []


def _coming(scene: PlacementView, leaving: set[str]) -> int:
    return scene.returning_bytes + sum(
        resident.held_bytes for resident in scene.residents if resident.model_id in leaving
    )


def _settled(resident: Resident, now_s: float) -> bool:
    return (
        resident.stage is Stage.SERVING
        and resident.idle_since_s is not None
        and not resident.pinned
        and now_s >= resident.settled_at_s
    )


def _least_recent(residents: Iterable[Resident]) -> list[Resident]:
    """Return idle models in the order in which their last requests ended, and then busy models, the
    longest loaded first."""
    return sorted(
        residents,
        key=lambda resident: (
            resident.idle_since_s is None,
            resident.since_s if resident.idle_since_s is None else resident.idle_since_s,
            resident.model_id,
        ),
    )


def _suffice(ordered: Sequence[Resident], lack_bytes: int) -> list[Resident]:
    """Return the first models that free ``lack_bytes`` together, without those that are not needed:
    busy ones are spared first, then the largest. Returns none if all together are not enough."""
    chosen: list[Resident] = []
    freed_bytes = 0
    for resident in ordered:
        if freed_bytes >= lack_bytes:
            break
        chosen.append(resident)
        freed_bytes += resident.held_bytes
    if freed_bytes < lack_bytes:
        return []
    for resident in sorted(
        chosen, key=lambda one: (one.idle_since_s is not None, -one.held_bytes, one.model_id)
    ):
        if freed_bytes - resident.held_bytes >= lack_bytes:
            chosen.remove(resident)
            freed_bytes -= resident.held_bytes
    return chosen


class _Queue:
    """One pass over the waiting models, with what is still free while they are served."""

    def __init__(self, scene: PlacementView, leaving: set[str], now_s: float) -> None:
        self._scene = scene
        self._now_s = now_s
        self._free_bytes = scene.free_bytes
        self._coming_bytes = _coming(scene, leaving)
        # What will be free when all that is going is gone, less what is meant for somebody.
        self._left_bytes = self._free_bytes + self._coming_bytes
        self._staying = [one for one in scene.residents if one.model_id not in leaving]
        self._present = [one.model_id for one in scene.residents]
        self._attainable_bytes = attainable_bytes(scene)

    def serve(self, waiting: Sequence[Waiting]) -> list[Decision]:
        decisions: list[Decision] = []
        passing = False  # an earlier model waits: nothing is evicted for the models behind it
        for one in waiting:
            if self._fits(one):
                decisions.append(Start(one.model_id))
                self._free_bytes -= one.need_bytes
                self._left_bytes -= one.need_bytes
                self._present.append(one.model_id)
                continue
            if one.requested_at_s is None:
                if self._lack_bytes(one) > 0 or self._conflicts(one):
                    decisions.append(Drop(one.model_id))
                continue
            if not self._attainable(one):
                continue
            if passing:
                if self._waited_long(one):
                    self._keep_for(one, ())
                continue
            victims = self._victims(one)
            if victims is not None:
                decisions += victims
                self._keep_for(one, victims)
            elif self._waited_long(one):
                return decisions
            passing = True
        return decisions

    def _keep_for(self, first: Waiting, victims: Sequence[Evict]) -> None:
        """Keep what is being freed for the first model. The models behind it get what it leaves,
        and none of that before it is free."""
        going = {victim.model_id for victim in victims}
        freed_bytes = sum(one.held_bytes for one in self._staying if one.model_id in going)
        self._left_bytes += freed_bytes - first.need_bytes
        self._free_bytes = min(self._free_bytes, self._left_bytes)
        self._present.append(first.model_id)

    def _fits(self, one: Waiting) -> bool:
        groups = self._scene.groups
        return one.need_bytes <= self._free_bytes and not any(
            groups.conflict(one.model_id, name) for name in self._present
        )

    def _attainable(self, one: Waiting) -> bool:
        """Return whether this model could start if every worker that can be evicted were gone."""
        stuck = any(other.stage is Stage.STUCK for other in self._conflicts(one))
        return one.need_bytes <= self._attainable_bytes and not stuck

    def _waited_long(self, one: Waiting) -> bool:
        if one.requested_at_s is None:
            return False
        return self._now_s - one.requested_at_s >= self._scene.fair_wait_s

    def _lack_bytes(self, one: Waiting) -> int:
        return one.need_bytes - self._free_bytes - self._coming_bytes

    def _conflicts(self, one: Waiting) -> list[Resident]:
        groups = self._scene.groups
        return [other for other in self._staying if groups.conflict(one.model_id, other.model_id)]

    def _victims(self, one: Waiting) -> list[Evict] | None:
        """Return which models must be evicted for this one, besides those that are leaving already.
        Returns None if they may not be evicted for now."""
        must_go = self._conflicts(one)
        for busy_too in (False, True) if self._waited_long(one) else (False,):
            may_go = [other for other in self._staying if self._may_go(other, busy_too)]
            if any(other not in may_go for other in must_go):
                continue
            others = [other for other in _least_recent(may_go) if other not in must_go]
            lack_bytes = self._lack_bytes(one) - sum(other.held_bytes for other in must_go)
            chosen = _suffice(others, lack_bytes) if lack_bytes > 0 else []
            if lack_bytes <= 0 or chosen:
                return [
                    Evict(other.model_id, one.model_id, other.idle_since_s is not None)
                    for other in (*must_go, *chosen)
                ]
        return None

    def _may_go(self, other: Resident, busy_too: bool) -> bool:
        return (
            other.stage is Stage.SERVING
            and not other.pinned
            and (busy_too or other.idle_since_s is not None)
            and self._now_s >= other.settled_at_s
            and self._now_s >= other.since_s + self._scene.min_residency_s
        )
