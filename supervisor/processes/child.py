"""Starts an lmx process in its own session, with its spec on stdin and its output in its log
file."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any, Final

import structlog

from lmx.protocol.free_text import text_of
from lmx.protocol.host.log_files import append_to
from lmx.protocol.host.stacks import STACKS
from lmx.protocol.wire import codec
from lmx.supervisor.config.secret_variables import without_keys
from lmx.supervisor.processes.descendants import mark
from lmx.supervisor.state.home import Home

log = structlog.get_logger()

_PIPE_BYTES: Final = 16 * 1024
"""What every system's pipe takes without a reader. A longer spec, as one with many keys, is passed
as a file: a child that hangs would else keep the supervisor waiting."""


def start_child(
    module: str,
    names: tuple[str, ...],
    spec: Any,
    home: Home,
    log_path: Path,
    pass_fds: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    """Start ``python -m module``, and pass it ``spec``. ``names`` only show in ``ps``.

    Does not wait for anything. Raises ``OSError`` when the process can't be started, and
    ``TypeError``, ``ValueError`` or ``OverflowError`` for a spec that can't be encoded.
    """
    payload = codec.encode(spec)
    if fits_pipe(payload):
        child = start_waiting(module, names, home, log_path, pass_fds)
        give(child, payload)  # One that died at once is seen by its watcher.
        return child
    with tempfile.TemporaryFile(dir=home.temporary) as stdin:
        stdin.write(payload)
        stdin.seek(0)
        return start_waiting(module, names, home, log_path, pass_fds, stdin)


def start_waiting(
    module: str,
    names: tuple[str, ...],
    home: Home,
    log_path: Path,
    pass_fds: tuple[int, ...] = (),
    stdin: int | IO[bytes] = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start ``python -m module``, which waits for its spec until :func:`give`, or until this
    process ends: then its stdin ends too.

    The session of its own keeps a terminal's Ctrl-C from the process, and makes its pid its process
    group. The last of ``names`` is its id, which its descendants have in their environment
    (:mod:`lmx.supervisor.processes.descendants`). Its temporary files are below ``LMX_HOME``,
    because on a CPU mlx compiles kernels into them. With ``-P`` nothing is imported from the
    working directory. Raises ``OSError`` when the process can't be started.
    """
    output = open_log(log_path)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *names],
            stdin=stdin,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=pass_fds,
            env={
                **without_keys(os.environ),
                **mark(home, names[-1]),
                "TMPDIR": str(home.temporary),
            },
        )
    finally:
        os.close(output)


def fits_pipe(payload: bytes) -> bool:
    """Return whether :func:`give` takes this without blocking."""
    return len(payload) <= _PIPE_BYTES


def give(child: subprocess.Popen[bytes], payload: bytes) -> bool:
    """Pass its encoded spec to a process that waits for it. Returns False if the process has
    ended."""
    assert child.stdin is not None
    try:
        child.stdin.write(payload)
        child.stdin.close()
    except BrokenPipeError:
        return False
    return True


def open_log(path: Path) -> int:
    """Return a descriptor that appends to a log file, or to none where the disk takes no log: what
    a process does matters more than what it says."""
    try:
        return append_to(path)
    except OSError as error:
        log.warning("log.not_opened", path=str(path), error=text_of(error))
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def signal_group(pid: int, number: int) -> bool:
    """Send a signal to a process group that :func:`start_child` made. Returns False if the group is
    gone.

    :data:`~lmx.protocol.host.stacks.STACKS` goes to the process alone, because what it has started
    would end by it. It and SIGTERM are followed by SIGCONT, because a process that was stopped
    (SIGSTOP) reacts to a signal only when it continues.
    """
    try:
        if number == STACKS:
            os.kill(pid, number)
        else:
            os.killpg(pid, number)
        if number in (STACKS, signal.SIGTERM):
            os.killpg(pid, signal.SIGCONT)
    except (ProcessLookupError, PermissionError):
        # macOS reports EPERM for a group in which only zombies are left.
        return False
    return True
