"""What may stand where a small file of lmx's own should be."""

import os
import random
from collections.abc import Callable
from pathlib import Path

from tests.support.faults.bad_folders import DEEP


def _content(content: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(content)

    return make


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("kept")


BAD_FILES: dict[str, Callable[[Path], None]] = {
    "folder": _folder,
    "dangling link": lambda path: path.symlink_to(path.parent / "nowhere" / "at-all"),
    "empty": _content(b""),
    "garbage": _content(random.Random(5).randbytes(300)),
    "text": _content(b"{ no JSON"),
    "another value": _content(b'[[1, {"a": "\\ud800"}], 2]'),
    "deep": _content(DEEP),
    "deep object": _content(b'{"models": ' + DEEP + b"}"),
    "pipe": lambda path: os.mkfifo(path),
    "surrogates": _content(b'{"\\ud800": true, "models": [{"id": "\\ud800", "source": "/x"}]}'),
    "numbers": _content(b'{"models": [{"id": 1e999, "source": NaN}], "a": ' + b"9" * 500 + b"}"),
}


def put_bad(path: Path, kind: str) -> None:
    """Put something there, in the place of what is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    BAD_FILES[kind](path)
