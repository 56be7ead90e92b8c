"""The rows of the documents' tables of parameters and of answers' fields. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One row. ``heading`` is the heading above its table; ``cells`` by the columns' names."""

    document: str
    line: int
    heading: str
    cells: dict[str, str]

    @property
    def parameter(self) -> str:
        """The name in the first column."""
        return next(iter(self.cells.values())).strip("`")


def table_rows(document: str, text: str) -> Iterator[Row]:
    """Return the rows of all tables whose first column names a parameter."""
    heading, columns = "", None
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#"):
            heading = line.strip("# ")
        if not line.startswith("|"):
            columns = None
            continue
        cells = [cell.strip() for cell in line.replace("\\|", "/").strip().strip("|").split("|")]
        if columns is None:
            columns = cells
        elif not set(line) <= set("|-: ") and columns[0] in ("Param", "Parameter"):
            yield Row(document, number, heading, dict(zip(columns, cells, strict=False)))
