"""The tables of ``docs/models.md``: a line for each type that was examined."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from conformance import Conformance
from media_families import FAMILIES

from lmx.protocol.states import MediaKind

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "models.md"
_PREFIX: Final = {"any": "anywhere", "ends": "where a prompt ended", "none": "no"}


_NOUNS: Final = {MediaKind.IMAGE: "images", MediaKind.AUDIO: "sound", MediaKind.VIDEO: "videos"}


def line(model_type: str, found: Conformance, *, sees: bool = False) -> str:
    """Return what a table says of a type. ``sees``: it is the table of those with eyes."""
    cells = (
        f"`{model_type}`",
        found.library,
        "no" if found.batched_off is None else "yes",
        _PREFIX[found.prefix],
        "yes" if found.rolls_back else "no",
    )
    return "| " + " | ".join((*cells, _taken(model_type)) if sees else cells) + " |"


def _taken(model_type: str) -> str:
    for name, family in FAMILIES.items():
        if (family.model_type or name) == model_type:
            return ", ".join(noun for kind, noun in _NOUNS.items() if kind.value in family.places)
    return "not tried"
