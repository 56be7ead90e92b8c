"""What would make this machine serve better, for the person who starts lmx."""

from __future__ import annotations

import ctypes.util
import sys


def advice() -> str | None:
    """Return a line of advice, or None. Starts processes to look for libraries: takes tenths
    of a second, so not for the event loop."""
    if sys.platform == "linux" and ctypes.util.find_library("openblas") is None:
        return (
            "tip: prompts are read several times faster with OpenBLAS "
            "(Debian: apt-get install libopenblas0-pthread, then restart the models)"
        )
    return None
