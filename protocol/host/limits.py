"""The process's limit of open files."""

from __future__ import annotations

import resource
from typing import Final

_OPEN_FILES: Final = 65_536
"""How many open files are asked for, up to what is allowed. macOS gives a process 256, each
connection takes one, and zmq aborts the process when it gets none."""


def raise_file_limit() -> None:
    """Raise the soft limit of open files as far as it is allowed. Children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
