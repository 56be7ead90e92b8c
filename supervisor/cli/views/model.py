"""What `lmx show MODEL` prints: all that is known of one model."""

import time
from collections.abc import Iterator

from lmx.protocol.messages.status import ModelStatus
from lmx.protocol.states import ModelState
from lmx.supervisor.cli.views.words import doing, remarks, trouble
from lmx.supervisor.decisions.ledger import format_bytes

_WIDTH = 10


def model_lines(model: ModelStatus, now_s: float) -> Iterator[str]:
    """Yield the lines; ``now_s`` is the time of day. Pure."""
    yield model.model
    for title, text in _rows(model, now_s):
        if text:
            yield f"  {title:<{_WIDTH}} {text}"


def _rows(model: ModelStatus, now_s: float) -> Iterator[tuple[str, str]]:
    figures = model.figures
    state = model.state.value if model.state is ModelState.READY else doing(model)
    yield "state", state + (f", pid {model.pid}" if model.pid is not None else "")
    yield (
        "kind",
        " ".join(
            part for part in (model.kind, f"({model.family})" if model.family else "") if part
        ),
    )
    yield "takes", ", ".join(("text", *(model.media or ())))
    yield "source", model.source + (" (added)" if model.added else "")
    yield "quantized", (model.quantized or "").removeprefix("quantized ")
    yield "aliases", ", ".join(model.aliases)
    yield "context", "" if model.context_length is None else f"{model.context_length} tokens"
    yield "memory", ", ".join(_memory(model))
    if figures.ranks:
        here = [one.memory_bytes for one in figures.ranks if not one.machine]
        ranks = [(0, str(model.pid), figures.memory_bytes - sum(here))]
        ranks += [
            (one.rank, f"{one.pid} on {one.machine}" if one.machine else str(one.pid), held)
            for one in figures.ranks
            for held in (one.memory_bytes,)
        ]
        yield (
            "ranks",
            ", ".join(f"rank {n} (pid {pid}, {format_bytes(held)})" for n, pid, held in ranks),
        )
    if model.pid is not None:
        yield (
            "requests",
            (
                f"{model.requests_active} active, {model.requests_queued + model.waiting} waiting, "
                f"{figures.requests_total} accepted, {figures.tokens_total} tokens generated"
            ),
        )
    if model.loaded_at_s is not None:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(model.loaded_at_s))
        yield "loaded", at
    if model.expires_in_s is not None:
        yield "unloads", f"in {model.expires_in_s:.0f} s, if no request comes"
    yield "speculation", figures.speculation
    yield "adapters", ", ".join(f"{one.id} ({one.source})" for one in model.adapters)
    yield "notes", remarks(model)
    for remark in model.remarks:
        yield "remark", remark
    yield "problem", trouble(model, now_s) or ""


def _memory(model: ModelStatus) -> Iterator[str]:
    figures = model.figures
    if model.pid is not None:
        yield f"{format_bytes(figures.held_bytes)} now"
        yield f"{format_bytes(figures.peak_memory_bytes)} at most"
        yield f"{format_bytes(model.reserved_bytes)} reserved"
    elif model.needed_bytes is not None:
        yield f"{format_bytes(model.needed_bytes)} would be reserved"
    if model.weights_bytes is not None:
        yield f"weights {format_bytes(model.weights_bytes)}"
    if model.kv_capacity_bytes is not None:
        yield f"KV caches up to {format_bytes(model.kv_capacity_bytes)}"
