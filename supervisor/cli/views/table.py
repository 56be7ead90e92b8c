"""The table of models for a terminal of any width: columns that matter less give way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from lmx.supervisor.cli.views.words import COLOURS, short_duration
from lmx.supervisor.decisions.ledger import format_bytes


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and a cell for each model. ``leave`` is when it gives way to the width: 1
    first, None never. ``cut_to``: it takes what is left, and at least so many characters."""

    heading: str
    cells: tuple[str, ...]
    leave: int | None = None
    right: bool = True
    style: tuple[str, ...] = ()
    cut_to: int | None = None

    @property
    def width(self) -> int:
        """How many characters it takes at least, with the gap before the next one."""
        longest = max(cell_len(text) for text in (self.heading, *self.cells))
        return min(longest, self.cut_to or longest) + 2


def model_columns(workers: Sequence[dict[str, Any]]) -> dict[str, Column]:
    """Return the columns that `status` and `top` share, by their headings, in order."""
    states = tuple(worker["state"] for worker in workers)
    style = tuple(COLOURS.get(state, "cyan") for state in states)

    def figures(heading: str, key: str, leave: int | None) -> Column:
        return Column(heading, tuple(str(worker[key]) for worker in workers), leave)

    def sizes(heading: str, key: str, leave: int | None) -> Column:
        return Column(heading, tuple(_size(worker[key]) for worker in workers), leave)

    def times(heading: str, key: str, leave: int) -> Column:
        return Column(heading, tuple(_time(worker[key]) for worker in workers), leave)

    columns = (
        Column("MODEL", tuple(worker["model"] for worker in workers), right=False),
        Column("STATE", states, right=False, style=style),
        Column("PID", tuple(str(worker["pid"] or "-") for worker in workers), leave=5),
        sizes("MEMORY", "memory_bytes", None),
        sizes("RESERVED", "reserved_bytes", 4),
        figures("ACTIVE", "requests_active", None),
        figures("QUEUED", "requests_queued", None),
        figures("SERVED", "requests_total", 1),
        times("IDLE", "idle_s", 3),
        times("EXPIRES", "expires_in_s", 2),
    )
    return {column.heading: column for column in columns}


def model_table(columns: Sequence[Column], width: int) -> Table:
    """Return the table, without as many of the columns that may leave as do not fit."""
    shown = list(columns)
    leaving = sorted((c for c in columns if c.leave is not None), key=lambda c: c.leave or 0)
    while leaving and sum(column.width for column in shown) > width:
        shown.remove(leaving.pop(0))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in shown:
        table.add_column(
            column.heading, justify="right" if column.right else "left",
            no_wrap=True, overflow="ellipsis",
        )  # fmt: skip
    room = width - sum(column.width for column in shown if column.cut_to is None)
    for row in range(max((len(column.cells) for column in shown), default=0)):
        table.add_row(*(_cell(column, row, room) for column in shown))
    return table


def _cell(column: Column, row: int, room: int) -> Text:
    text = Text(column.cells[row], style=column.style[row] if column.style else "")
    if column.cut_to is not None:
        text.truncate(max(room, column.cut_to), overflow="ellipsis")
    return text


def _size(count: int) -> str:
    return format_bytes(count) if count else "-"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else short_duration(seconds)
