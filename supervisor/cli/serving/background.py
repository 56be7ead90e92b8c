"""Starts a supervisor that outlives the terminal."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from lmx.protocol.errors import ErrorCode, OperationError, ProtocolError
from lmx.protocol.host.log_files import append_to
from lmx.protocol.host.quarantine_file import clear_for_file
from lmx.protocol.messages.status import SystemStatus
from lmx.supervisor.cli.views.log import last_lines
from lmx.supervisor.config.schema import Config
from lmx.supervisor.processes.descendants import unmarked
from lmx.supervisor.sockets.client import ControlClient, supervisor_runs
from lmx.supervisor.sockets.listening import check_free
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import Records

_START_S: Final = 120.0
"""One that ends is seen at once. On a machine that is busy with something else, one that lives has
taken 42 s."""

_POLL_S: Final = 0.1


def start_background(home: Home, config: Config, config_path: Path | None) -> SystemStatus:
    """Start ``up`` detached and return the status once the API listens.

    Raises :class:`OperationError` with the end of its log when it does not come up.
    """
    if supervisor_runs(home):
        raise OperationError(ErrorCode.ALREADY_RUNNING, "lmx is running already: see `lmx status`")
    home.prepare()
    if not Records(home.state).orphans():  # among them may be the router, which has the port
        check_free(config.server)
    child = spawn_background(home, config_path)
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        if child.poll() is not None:
            raise _not_started(home, child.returncode)
        status = _status_if_running(home)
        if status is not None and status.router.pid is not None:
            return status
        time.sleep(_POLL_S)
    raise OperationError(
        ErrorCode.NOT_RUNNING,
        f"lmx did not come up within {_START_S:g} s: see {home.supervisor_log}",
    )


def ensure_started(home: Home) -> None:
    """Start lmx in the background if it does not run, and say so on stderr. Returns when the API
    answers. Raises :class:`OperationError` if it can't be started."""
    if supervisor_runs(home):
        return
    from lmx.supervisor.cli.command import config_path, own_config
    from lmx.supervisor.cli.serving.options import settle_handover

    settle_handover(home, None, None)
    click.echo("lmx is not running: starting it in the background (`lmx stop` ends it)", err=True)
    try:
        start_background(home, own_config(None), config_path(None))
    except OperationError as error:
        if error.code is not ErrorCode.ALREADY_RUNNING:  # somebody else has just started it
            raise


def spawn_background(
    home: Home, config_path: Path | None, options: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start ``up`` detached, without waiting. Raises ``OSError``."""
    command = [sys.executable, "-P", "-m", "lmx.supervisor", "up", "--detached", "--background"]
    if config_path is not None:
        command += ["--config", str(config_path)]
    clear_for_file(home.supervisor_log)
    log = append_to(home.supervisor_log)
    try:
        return subprocess.Popen(
            [*command, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, env=unmarked(os.environ),
        )  # fmt: skip
    finally:
        os.close(log)


def _not_started(home: Home, status: int) -> OperationError:
    what = f"lmx did not start (exit code {status})"
    end = "\n".join(last_lines(home.supervisor_log, 10))
    try:
        with home.supervisor_log.open("ab", buffering=0) as log:
            log.write(f"{what}\n".encode())
    except OSError as error:
        # On a full disk its messages are lost too, and the log ends with an earlier run.
        reason = f"{home.supervisor_log} can't be written: {error.strerror or error}"
        return OperationError(ErrorCode.INTERNAL, f"{what}; {reason}")
    return OperationError(ErrorCode.INTERNAL, f"{what}; the end of {home.supervisor_log}:\n{end}")


def _status_if_running(home: Home) -> SystemStatus | None:
    try:
        with ControlClient(home) as client:
            return client.status()
    except ProtocolError:
        return None
    except OperationError as error:
        # One that comes up may be too busy to answer.
        if error.code in (ErrorCode.NOT_RUNNING, ErrorCode.SUPERVISOR_UNAVAILABLE):
            return None
        raise
