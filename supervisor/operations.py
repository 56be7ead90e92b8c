"""The CLI's commands on one model: ask, then wait until it is so, with progress."""

from __future__ import annotations

from typing import Any

import click

from lmx.protocol import control
from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.console import LoadProgress, make_console, wait_for
from lmx.supervisor.control_client import ControlClient
from lmx.supervisor.home import Home


def load_model(home: Home, model: str) -> None:
    """Load a model and wait. Raises :class:`OperationError` when it can't be loaded."""
    with ControlClient(home) as client:
        client.ask(control.LoadModel(model))
        _wait_ready(client, model, old_pid=None)


def restart_model(home: Home, model: str) -> None:
    """End a model's worker after its streams, load it again and wait."""
    with ControlClient(home) as client:
        done: control.Done = client.ask(control.RestartModel(model))
        _wait_ready(client, model, old_pid=done.pid)


def unload_model(home: Home, model: str) -> None:
    """Unload a model and wait until its process is gone."""
    with ControlClient(home) as client, LoadProgress(make_console()) as progress:
        done: control.Done = client.ask(control.UnloadModel(model))
        line = wait_for(
            client.status,
            model,
            lambda line: line["pid"] is None or line["pid"] != done.pid,
            progress,
        )
    process = f" (pid {done.pid} is gone)" if done.pid else ""
    again = "; a request has had it loaded again" if line["pid"] else ""
    click.echo(f"unloaded {line['model']}{process}{again}")


def kill_model(home: Home, model: str) -> None:
    """SIGKILL a model's worker; does not wait for its return."""
    with ControlClient(home) as client:
        done: control.Done = client.ask(control.KillModel(model))
    click.echo(done.message)


def _wait_ready(client: ControlClient, model: str, old_pid: int | None) -> None:
    def settled(line: dict[str, Any]) -> bool:
        if line["state"] == "ready":
            return bool(line["pid"] != old_pid)
        # "backoff" still tries again; "cold" is given up, or unloaded by somebody else.
        return line["state"] in ("quarantined", "cold")

    with LoadProgress(make_console()) as progress:
        line = wait_for(client.status, model, settled, progress)
    if line["state"] != "ready":
        raise OperationError(
            ErrorCode.MODEL_LOAD_FAILED,
            f"{line['model']}: {line['problem'] or 'it was unloaded meanwhile'}",
        )
