"""The blocks of code in a document, by the bold name that each follows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

CLIENTS: Final = Path(__file__).resolve().parents[3] / "docs" / "clients.md"

_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
_NAME: Final = re.compile(r"^\*\*(.+?)\*\*", re.M)


class Block(NamedTuple):
    """One block."""

    name: str
    language: str
    text: str


def blocks_of(document: Path = CLIENTS) -> list[Block]:
    """Return all blocks of a document that follow a bold name at the beginning of a line."""
    text = document.read_text()
    names = [(found.start(), found[1]) for found in _NAME.finditer(text)]
    return [
        Block(before[-1], found[1], found[2])
        for found in _BLOCK.finditer(text)
        if (before := [name for start, name in names if start < found.start()])
    ]


def block(name: str, language: str, place: int = 0) -> str:
    """Return the text of the block of ``docs/clients.md`` with this name and language; the first,
    unless ``place`` says another."""
    return [one.text for one in blocks_of() if one[:2] == (name, language)][place]
