"""The status of models in words for a person: what `status`, `top` and progress say. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.host.ordinal import ordinal
from lmx.supervisor.decisions.ledger import format_bytes

COLOURS: Final = {
    "ready": "green",
    "cold": "dim",
    "quarantined": "red",
    "held": "magenta",
    "backoff": "yellow",
    "queued": "yellow",
    "stopping": "yellow",
    "draining": "yellow",
}
"""Of states; any other is on its way: cyan."""

_PHASES: Final = {
    "download": "downloading",
    "convert": "converting",
    "check": "checking",
    "start": "starting",
    "warmup": "warming up",
}
_FAILURES: Final = frozenset({"crash", "signal", "out_of_memory", "hang", "load_failed"})


def find_model(workers: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return a model's line of the status, of all ``workers``, by id, alias or
    repository.

    Raises :class:`OperationError` (model_not_found), naming the models there are.
    """
    for worker in workers:
        if name in (worker["model"], *worker["aliases"]):
            return worker
    for worker in workers:
        if name == worker.get("source", "").partition("@")[0]:
            return worker
    known = ", ".join(worker["model"] for worker in workers) or "none is configured"
    raise OperationError(ErrorCode.MODEL_NOT_FOUND, f"no model is named {name!r}; known: {known}")


def doing(worker: dict[str, Any]) -> str:
    """Return what a model that is on its way is busy with: ``weights``, ``waits for memory,
    2nd in line``, ``draining, 3 requests left``."""
    state: str = worker["state"]
    if state == "queued":
        place = worker["position"]
        return "waits for memory" + (f", {ordinal(place)} in line" if place else "")
    if state == "draining" and worker["requests_active"]:
        count = worker["requests_active"]
        return f"draining, {count} request{'' if count == 1 else 's'} left"
    phase = worker["phase"]
    return _PHASES.get(phase, phase) or state


def remarks(worker: dict[str, Any]) -> str:
    """Return what a table has no column for, short: progress, its place in line, pinned."""
    said = []
    state = worker["state"]
    if worker["retry_in_s"] is not None:
        said.append(f"again in {worker['retry_in_s']:.0f} s")
    fraction = worker["fraction"]
    progress = doing(worker) + ("" if fraction is None else f" {fraction:.0%}")
    if (worker["phase"] or state == "queued") and progress != state:
        said.append(progress)
    if worker["pinned"]:
        said.append("pinned")
    last = worker["last_exit"]
    if state == "cold" and last is not None and last["cause"] in ("evicted", "expired"):
        said.append(last["cause"])
    return ", ".join(said)


def trouble(worker: dict[str, Any], now_s: float) -> str | None:
    """Return what is wrong with a model, or was when its worker last ended; None if nothing.

    ``now_s`` is the time of day.
    """
    last = worker["last_exit"]
    failed = last is not None and last["cause"] in _FAILURES
    when = (
        f"{last['cause'].replace('_', ' ')} {short_duration(now_s - last['at_s'])} ago"
        if failed
        else None
    )
    problem: str | None = worker["problem"]
    if worker["state"] == "ready":
        problem = None  # it is over; the last exit is told with its own reason
    if problem and when:
        return f"{problem} (last exit: {when})"
    if when:
        return f"last exit: {when}" + (f": {last['detail']}" if last["detail"] else "")
    return problem


def told(worker: dict[str, Any], remark: str, now_s: float) -> str:
    """Return a remark and the trouble of a model as one text, for a place that names it."""
    words = (trouble(worker, now_s) or "").removeprefix(f"{worker['model']} ")
    return "; ".join(part for part in (remark, words) if part)


def router_words(router: dict[str, Any]) -> str:
    """Return how many requests the router has: ``2 open, 20 waiting, 22 served``."""
    waiting = f"{router['waiting']} waiting, " if router["waiting"] else ""
    return f"{router['streams']} open, {waiting}{router['requests_total']} served"


def memory_words(supervisor: dict[str, Any]) -> str:
    """Return what is to be said about memory beside the budget: pressure, missing bytes."""
    said = []
    pressure = supervisor["memory_pressure"]
    if pressure != "none":
        used, all_of = supervisor["machine_used_bytes"], supervisor["machine_memory_bytes"]
        said.append(
            f"memory pressure is {pressure}: {format_bytes(used)} of the machine's "
            f"{format_bytes(all_of)} are in use, nothing new is loaded"
        )
    if supervisor["missing_bytes"]:
        said.append(
            f"{format_bytes(supervisor['missing_bytes'])} did not come back from processes "
            "that ended: see `lmx-supervisor events`"
        )
    return "; ".join(said)


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
