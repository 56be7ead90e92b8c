"""Keeps wired memory wired while a worker is idle. No mlx here: mlx reads the variable when it is
first used.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from lmx.protocol.states import MemoryWiring

VARIABLE: Final = "MLX_METAL_RESIDENCY_REFRESH_INTERVAL_MS"
"""Read by mlx 0.32.4. It is not set by default, and nothing is refreshed then."""

INTERVAL_MS: Final = 500
"""macOS lets go of wired memory after about a second in which the GPU does nothing. The first token
after such a pause took 318 ms instead of 63 (a model of 13.5 GB on an M4 Pro), and llama.cpp
refreshes at this interval for that reason."""


def keep_resident(wiring: MemoryWiring) -> None:
    """Let mlx ask again and again for its wired memory to stay wired. What the environment says
    already is kept. Does nothing outside macOS, and if nothing is wired."""
    if sys.platform == "darwin" and wiring is not MemoryWiring.NEVER:
        os.environ.setdefault(VARIABLE, str(INTERVAL_MS))
