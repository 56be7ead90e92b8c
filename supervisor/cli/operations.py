"""The CLI's commands that change something: ask, then wait until it is so, with progress."""

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages import control, inventory
from lmx.protocol.messages.status import ModelStatus, ReturnedMemory, SystemStatus
from lmx.protocol.states import ModelState
from lmx.supervisor.cli.views.progress import LoadProgress, make_console
from lmx.supervisor.cli.views.words import SETTLED, find_model
from lmx.supervisor.config.known_models import repository_of
from lmx.supervisor.config.sources import (
    HubSource,
    SourceError,
    folder_path,
    parse_source,
    refuse_folder_as_repository,
)
from lmx.supervisor.sockets.client import (
    LONG_ANSWER_S,
    Place,
    ReconnectingClient,
    not_running,
    open_client,
)
from lmx.supervisor.sockets.http_client import Remote
from lmx.supervisor.state.home import Home

_Found = TypeVar("_Found")

_POLL_S: Final = 0.1
_RESTART_S: Final = 60.0
"""How long a new router or supervisor may take to serve, on a machine that is busy with something
else."""
_REMOVE_S: Final = 600.0
"""How long the streams of a removed model may take to end. It is longer than any `drain_timeout_s`
in use."""
_AWAY_S: Final = 15.0
"""How long a supervisor may be gone. It is never gone while it replaces itself, but one that fails
then may be started again by launchd or systemd."""
_MEMORY_S: Final = 8.0
"""How long to wait for a killed worker's end, and to see whether its memory comes back."""
_INTRODUCTION_S: Final = 5.0
"""How long workers have to report to a new supervisor. They do so with their next
heartbeat."""


def load_model(place: Place, model: str, context_length: int | None) -> None:
    """Load a model and wait. If ``context_length`` is given, the model gets that one. Raises
    :class:`OperationError` when it can't be loaded."""
    _ask(place, control.LoadModel(model, context_length))
    _wait_ready(place, model, old_pid=None, context_length=context_length)


def add_model(place: Place, model_id: str, source: str, context_length: int | None) -> None:
    """Let another model be served. Loads nothing. Raises :class:`OperationError`."""
    source = repository_of(source)
    try:
        if isinstance(place, Home):
            refuse_folder_as_repository(source)
        if isinstance(place, Home) and not isinstance(parse_source(source), HubSource):
            source = str(folder_path(source))  # the supervisor may run in another one
    except SourceError as error:
        raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, str(error)) from error
    except RuntimeError as error:
        raise OperationError(
            ErrorCode.MODEL_SOURCE_INVALID, f"{source}: this machine has no user of that name"
        ) from error
    click.echo(_ask(place, inventory.AddModel(model_id, source, context_length)).message)


def remove_model(place: Place, model: str) -> None:
    """Remove a model that was added, and wait until its process is gone."""
    done = _ask(place, inventory.RemoveModel(model))
    if done.pid is not None:
        _poll_status(
            place,
            lambda now: now if all(one.pid != done.pid for one in now.workers) else None,
            _REMOVE_S,
        )
    click.echo(done.message)


def restart_model(place: Place, model: str) -> None:
    """End a model's worker after its streams, load it again and wait."""
    done = _ask(place, control.RestartModel(model))
    _wait_ready(place, model, old_pid=done.pid)


def unload_model(place: Place, model: str) -> None:
    """Unload a model and wait until its process is gone."""
    done = _ask(place, control.UnloadModel(model))
    found = _wait_gone(place, model, done.pid)
    again = "; a request has had it loaded again" if found.pid else ""
    back = "" if done.pid is None else f"; {_memory_back(place, model, done.pid)}"
    click.echo(f"unloaded {found.model}{_gone(done.pid)}{back}{again}")


def drain_model(place: Place, model: str) -> None:
    """Drain a model, and wait until its streams and its process have ended."""
    done = _ask(place, control.DrainModel(model))
    found = _wait_gone(place, model, done.pid)
    name = found.model
    if found.state is ModelState.DRAINED:
        click.echo(
            f"drained {name}{_gone(done.pid)}; it takes no request until "
            f"`lmx undrain {name}` or `load {name}`"
        )
    else:
        click.echo(f"drained {name}{_gone(done.pid)}; it was requested again meanwhile")


