"""Starts an lmx process: its own session, its spec on stdin, its output in its log file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmx.protocol.wire import codec
from lmx.supervisor.processes.descendants import mark
from lmx.supervisor.state.home import Home


def start_child(
    module: str,
    names: tuple[str, ...],
    spec: Any,
    home: Home,
    log: Path,
    pass_fds: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    """Start ``python -m module`` and hand it ``spec``; ``names`` only show in ``ps``.

    A session of its own keeps a terminal's Ctrl-C from it and makes its pid its process group. The
    last of ``names`` is its id, which its descendants have in their environment
    (:mod:`lmx.supervisor.processes.descendants`). Its temporary files are below ``LMX_HOME``: on a
    CPU, mlx compiles kernels into them. ``-P``: nothing is imported from the working directory.
    Raises ``OSError`` when it can't be started, ``TypeError``, ``ValueError`` or ``OverflowError``
    for a spec that can't travel. Does not wait for anything.
    """
    payload = codec.encode(spec)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *names],
            stdin=subprocess.PIPE,
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
    assert child.stdin is not None
    # A spec is far smaller than a pipe's buffer: this can't block, but a child that died at
    # once has closed its end.
    try:
        child.stdin.write(payload)
        child.stdin.close()
    except BrokenPipeError:
        pass
    return child


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as children have it. The router has the keys from its spec, and nobody
    else needs them."""
    hidden = keys(environment)
    return {name: value for name, value in environment.items() if name not in hidden}


def keys(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that children don't have."""
    return {name: value for name, value in environment.items() if name.startswith("LMX_SECURITY_")}


def signal_group(pid: int, number: int) -> bool:
    """Signal a process group that :func:`start_child` made; False if it is gone.

    SIGABRT and SIGTERM are followed by SIGCONT: a process that was stopped (SIGSTOP) acts on a
    signal only once it goes on.
    """
    try:
        os.killpg(pid, number)
        if number in (signal.SIGABRT, signal.SIGTERM):
            os.killpg(pid, signal.SIGCONT)
    except (ProcessLookupError, PermissionError):
        # macOS says EPERM of a group in which only zombies are left.
        return False
    return True
