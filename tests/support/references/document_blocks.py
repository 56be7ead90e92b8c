"""The blocks of code in ``docs/clients.md``, by the bold name that each follows."""

import re
from pathlib import Path
from typing import Final

_DOCUMENT: Final = Path(__file__).resolve().parents[3] / "docs" / "clients.md"
_PARTS: Final = re.compile(
    r"^\*\*(?P<name>.+?)\*\*|^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)


def block(name: str, language: str, place: int = 0) -> str:
    """Return the text of the block behind this name in this language; the first, unless ``place``
    says another."""
    found, before = [], ""
    for part in _PARTS.finditer(_DOCUMENT.read_text()):
        before = part["name"] or before
        if before == name and part["kind"] == language:
            found.append(part["text"])
    return found[place]
