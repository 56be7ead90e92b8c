"""Starts an lmx process in its own session, with its spec on stdin and its output in its log
file."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import structlog

from lmx.protocol.free_text import text_of
from lmx.protocol.host.log_files import append_to
from lmx.protocol.host.stacks import STACKS
from lmx.protocol.wire import codec
from lmx.supervisor.processes.descendants import mark
from lmx.supervisor.state.home import Home

log = structlog.get_logger()

_OWN_KEYS: Final = "LMX_SECURITY_"
_PIPE_BYTES: Final = 16 * 1024
"""What every system's pipe takes without a reader. A longer spec, as one with many keys, is passed
as a file: a child that hangs would else keep the supervisor waiting."""

_SECRET: Final = re.compile(
    rf"^{_OWN_KEYS}|(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY|API_KEY"
    r"|ACCESS_KEY|PRIVATE_KEY|SECRET_KEY)S?$|^OTEL_\w+_HEADERS$",
    re.IGNORECASE,
)
"""The names of variables that hold a secret, as HF_TOKEN and AWS_SECRET_ACCESS_KEY do."""

COLLECTOR_HEADERS: Final = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
"""The variables with the headers for a collector of traces, a key among them. The router has them
from its spec."""


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


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without secrets, as children get it: those run strangers' code and read
    strangers' bytes. The router has lmx's own keys from its spec, and only the fetch program needs
    the hub's token."""
    hidden = keys(environment)
    return {name: value for name, value in environment.items() if name not in hidden}


def without_own_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as the fetch program gets it: with the hub's token, and without lmx's
    own keys."""
    return {name: value for name, value in environment.items() if not name.startswith(_OWN_KEYS)}


def keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that children do not get: lmx's own keys, and whatever is
    named like a secret."""
    return {name: value for name, value in environment.items() if _SECRET.search(name)}


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
