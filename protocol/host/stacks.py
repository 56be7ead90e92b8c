"""The signal by which a process writes the stacks of its threads into its log, and continues.

SIGABRT would do that too, and end the process. But macOS treats it as a crash: it shows a dialog,
writes a report, and keeps the process's memory meanwhile.
"""

import faulthandler
import signal
from typing import Final

STACKS: Final = signal.SIGQUIT
"""As for a Java process."""

WRITTEN_S: Final = 0.5
"""How long the stacks take to write, on a busy machine."""


def write_stacks_on_signal(*, chain: bool = False) -> None:
    """Write the stacks to descriptor 2 at each :data:`STACKS`, also while a thread holds the
    interpreter's lock for good, and at each crash. With ``chain`` the handler is called too that
    the signal had before."""
    faulthandler.enable()
    faulthandler.register(STACKS, all_threads=True, chain=chain)
