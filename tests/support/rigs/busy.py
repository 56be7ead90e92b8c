"""A machine on which others compute too."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LOAD = int(os.environ.get("LMX_TEST_BUSY", "0"))
"""How many other processes are to compute during the tests that ask for it."""

_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(10**6))\n"
"""It ends by itself when whoever started it has ended."""


@contextmanager
def busy_machine() -> Iterator[None]:
    """Have LOAD processes of ordinary priority compute, as long as the block lasts."""
    command = [sys.executable, "-S", "-c", _LOOP]
    # Linux may share its processors among sessions: each has one of its own, as lmx's processes do.
    loops = [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        for _ in range(LOAD)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
