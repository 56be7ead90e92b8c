"""The table of models for a terminal of any width. On a narrow one the less important columns are
left out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from lmx.protocol.messages.status import ModelStatus
from lmx.supervisor.cli.views.words import COLOURS, short_duration
from lmx.supervisor.decisions.ledger import format_bytes


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and a cell for each model."""

    heading: str
    cells: tuple[str, ...]
    leave: int | None = None
    """The order in which columns are left out if the width is too small: 1 is the first. None: the
    column always stays."""
    right: bool = True
    style: tuple[str, ...] = ()
    folds: bool = False
    """Whether a cell may take several lines, if the width is too small without other columns."""
    cut_to: int | None = None
    """If set, the column gets the width that is left, but at least this many characters."""

    @property
    def width(self) -> int:
        """The least number of characters that the column takes, with the gap after it."""
        longest = max(cell_len(text) for text in (self.heading, *self.cells))
        return min(longest, self.cut_to or longest) + 2


def model_columns(models: Sequence[ModelStatus]) -> dict[str, Column]:
    """Return the columns that `status` and `top` share, by their headings, in order."""
    style = tuple(COLOURS.get(model.state, "cyan") for model in models)

    def cells(words: Callable[[ModelStatus], object]) -> tuple[str, ...]:
        return tuple(str(words(model)) for model in models)

    columns = (
        Column("MODEL", cells(lambda model: model.model), right=False),
        Column("STATE", cells(lambda model: model.state.value), right=False, style=style),
        Column("KIND", cells(lambda model: model.kind or "-"), leave=5, right=False),
        Column("PID", cells(lambda model: model.pid or "-"), leave=6),
        Column("MEMORY", cells(lambda model: _size(model.figures.held_bytes))),
        Column("RESERVED", cells(lambda model: _size(model.reserved_bytes)), leave=4),
        Column("ACTIVE", cells(lambda model: model.requests_active)),
        Column("QUEUED", cells(lambda model: model.requests_queued)),
        Column("SERVED", cells(lambda model: model.figures.requests_total), leave=1),
        Column("IDLE", cells(lambda model: _time(model.idle_s)), leave=3),
        Column("EXPIRES", cells(lambda model: _time(model.expires_in_s)), leave=2),
    )
    return {column.heading: column for column in columns}


def model_table(columns: Sequence[Column], width: int) -> Table:
    """Return the table, without the columns that do not fit and may be left out."""
    shown = list(columns)
    leaving = sorted((c for c in columns if c.leave is not None), key=lambda c: c.leave or 0)
    while leaving and sum(column.width for column in shown) > width:
        shown.remove(leaving.pop(0))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in shown:
        table.add_column(
            column.heading,
            justify="right" if column.right else "left",
            no_wrap=not column.folds,
            overflow="fold" if column.folds else "ellipsis",
        )
    left = width - sum(column.width for column in shown if column.cut_to is None)
    for row in range(max((len(column.cells) for column in shown), default=0)):
        table.add_row(*(_cell(column, row, left) for column in shown))
    return table


def _cell(column: Column, row: int, left: int) -> Text:
    text = Text(column.cells[row], style=column.style[row] if column.style else "")
    if column.cut_to is not None:
        text.truncate(max(left, column.cut_to), overflow="ellipsis")
    return text


def _size(count: int) -> str:
    return format_bytes(count) if count else "-"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else short_duration(seconds)
