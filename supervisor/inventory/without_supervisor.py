"""The files of models while no supervisor runs: lists them, fetches another model, deletes one."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.protocol.messages.inventory import Available, Deleted, DownloadView
from lmx.protocol.states import DownloadStatus
from lmx.supervisor.config.schema import Config
from lmx.supervisor.config.sources import GgufSource, folder_path, parse_source
from lmx.supervisor.core.inspect_files import question_of
from lmx.supervisor.inventory.added import (
    known_model,
    read_added,
    refuse_unreadable,
    served_as,
    with_added,
)
from lmx.supervisor.inventory.added_file import AddedFile
from lmx.supervisor.inventory.delete_files import delete_files
from lmx.supervisor.inventory.disk import scan_conversions, scan_hub
from lmx.supervisor.inventory.download_records import (
    RESUME_HINT,
    Download,
    DownloadFile,
    trimmed,
)
from lmx.supervisor.inventory.on_disk import (
    Served,
    adapter_not_deletable,
    available,
    plan_and_users,
)
from lmx.supervisor.memory.files import converted_file
from lmx.supervisor.processes.fetching import FetchProgram
from lmx.supervisor.processes.inspector import inspect_now
from lmx.supervisor.state.home import Home
from lmx.supervisor.state.process_records import Records, SupervisorLock


async def list_available(home: Home, config: Config) -> Available:
    """Return the models whose files are complete on this machine. ``config`` is what an lmx would
    serve, added models included. Raises :class:`OperationError`."""
    repos, conversions = await asyncio.gather(scan_hub(), scan_conversions(home.models))
    return Available(available(repos, conversions, _served(config)))


def list_downloads(home: Home) -> list[DownloadView]:
    """Return the downloads, the latest first. None of them runs."""
    return [each.view(0.0) for each in reversed(DownloadFile(home.downloads).read())]


def delete(home: Home, config: Config, name: str, notify: Callable[[str], None]) -> Deleted:
    """Delete the files of a model, or those that the disk has by that name. An added model is
    forgotten. ``config`` is what an lmx would serve, without the added models.

    Holds the lock of the home until the process ends. Raises :class:`OperationError`:
    ALREADY_RUNNING if a supervisor was started meanwhile, MODEL_LOADED if processes of one that was
    killed are left, MODEL_NOT_FOUND, NOT_DELETABLE.
    """
    home.prepare()
    # Outside an event loop, which would keep an interrupt back until the wait is over.
    SupervisorLock(home.lock, notify).acquire(by_command=True)
    if left := [record.pid for record in Records(home.state).orphans()]:
        raise OperationError(
            ErrorCode.MODEL_LOADED,
            f"processes of an lmx whose supervisor has ended are left (pids "
            f"{', '.join(map(str, left))}) and may use these files: `lmx stop` ends them",
            param="model_id",
        )
    return asyncio.run(_delete(home, config, name))


async def _delete(home: Home, config: Config, name: str) -> Deleted:
    added_file = AddedFile(home.added_models)
    added = added_file.load()
    config = with_added(config, added)
    target, served = _target(config, name), _served(config)
    repos, conversions = await asyncio.gather(scan_hub(), scan_conversions(home.models))
    is_added = isinstance(target, Served) and target.model_id in added
    gone, ids = plan_and_users(name, target, served, repos, conversions, is_added=is_added)
    freed_bytes = await delete_files(gone, home, ids)
    file = DownloadFile(home.downloads)
    kept = [each for each in file.load() if not gone.includes(each)]
    file.save(DownloadFile.values_of(kept))
    forgotten = tuple(each for each in ids if each in added)
    if forgotten:
        added_file.save({key: model for key, model in added.items() if key not in ids})
    deleted = target.model_id if isinstance(target, Served) else name
    return Deleted(deleted, freed_bytes, forgotten)


def _target(config: Config, name: str) -> Served | str:
    for model in config.models:
        if name in model.adapters:
            raise adapter_not_deletable(name, model)
        if name in model.names:
            return Served.of(model, _file(model.source))
    return name


def _served(config: Config) -> list[Served]:
    return [Served.of(model, _file(model.source)) for model in config.models]


def _file(source: str) -> Path | None:
    parsed = parse_source(source)
    return converted_file(folder_path(parsed.path)) if isinstance(parsed, GgufSource) else None


async def fetch(home: Home, download: Download, advanced: Callable[[Download], None]) -> Path:
    """Download what is requested, and return its folder or file. ``advanced`` is called when more
    of it has come. What has come stays when this is cancelled. Raises :class:`LmxError`."""

    def report(line: dict[str, Any]) -> None:
        if "total_bytes" in line:
            download.total_bytes = int(line["total_bytes"])
            download.downloaded_bytes = int(line["done_bytes"])
        if download.bits is not None and line["phase"] != "download":
            download.note = line["detail"]
        advanced(download)

    outcome = await FetchProgram.of(home).run(download.repo_id, download.options, report)
    if isinstance(outcome, LmxError):
        raise outcome
    return outcome


def keep(
    home: Home,
    config: Config,
    download: Download,
    path: Path,
    notify: Callable[[str], None],
) -> None:
    """Have the next lmx serve what was downloaded, and remember the download. Its ``model_id``
    becomes the name, None if it is not served, and ``error`` says why not.

    Holds the lock of the home until the process ends. Raises :class:`OperationError`
    (already_running) if a supervisor was started meanwhile.
    """
    SupervisorLock(home.lock, notify).acquire(by_command=True)
    download.path, download.ended_s = str(path), time.time()
    download.status = DownloadStatus.COMPLETED
    download.downloaded_bytes = download.total_bytes or download.downloaded_bytes
    try:
        download.model_id = _have_served(home, config, download, path)
    except LmxError as error:
        download.error = f"downloaded, but not served: {error.message}"
    _remember(home, download)


def keep_unfinished(
    home: Home, download: Download, error: LmxError | None, notify: Callable[[str], None]
) -> None:
    """Remember a download that failed, or that a person stopped. Does nothing if a supervisor was
    started meanwhile, which has the file then."""
    try:
        SupervisorLock(home.lock, notify).acquire(by_command=True)
    except OperationError:
        return
    download.ended_s = time.time()
    download.error_code = ErrorCode.DOWNLOAD_FAILED if error is None else error.code
    download.status = DownloadStatus.INTERRUPTED if error is None else DownloadStatus.FAILED
    download.error = f"it was stopped: {RESUME_HINT}" if error is None else error.message
    _remember(home, download)


def _remember(home: Home, download: Download) -> None:
    file = DownloadFile(home.downloads)
    before = [each for each in file.load() if each.key != download.key]
    file.save(DownloadFile.values_of(trimmed([*before, download])))


def _have_served(home: Home, config: Config, download: Download, path: Path) -> str | None:
    """Add the model to those that were added, unless it is served already. Returns its id."""
    question = download.to_serve(path)
    if question is None:
        return None
    file = AddedFile(home.added_models)
    added = file.load()
    served = with_added(config, added)
    known = served_as(served, question.source)
    if known is not None:
        return known
    model = read_added(question)
    if known_model(served, model) is None:
        (found,) = inspect_now(home, [question_of(model)])
        refuse_unreadable(model, found)
        file.save({**added, model.id: model})
    return model.id
