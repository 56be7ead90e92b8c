"""One frame of `lmx-supervisor top`. Pure: values in, a picture out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lmx.protocol.control import Event
from lmx.supervisor.budget import format_bytes
from lmx.supervisor.event_view import event_words, one_line
from lmx.supervisor.model_table import Column, model_columns, model_table
from lmx.supervisor.status_words import duration, memory_words, remarks, router_words, told
from lmx.supervisor.token_rates import TokenRates

_BAR_WIDTH: Final = 30
_NOTE_WIDTH: Final = 24
_LINES_ABOVE_EVENTS: Final = 6
"""Two of processes, a blank one, the heading, a blank one, the one for Ctrl-C."""


def top_frame(
    status: dict[str, Any],
    rates: TokenRates,
    events: Sequence[Event],
    size: tuple[int, int],
    now_s: float,
) -> RenderableType:
    """Return the frame for a terminal of that many columns and lines; ``now_s`` is the time of
    day."""
    width, height = size
    supervisor, workers = status["supervisor"], status["workers"]
    parts: list[RenderableType] = [_processes(status), _budget(supervisor)]
    if words := memory_words(supervisor):
        parts.append(Text(words, style="yellow", no_wrap=True, overflow="ellipsis"))
    parts += [Text(""), _models(workers, rates, width, now_s)]
    room = height - _LINES_ABOVE_EVENTS - len(workers) - (len(parts) - 4)
    shown = list(events)[-room:] if room > 0 else []
    if shown:
        parts += [Text(""), *(_event(event) for event in shown)]
    return Group(*parts)


def _processes(status: dict[str, Any]) -> Text:
    supervisor, router = status["supervisor"], status["router"]
    return Text(
        f"lmx {supervisor['version']}  {supervisor['state']} for "
        f"{duration(supervisor['uptime_s'])}  {router.get('url', 'router ' + router['state'])}  "
        f"{router_words(router)}",
        no_wrap=True, overflow="ellipsis",
    )  # fmt: skip


def _budget(supervisor: dict[str, Any]) -> RenderableType:
    reserved, budget = supervisor["reserved_bytes"], supervisor["budget_bytes"]
    grid = Table.grid(padding=(0, 1))
    full = reserved > budget
    grid.add_row(
        "memory",
        ProgressBar(
            total=max(1, budget), completed=min(reserved, budget), width=_BAR_WIDTH,
            complete_style="red" if full else "green", finished_style="red" if full else "yellow",
        ),
        f"{format_bytes(reserved)} of {format_bytes(budget)} reserved",
    )  # fmt: skip
    return grid


def _models(workers: list[dict[str, Any]], rates: TokenRates, width: int, now_s: float) -> Table:
    columns = model_columns(workers)
    for absent in ("PID", "SERVED"):
        del columns[absent]
    speeds = (rates.of(worker["instance"]) for worker in workers)
    speed = Column("TOK/S", tuple("-" if one is None else f"{one:.0f}" for one in speeds), 5)
    notes = tuple(one_line(told(worker, remarks(worker), now_s)) for worker in workers)
    note = Column("NOTE", notes, right=False, cut_to=_NOTE_WIDTH)
    return model_table([*columns.values(), speed, note], width)


def _event(event: Event) -> Text:
    when = time.strftime("%H:%M:%S", time.localtime(event.at_s))
    said = "  ".join(part for part in (event.model_id, event_words(event)) if part)
    return Text.assemble(
        (when, "dim"), "  ", (f"{event.name:<18}", "bold"), "  ", said,
        no_wrap=True, overflow="ellipsis",
    )  # fmt: skip
