"""Standard output of a program whose answers go there."""

import os
import sys
from typing import TextIO


def take_stdout() -> TextIO:
    """Return standard output for the caller alone: what others print, as libraries and engines of
    one's own do, goes to standard error from here on."""
    sys.stdout.flush()
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream
