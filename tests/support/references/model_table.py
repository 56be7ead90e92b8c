"""The tables of ``docs/models.md``: a line for each type that was examined."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lmx.protocol.states import MediaKind
from lmx.worker.mlx.decoding.rollback import Blocks
from tests.support.models.media_families import FAMILIES
from tests.support.rigs.conformance import Conformance, FewBits

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "models.md"
_PREFIX: Final = {"any": "anywhere", "ends": "where a prompt ended", "none": "no"}


_NOUNS: Final = {MediaKind.IMAGE: "images", MediaKind.AUDIO: "sound", MediaKind.VIDEO: "videos"}
_NOT_TRIED: Final = "not tried"

_COLUMNS: Final = ("type", "library", "together", "prefix cache", "speculation", "kv_bits")
_SEEING_COLUMNS: Final = (*_COLUMNS, "takes")


def cells(model_type: str, found: Conformance, *, sees: bool = False) -> dict[str, str]:
    """Return what a table says of a type, by column, but for ``kv_bits``. ``sees``: it is the table
    of those with eyes."""
    together = found.batched_off is not None
    # What a model keeps of its last picture is not tried, and then a row waits for the other's end.
    in_turns = found.in_turns_off is not None and not sees
    reported = {
        "type": f"`{model_type}`",
        "library": found.library,
        "together": "yes" if together else "in turns" if in_turns else "no",
        "prefix cache": _PREFIX[found.prefix],
        "speculation": _speculation(found.blocks, together=together),
    }
    return reported | {"takes": _taken(model_type)} if sees else reported


def bits_cell(found: Mapping[int, FewBits] | None) -> str:
    """Return what a table says of ``kv_bits``. None: it was not tried."""
    if found is None:
        return _NOT_TRIED
    return ", ".join(map(str, found)) or "no"


def line(reported: Mapping[str, str]) -> str:
    """Return a line of a table, of the cells of all columns."""
    columns = _SEEING_COLUMNS if "takes" in reported else _COLUMNS
    return "| " + " | ".join(reported[column] for column in columns) + " |"


def on_the_page(model_type: str, *, sees: bool = False) -> dict[str, str]:
    """Return the cells that the page has of a type, by column."""
    columns = _SEEING_COLUMNS if sees else _COLUMNS
    for each in PAGE.read_text().splitlines():
        found = [cell.strip() for cell in each.strip("|").split("|")]
        if found[0] == f"`{model_type}`" and len(found) == len(columns):
            return dict(zip(columns, found, strict=True))
    return {}


def _speculation(blocks: Blocks, *, together: bool) -> str:
    if blocks.alone is None:
        return "no"
    if blocks.together is None or not together:
        return "alone"
    return "yes" if blocks.apart else "in step"


def _taken(model_type: str) -> str:
    for name, family in FAMILIES.items():
        if (family.model_type or name) == model_type:
            return ", ".join(noun for kind, noun in _NOUNS.items() if kind.value in family.places)
    return _NOT_TRIED
