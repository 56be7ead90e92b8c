"""A command on a terminal or a pipe: what it prints is read as it comes, and a person types."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from tests.support.rigs.rig import Rig, wait_until


def _control() -> None:
    """Make stdin the terminal of this process's session, so that what is typed can be a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Reading:
    """A running command whose output is read as it comes."""

    def __init__(
        self, lmx: Rig, *arguments: str, terminal: bool, variables: dict[str, str]
    ) -> None:
        ours, theirs = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lmx.supervisor", *arguments],
            env={
                **lmx.environment, "TERM": "xterm", "COLUMNS": "120", "LINES": "30",
                "INPUTRC": os.devnull, **variables,
            },
            stdin=theirs if terminal else subprocess.DEVNULL, stdout=theirs, stderr=theirs,
            start_new_session=terminal, preexec_fn=_control if terminal else None,
        )  # fmt: skip
        os.close(theirs)
        self._ours = ours
        self.output = b""
        self.seen = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        # Of a terminal whose other side is closed, Linux says EIO.
        while True:
            try:
                piece = os.read(self._ours, 65536)
            except OSError:
                return
            if not piece:
                return
            self.output += piece

    def saw(self, text: str) -> None:
        """Wait until a text was printed, at any time."""
        wait_until(lambda: text.encode() in self.output, f"{text!r} in {self.output!r}")

    def sees(self, text: str) -> None:
        """Wait until a text is printed after the one that was seen last."""

        def there() -> bool:
            found = self.output.find(text.encode(), self.seen)
            if found >= 0:
                self.seen = found + len(text.encode())
            return found >= 0

        wait_until(there, f"{text!r} after {self.output[: self.seen][-200:]!r}")

    def type(self, text: str) -> None:
        """Type on the terminal."""
        os.write(self._ours, text.encode())

    def interrupt(self) -> int:
        """Send what Ctrl-C sends, and wait for the end."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(90)

    def close(self) -> None:
        """End it, if it still runs."""
        self.process.kill()
        self.process.wait()
        self._thread.join(90)
        os.close(self._ours)


@contextmanager
def reading(
    lmx: Rig, *arguments: str, terminal: bool = False, **variables: str
) -> Iterator[Reading]:
    """Run a command until the end of the block."""
    with closing(Reading(lmx, *arguments, terminal=terminal, variables=variables)) as made:
        yield made
