"""Writes a small file of the state whole or not at all, whenever the process dies."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Put ``text`` in the place of a file's content, readable by its owner alone. Raises
    ``OSError``; the old content is still there then."""
    temporary = path.with_suffix(".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:  # noqa: PTH123  of a descriptor, with its mode
        file.write(text)
    temporary.replace(path)