def kill_model(place: Place, model: str) -> None:
    """Send SIGKILL to a model's worker, also when no supervisor of this machine answers. Waits
    until its memory has come back, but not until the model is loaded again."""
    if isinstance(place, Remote):
        _kill_by_supervisor(place, model)
        return
    from lmx.supervisor.cli.without_supervisor import kill_worker
    from lmx.supervisor.processes.supervisor_pid import (
        Unresponsive,
        probe_supervisor,
        supervisor_process,
    )
    from lmx.supervisor.state.process_records import Records

    unresponsive = probe_supervisor(place)
    if unresponsive is None:
        try:
            _kill_by_supervisor(place, model)
            return
        except OperationError as error:
            if error.code is not ErrorCode.SUPERVISOR_UNAVAILABLE:
                raise
            unresponsive = Unresponsive(supervisor_process(place))
    if unresponsive.holder is None and not Records(place.state).orphans():
        raise not_running(place)
    click.echo(kill_worker(place, model, unresponsive))


def undrain_model(place: Place, model: str) -> None:
    """Let a drained model take requests again. Loads nothing. Raises :class:`OperationError` if it
    is not drained."""
    with open_client(place) as client:
        found = find_model(client.status().workers, model)
        if found.state is not ModelState.DRAINED:
            raise OperationError(
                ErrorCode.INVALID_VALUE, f"{found.model} is not drained: it is {found.state}"
            )
        client.ask(control.ResetModel(found.model))
    click.echo(f"{found.model} takes requests again: the next one loads it")


def _kill_by_supervisor(place: Place, model: str) -> None:
    done = _ask(place, control.KillModel(model))
    click.echo(f"{done.message}; {_memory_back(place, model, done.pid)}")


def reset_model(place: Place, model: str) -> None:
    """Forget a model's failures. Loads nothing."""
    click.echo(_ask(place, control.ResetModel(model)).message)


def pin_model(place: Place, model: str, *, pinned: bool) -> None:
    """Pin or unpin a model. Loads nothing."""
    click.echo(_ask(place, control.PinModel(model, pinned)).message)


def reload_config(place: Place) -> None:
    """Let the supervisor read the configuration again, and print what follows.

    Raises :class:`OperationError` (config_invalid) with every problem. Nothing has changed then.
    """
    with open_client(place, LONG_ANSWER_S) as client:
        reloaded: control.Reloaded = client.ask(control.ReloadConfig())
    if not reloaded.sections:
        click.echo("the configuration is the same: nothing changed")
        return
    click.echo(f"reloaded; changed: {', '.join(reloaded.sections)}")
    for change in reloaded.changes:
        click.echo(f"  - {change}")


def restart_router(place: Place) -> None:
    """Start a new router next to the old one, and wait until it serves, or another one that was
    started in its place."""
    with open_client(place, LONG_ANSWER_S) as client:
        old_pid = client.status().router.pid
        client.ask(control.RestartRouter())
    status = _wait_status(
        place,
        lambda found: found.router.pid not in (None, old_pid) and found.router.memory_bytes > 0,
        "the new router does not serve: see `lmx logs --router`",
    )
    router = status.router
    click.echo(
        f"a new router (pid {router.pid}) serves at {router.url}; the old one ends when its "
        "requests have"
    )


