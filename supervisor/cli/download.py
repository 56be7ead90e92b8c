"""Carries out the CLI's commands on models' files: asks the supervisor, and shows its answers."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from typing import Final

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.inventory import (
    Available,
    CancelDownload,
    Deleted,
    DeleteModel,
    Downloads,
    DownloadView,
    GetAvailable,
    GetDownloads,
    StartDownload,
)
from lmx.protocol.states import DownloadStatus
from lmx.supervisor.cli.views.json_output import json_text
from lmx.supervisor.cli.views.progress import make_console
from lmx.supervisor.cli.views.words import find_model
from lmx.supervisor.config.known_models import KNOWN_MODELS
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.sockets.client import ControlClient
from lmx.supervisor.state.home import Home

_POLL_S: Final = 0.5
_START_S: Final = 30.0
_SCAN_S: Final = 90.0
_DELETE_S: Final = 300.0
_LOOK_S: Final = 30.0
_RUNNING: Final = (DownloadStatus.STARTING, DownloadStatus.DOWNLOADING)


def download_model(home: Home, repository: str, filename: str | None) -> None:
    """Download a repository, or a file of it, and wait with a progress bar. Raises
    :class:`OperationError` when it is not downloaded completely."""
    repository = KNOWN_MODELS.get(repository, repository)
    repo_id, at, revision = repository.partition("@")
    with ControlClient(home, _START_S) as client:
        budget_bytes = client.status().supervisor.budget_bytes
        _tell_size(home, repository, filename, budget_bytes)
        view: DownloadView = client.ask(StartDownload(repo_id, revision if at else None, filename))
        try:
            view = _watch(client, view)
        except KeyboardInterrupt:
            click.echo(
                f"{view.download_id} goes on without this command: see `lmx downloads`; "
                f"`lmx download --cancel {view.download_id}` ends it",
                err=True,
            )
            raise
    if view.status is not DownloadStatus.COMPLETED:
        raise OperationError(
            view.error_code or ErrorCode.DOWNLOAD_FAILED,
            f"{view.repo_id} was not downloaded: {view.error or f'it was {view.status}'}",
        )
    if view.model_id is not None:
        click.echo(f"{view.model_id} is served: its first request loads it")
    else:
        click.echo(view.error or f"{view.filename} is downloaded; it is no model of its own")


def served_name(home: Home, name: str) -> str:
    """Return the id of a model that a person names, after downloading it if it is a short name or a
    repository that is not served. Raises :class:`OperationError`."""
    with ControlClient(home) as client:
        workers = client.status().workers
    try:
        return find_model(workers, KNOWN_MODELS.get(name, name)).model
    except OperationError:
        if name not in KNOWN_MODELS and "/" not in name:
            raise
    download_model(home, name, None)
    with ControlClient(home) as client:
        return find_model(client.status().workers, KNOWN_MODELS.get(name, name)).model


def _tell_size(home: Home, repository: str, filename: str | None, budget_bytes: int) -> None:
    """Say how large a download is, and whether the disk and the memory have room for it. Where that
    can't be found out nothing is said: the download itself says what is wrong."""
    options = [] if filename is None else ["--filename", filename]
    try:
        found = subprocess.run(
            [
                sys.executable, "-P", "-m", "lmx.supervisor.fetch.main", "--look",
                "--source", repository, "--models-dir", str(home.models), *options,
            ],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_LOOK_S, check=False,
        )  # fmt: skip
        look = json.loads(found.stdout.splitlines()[-1])["look"]
    except (subprocess.TimeoutExpired, ValueError, LookupError):
        return
    total, missing = format_bytes(look["total_bytes"]), format_bytes(look["missing_bytes"])
    free, budget = format_bytes(look["free_bytes"]), format_bytes(budget_bytes)
    if not look["missing_bytes"]:
        click.echo(f"{repository}: {total}, and all of it is on this machine")
    else:
        click.echo(f"{repository}: {total}; {missing} to download, {free} free in {look['folder']}")
    if look["total_bytes"] <= budget_bytes:
        click.echo(f"its files fit into the {budget} that models may take of the memory")
        return
    click.echo(f"it does not fit: models may take {budget} of the memory (memory.budget_bytes)")
    if sys.stdin.isatty() and not click.confirm("download it all the same?"):
        raise OperationError(ErrorCode.INSUFFICIENT_MEMORY, "nothing was downloaded")


def cancel_download(home: Home, download_id: str) -> None:
    """Cancel a download."""
    with ControlClient(home, _START_S) as client:
        view: DownloadView = client.ask(CancelDownload(download_id))
    click.echo(f"{view.download_id} ({view.repo_id}) is {view.status}")


def show_downloads(home: Home, as_json: bool) -> None:
    """Print the downloads, the latest first."""
    with ControlClient(home) as client:
        found: Downloads = client.ask(GetDownloads())
    if as_json:
        click.echo(json_text([dataclasses.asdict(view) for view in found.downloads]))
        return
    for view in found.downloads:
        click.echo(_line(view))
    if not found.downloads:
        click.echo("nothing was downloaded yet: `lmx pull -h` says how")


def show_available(home: Home, as_json: bool) -> None:
    """Print the models on disk, by name."""
    with ControlClient(home, _SCAN_S) as client:
        found: Available = client.ask(GetAvailable())
    if as_json:
        click.echo(json_text([dataclasses.asdict(model) for model in found.models]))
        return
    for model in found.models:
        served = f"served as {model.model_id}" if model.model_id else "not served"
        click.echo(f"{model.repo_id}  {format_bytes(model.size_bytes)}  {served}")
    if not found.models:
        click.echo("no model is on this machine yet: `lmx pull -h` says how to get one")


def delete_model(home: Home, model: str, *, force: bool) -> None:
    """Delete a model's files."""
    with ControlClient(home, _DELETE_S) as client:
        deleted: Deleted = client.ask(DeleteModel(model, force))
    click.echo(f"deleted {deleted.model_id}: {format_bytes(deleted.freed_bytes)} freed")


def _watch(client: ControlClient, view: DownloadView) -> DownloadView:
    console = make_console()
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), DownloadColumn())
    with Progress(
        *columns, TransferSpeedColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    ) as bars:  # fmt: skip
        task = bars.add_task(view.repo_id, total=None)
        while view.status in _RUNNING:
            bars.update(task, total=view.total_bytes, completed=view.downloaded_bytes)
            time.sleep(_POLL_S)
            found: Downloads = client.ask(GetDownloads(view.download_id))
            view = found.downloads[0]
    return view


def _line(view: DownloadView) -> str:
    name = view.repo_id + (f"@{view.revision}" if view.revision else "")
    if view.filename:
        name += f" {view.filename}"
    total = "?" if view.total_bytes is None else format_bytes(view.total_bytes)
    line = f"{view.download_id}  {view.status}  {name}  "
    line += f"{format_bytes(view.downloaded_bytes)} of {total}"
    if view.status is DownloadStatus.DOWNLOADING:
        line += f"  {format_bytes(view.speed_bytes_per_s)}/s"
    return line + (f"  {view.error}" if view.error else "")