def restart_supervisor(place: Place) -> None:
    """Replace the supervisor's program, and wait until the new one answers and knows the
    workers that were ready."""
    with open_client(place, LONG_ANSWER_S) as client:
        found = client.status()
        before = found.supervisor
        client.ask(control.RestartSupervisor())
    status = _wait_status(
        place,
        lambda found: found.supervisor.epoch != before.epoch,
        "no new supervisor answers: see `lmx logs`",
    )
    warm = {one.pid for one in found.workers if one.state is ModelState.READY}

    def all_reported(now: SystemStatus) -> bool | None:
        unresponsive = (one.pid in warm and one.state is ModelState.STARTING for one in now.workers)
        return None if any(unresponsive) else True

    # A worker that stays silent is judged by the new supervisor. It is no failure of the restart.
    _poll_status(place, all_reported, _INTRODUCTION_S)
    after = status.supervisor
    versions = " -> ".join(dict.fromkeys((before.version, after.version)))
    click.echo(f"a new supervisor (pid {after.pid}, lmx {versions}) has taken over what runs")


def _ask(place: Place, question: Any) -> control.Done:
    with open_client(place) as client:
        done: control.Done = client.ask(question)
    return done


def _wait_ready(
    place: Place, model: str, old_pid: int | None, context_length: int | None = None
) -> None:
    def settled(now: ModelStatus) -> bool:
        if now.state is ModelState.READY:
            return now.pid != old_pid and context_length in (None, now.context_length)
        # A model in BACKOFF or QUEUED continues by itself. One that is COLD was given up, or
        # somebody else unloaded it. One that is DRAINED was drained by somebody else.
        return now.state in SETTLED

    found = _wait_for(place, model, settled)
    if found.state is not ModelState.READY:
        raise OperationError(
            ErrorCode.MODEL_LOAD_FAILED,
            f"{found.model}: {found.problem or 'it was unloaded meanwhile'}",
        )


def _wait_gone(place: Place, model: str, pid: int | None) -> ModelStatus:
    return _wait_for(place, model, lambda now: now.pid is None or now.pid != pid)


def _memory_back(place: Place, model: str, pid: int | None) -> str:
    """Wait until it was measured how much of a worker's memory came back, and return that for
    people."""

    def measured(status: SystemStatus) -> ReturnedMemory | None:
        last = find_model(status.workers, model).last_exit
        return last.memory if last is not None and last.pid == pid else None

    memory = _poll_status(place, measured, _MEMORY_S)
    if memory is None:
        return f"its memory is still to come back: see `lmx events {model}`"
    return memory.detail


def _gone(pid: int | None) -> str:
    return f" (pid {pid} is gone)" if pid else ""


def _wait_for(place: Place, model: str, until: Callable[[ModelStatus], bool]) -> ModelStatus:
    """Poll the status until a model satisfies ``until``, and return the model's part of it.

    This has no deadline of its own. The supervisor's deadlines end every state in which a model is
    being loaded, so that ``until`` must accept all other states. A model that waits for memory
    waits as long as the person at the terminal does.
    """
    with (
        ReconnectingClient(place, answered=True) as client,
        LoadProgress(make_console()) as progress,
    ):
        while True:
            status = client.status()
            if status is not None:
                now = find_model(status.workers, model)
                progress.show(now)
                if until(now):
                    return now
            time.sleep(_POLL_S)


def _wait_status(place: Place, until: Callable[[SystemStatus], bool], failure: str) -> SystemStatus:
    """Poll the status until it satisfies ``until``. Raises :class:`OperationError` with ``failure``
    when it does not in time."""
    status = _poll_status(place, lambda now: now if until(now) else None, _RESTART_S)
    if status is None:
        raise OperationError(ErrorCode.SUPERVISOR_UNAVAILABLE, failure)
    return status


def _poll_status(
    place: Place, find: Callable[[SystemStatus], _Found | None], limit_s: float
) -> _Found | None:
    """Return the first thing that is found in a status, None if nothing is found in time."""
    deadline_s = time.monotonic() + limit_s
    with ReconnectingClient(place, _AWAY_S, answered=True) as client:
        while time.monotonic() < deadline_s:
            try:
                status = client.status()
            except OperationError as error:
                # One that is there and says nothing yet, as it is while it starts, has the time.
                if error.code is not ErrorCode.SUPERVISOR_UNAVAILABLE:
                    raise
                status = None
            found = None if status is None else find(status)
            if found is not None:
                return found
            time.sleep(_POLL_S)
    return None
