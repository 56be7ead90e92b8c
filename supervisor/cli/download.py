"""Carries out the CLI's commands on models' files: asks the supervisor, or looks and downloads
itself where none runs, and shows the answers. What only the latter needs is imported there, because
it takes several times as long to import as all else."""

import asyncio
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from lmx.protocol.errors import ErrorCode, LmxError, OperationError
from lmx.protocol.free_text import terminal_text
from lmx.protocol.messages.inventory import (
    Available,
    AvailableModel,
    CancelDownload,
    Deleted,
    DeleteModel,
    Downloads,
    DownloadView,
    GetAvailable,
    GetDownloads,
    StartDownload,
)
from lmx.protocol.states import DownloadStatus, QuantizedBits
from lmx.supervisor.cli.views.json_output import json_text
from lmx.supervisor.cli.views.progress import make_console
from lmx.supervisor.cli.views.table import Column, model_table
from lmx.supervisor.config.known_models import KNOWN_MODELS, meant_instead, repository_of
from lmx.supervisor.config.schema import Config, ModelConfig
from lmx.supervisor.config.sources import (
    HubSource,
    SourceError,
    absolute_source,
    parse_source,
)
from lmx.supervisor.decisions.ledger import format_bytes
from lmx.supervisor.inventory.download_records import Download, requested_download
from lmx.supervisor.memory.quantized import bits_words
from lmx.supervisor.processes.preview import Look
from lmx.supervisor.sockets.client import (
    Place,
    ReconnectingClient,
    open_client,
    supervisor_runs,
)
from lmx.supervisor.sockets.remote import DELETE_S
from lmx.supervisor.state.home import Home

_POLL_S: Final = 0.5
_SHORT_NAMES: Final = f" (known are {', '.join(KNOWN_MODELS)})"
_START_S: Final = 60.0
_SCAN_S: Final = 90.0
_MOST_FOUND: Final = 20
_RUNNING: Final = (DownloadStatus.STARTING, DownloadStatus.DOWNLOADING)


def download_model(place: Place, name: str, filename: str | None, bits: str | None = None) -> None:
    """Download a repository, or a file of it, and wait with a progress bar. It is served from then
    on; without a running lmx, when one is started. With ``bits`` it is quantized first. Raises
    :class:`OperationError` when it is not downloaded completely."""
    wanted = _wanted(place, name, filename, None if bits is None else QuantizedBits(bits))
    if isinstance(place, Home) and not supervisor_runs(place):
        _alone(place, wanted)
    else:
        _by_supervisor(place, wanted)


def _wanted(place: Place, name: str, filename: str | None, bits: QuantizedBits | None) -> Download:
    """Return what a person asks for by a repository or by a short name; or, if it is to be
    quantized, by a folder or a .gguf file. Raises :class:`OperationError`, which says what to
    write."""
    repository = repository_of(name)
    if bits is not None and _is_path(repository):
        # On this machine a path is from the folder where the command runs.
        path = absolute_source(repository, Path.cwd()) if isinstance(place, Home) else repository
        return requested_download(StartDownload(path, None, filename, bits))
    if "/" not in repository:
        raise OperationError(
            ErrorCode.MODEL_NOT_FOUND,
            f"no model has the short name {name!r}{meant_instead(name) or _SHORT_NAMES}; other "
            "models are named as on Hugging Face: org/name",
        )
    repo_id, at, revision = repository.partition("@")
    return requested_download(StartDownload(repo_id, revision if at else None, filename, bits))


def _is_path(source: str) -> bool:
    try:
        return not isinstance(parse_source(source), HubSource)
    except SourceError:
        return False


def _by_supervisor(place: Place, wanted: Download) -> None:
    """Have the lmx that runs download it. Raises :class:`OperationError`."""
    if isinstance(place, Home):
        _report_prospect(place, wanted)
    with open_client(place, _START_S) as client:
        question = StartDownload(wanted.repo_id, wanted.revision, wanted.filename, wanted.bits)
        view: DownloadView = client.ask(question)
    try:
        view = _watch(place, view)
    except KeyboardInterrupt:
        click.echo(
            f"{view.download_id} continues without this command: see `lmx downloads`; "
            f"`lmx pull --cancel {view.download_id}` ends it",
            err=True,
        )
        raise
    if view.status is not DownloadStatus.COMPLETED:
        raise OperationError(
            view.error_code or ErrorCode.DOWNLOAD_FAILED,
            f"{view.repo_id} {_not_made(view)}: {view.error or f'it was {view.status}'}",
        )
    _report_done(view, "is served: its first request loads it")


def _alone(home: Home, wanted: Download) -> None:
    """Download it in this process, for an lmx that is started later. Raises
    :class:`OperationError`."""
    from lmx.supervisor.cli.command import notice, own_config
    from lmx.supervisor.inventory.without_supervisor import fetch, keep, keep_unfinished

    config = own_config(None)
    home.prepare()
    _report_prospect(home, wanted)
    try:
        with _bar(wanted.repo_id) as advance:
            path = asyncio.run(fetch(home, wanted, advance))
    except KeyboardInterrupt:
        keep_unfinished(home, wanted, None, notice)
        click.echo("Stopped. What is here is kept; run the same command to resume.", err=True)
        raise
    except LmxError as error:
        keep_unfinished(home, wanted, error, notice)
        raise OperationError(
            error.code, f"{wanted.repo_id} {_not_made(wanted)}: {error.message}"
        ) from error
    if supervisor_runs(home):
        _by_supervisor(home, wanted)  # it was started meanwhile, and finds the files
        return
    keep(home, config, wanted, path, notice)
    _report_done(wanted.view(0.0), "is downloaded: `lmx serve` or `lmx start` serves it")


def _not_made(download: Download | DownloadView) -> str:
    return "was not downloaded" if download.bits is None else "was not quantized"


def _report_done(view: DownloadView, words: str) -> None:
    if view.note is not None:
        click.echo(view.note)
    if view.model_id is not None:
        click.echo(f"{view.model_id} {words}")
    else:
        click.echo(view.error or f"{view.filename} is downloaded; it is no model of its own")


def _report_prospect(home: Home, wanted: Download) -> None:
    """Say how large a download is, whether the disk and the memory have room for it, and what would
    follow from its load. Where the hub can't be asked nothing is said: the download itself says
    what is wrong. Raises :class:`OperationError` if there is no such model, if the disk has no room
    for it, or if a person then does not want it."""
    if wanted.bits is not None:
        _report_quantized(home, wanted, wanted.bits)
        return
    from lmx.supervisor.cli.views.prospect import budget_of, hints, load_lines, prospect, size_lines

    config = _config()
    if config is None:
        return
    source = wanted.repo_id + (f"@{wanted.revision}" if wanted.revision else "")
    model = ModelConfig(id=wanted.repo_id, source=source)
    try:
        seen = prospect(config, home, model, wanted.filename, on_hub=True)
    except OperationError as error:
        if error.code is ErrorCode.MODEL_SOURCE_INVALID:
            raise
        return
    look, judged = seen.look, seen.judged
    assert look is not None
    for line in size_lines(f"{source}{f' {wanted.filename}' if wanted.filename else ''}", look):
        click.echo(line)
    _refuse_lacking(look)
    budget = budget_of(config)
    limit = f"the {format_bytes(budget)} that models may take of the memory"
    if isinstance(judged, OperationError):
        if look.total_bytes > budget:
            click.echo(f"its files are larger than {limit} (memory.budget_bytes)")
        click.echo(f"how much memory it takes is not known yet: {judged.message}")
        return
    need_bytes = judged.load.need_bytes
    if need_bytes <= judged.load.budget_bytes:
        click.echo(f"fits: it takes {format_bytes(need_bytes)} of {limit}")
        for line in load_lines(judged):
            click.echo(line)
        return
    click.echo(f"it does not fit: it takes {format_bytes(need_bytes)}, more than {limit}")
    for hint in hints(model, judged.estimate, judged.plan, budget):
        click.echo(f"  {hint}")
    _confirm_unfit()


def _config() -> Config | None:
    """Return the configuration in use; None, and say so, while its file is not valid."""
    from lmx.supervisor.cli.command import valid_config

    config = valid_config()
    if config is None:
        click.echo(
            "whether it fits is not known: the configuration is not valid, see `lmx config check`",
            err=True,
        )
    return config


def _refuse_lacking(look: Look) -> None:
    for folder in look.lacking_bytes:
        what = "it" if folder == look.folder else "what is made of it"
        other = ", or set HF_HUB_CACHE to another disk" if folder == look.folder else ""
        raise OperationError(
            ErrorCode.INSUFFICIENT_DISK,
            f"nothing was downloaded: {folder} has no room for {what}; delete models there "
            f"(`lmx list`, `lmx rm`){other}",
        )


def _confirm_unfit() -> None:
    if sys.stdin.isatty() and not click.confirm("download it all the same?"):
        raise OperationError(ErrorCode.INSUFFICIENT_MEMORY, "nothing was downloaded")


def _report_quantized(home: Home, wanted: Download, bits: QuantizedBits) -> None:
    """Say how large a repository is before and after it is quantized. Raises as
    :func:`_report_prospect` does, and for a model that is not quantized here."""
    from lmx.supervisor.cli.views.prospect import budget_of, made_words
    from lmx.supervisor.processes.preview import look_now

    if _is_path(wanted.repo_id) or wanted.filename is not None:
        return  # Its files say it, and the program that quantizes looks at them first.
    try:
        with tempfile.TemporaryDirectory(prefix="lmx-heads-") as heads:
            look = look_now(home, wanted.repo_id, ("--heads", heads, *wanted.options))
    except OperationError as error:
        if error.code is ErrorCode.MODEL_SOURCE_INVALID:
            raise
        return
    if look.problem is not None and look.problem_code == ErrorCode.MODEL_SOURCE_INVALID:
        raise OperationError(ErrorCode.MODEL_SOURCE_INVALID, look.problem)
    click.echo(
        f"{wanted.repo_id}: {format_bytes(look.total_bytes)}; {format_bytes(look.missing_bytes)} "
        f"to download, {format_bytes(look.free_bytes)} free in {look.folder}"
    )
    words = bits_words(bits)
    if look.problem is None and look.made_bytes:
        click.echo(f"{words} it takes about {made_words(look)}, and then of the memory")
    elif look.problem is None:
        click.echo(f"{words} it is here already")
    else:
        click.echo(f"how much it takes {words} is not known yet: {look.problem}")
    _refuse_lacking(look)
    config = _config()
    if config is not None and look.made_bytes > (budget := budget_of(config)):
        limit = f"the {format_bytes(budget)} that models may take of the memory"
        click.echo(f"it does not fit: that is more than {limit}")
        _confirm_unfit()


def search_models(home: Home, words: str) -> None:
    """Print the models of the hub that have these words in their names and the form that is loaded
    here. Raises :class:`OperationError`."""
    from lmx.supervisor.cli.command import read_config
    from lmx.supervisor.cli.views.prospect import budget_of
    from lmx.supervisor.processes.preview import search_now

    found = search_now(home, words, _MOST_FOUND)
    if not found:
        raise OperationError(
            ErrorCode.MODEL_NOT_FOUND,
            f"the hub has no model in MLX form with {words!r} in its name: try fewer words",
        )
    budget = budget_of(read_config(None).config)
    columns = (
        Column("MODEL", tuple(each.repo_id for each in found), right=False, folds=True),
        Column("WEIGHTS", tuple(_size(each.size_bytes) for each in found)),
        Column("FITS", tuple(_may_fit(each.size_bytes, budget) for each in found)),
        Column("DOWNLOADS", tuple(f"{each.downloads:,}" for each in found), leave=1),
        Column("GATED", tuple("yes" if each.gated else "" for each in found), leave=2, right=False),
    )
    console = make_console()
    console.print(model_table(columns, console.width))
    click.echo(
        f"Models may take {format_bytes(budget)} here. `lmx estimate MODEL` says what one takes "
        "with its context, and `lmx pull MODEL` downloads it."
    )


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else format_bytes(size_bytes)


def _may_fit(weights_bytes: int | None, budget: int) -> str:
    if weights_bytes is None:
        return "-"
    return "no" if weights_bytes >= budget else "yes"


def cancel_download(place: Place, download_id: str) -> None:
    with open_client(place, _START_S) as client:
        view: DownloadView = client.ask(CancelDownload(download_id))
    click.echo(f"{view.download_id} ({view.repo_id}) is {view.status}")


def show_downloads(place: Place, as_json: bool) -> None:
    """Print the downloads, the latest first."""
    views: Sequence[DownloadView]
    if isinstance(place, Home) and not supervisor_runs(place):
        from lmx.supervisor.inventory.without_supervisor import list_downloads

        views = list_downloads(place)
    else:
        with open_client(place) as client:
            found: Downloads = client.ask(GetDownloads())
            views = found.downloads
    if as_json:
        click.echo(json_text([dataclasses.asdict(view) for view in views]))
        return
    for view in views:
        click.echo(terminal_text(_line(view)))
    if not views:
        click.echo("nothing was downloaded yet: `lmx pull -h` says how")


def show_available(place: Place, as_json: bool) -> None:
    """Print the models on disk, by name, then folders and files elsewhere that are served. Without
    a running lmx they are looked up here. As JSON these are the former alone."""
    served: list[tuple[str, str]]
    kinds: Mapping[str, str] = {}
    if not isinstance(place, Home) or supervisor_runs(place):
        with open_client(place, _SCAN_S) as client:
            found: Available = client.ask(GetAvailable())
            workers = client.status().workers
            served = [(worker.model, worker.source) for worker in workers]
            kinds = {worker.model: worker.kind for worker in workers if worker.kind is not None}
    else:
        from lmx.supervisor.cli.command import own_config
        from lmx.supervisor.inventory.added import with_added
        from lmx.supervisor.inventory.added_file import AddedFile
        from lmx.supervisor.inventory.without_supervisor import list_available

        config = with_added(own_config(None), AddedFile(place.added_models).read())
        found = asyncio.run(list_available(place, config))
        served = [(model.id, model.source) for model in config.models]
    if as_json:
        click.echo(json_text([dataclasses.asdict(model) for model in found.models]))
        return
    rows = [_on_disk(model) for model in found.models]
    listed = {model.model_id for model in found.models}
    rows += [
        _Row(source, source, "-", model_id)
        for model_id, source in served
        if model_id not in listed and not isinstance(parse_source(source), HubSource)
    ]
    with_kinds = _with_kinds(place, rows, kinds)
    if not with_kinds:
        click.echo("no model is on this machine yet: `lmx pull -h` says how to get one")
        return
    rows = [row for row, _ in with_kinds]
    columns = (
        Column("MODEL", tuple(row.name for row in rows), right=False, folds=True),
        Column("KIND", tuple(kind for _, kind in with_kinds), leave=2, right=False),
        Column("SIZE", tuple(row.size for row in rows)),
        Column("SERVED AS", tuple(row.served_as for row in rows), leave=1, right=False),
    )
    console = make_console()
    console.print(model_table(columns, console.width))


def _with_kinds(
    place: Place, rows: "Sequence[_Row]", served: Mapping[str, str]
) -> "list[tuple[_Row, str]]":
    """Return each model with its kind, without those whose files are not there. Files of another
    machine can't be looked at: there the kind is known of models that are served."""
    if not isinstance(place, Home):
        return [(row, served.get(row.served_as, "-")) for row in rows]
    from lmx.supervisor.memory.inspection import Question
    from lmx.supervisor.processes.inspector import inspect_now

    found = inspect_now(place, [Question(row.source) for row in rows])
    return [
        (row, each.kind or "-")
        for row, each in zip(rows, found, strict=True)
        if each.source_problem is None
    ]


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the list of models on this machine."""

    name: str
    source: str
    """Where its kind is read from."""
    size: str
    served_as: str


def _on_disk(model: AvailableModel) -> _Row:
    # A repository is found by its name; what was made from a .gguf file has a folder of its own.
    source = model.repo_id if "/" in model.repo_id else model.local_path
    size = format_bytes(model.size_bytes)
    return _Row(model.repo_id, source, size, model.model_id or "-")


def delete_model(place: Place, model: str, *, force: bool) -> None:
    deleted: Deleted
    if not isinstance(place, Home) or supervisor_runs(place):
        with open_client(place, DELETE_S) as client:
            deleted = client.ask(DeleteModel(model, force))
    else:
        from lmx.supervisor.cli.command import notice, own_config
        from lmx.supervisor.inventory.without_supervisor import delete

        deleted = delete(place, own_config(None), model, notice)
    click.echo(f"deleted {deleted.model_id}: {format_bytes(deleted.freed_bytes)} freed")
    if others := [name for name in deleted.forgotten if name != deleted.model_id]:
        click.echo(f"served no more, because they had these files: {', '.join(others)}")


def _watch(place: Place, view: DownloadView) -> DownloadView:
    """Return a download once it has ended, also if the supervisor is replaced meanwhile: the next
    one continues with it."""
    with ReconnectingClient(place, answered=True) as client, _bar(view.repo_id) as advance:
        while view.status in _RUNNING:
            advance(view)
            time.sleep(_POLL_S)
            found: Downloads | None = client.ask(GetDownloads(view.download_id))
            if found is not None:
                view = found.downloads[0]
    return view


@contextmanager
def _bar(title: str) -> Iterator[Callable[[Download | DownloadView], None]]:
    """Show a bar of bytes on a terminal, and what is done after they have come. The function that
    is returned takes the download."""
    console = make_console()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        DownloadColumn(),
    )
    with Progress(
        *columns,
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        task = bars.add_task(title, total=None)

        def advance(now: Download | DownloadView) -> None:
            words = title if now.note is None else f"{title}: {now.note}"
            bars.update(
                task, total=now.total_bytes, completed=now.downloaded_bytes, description=words
            )

        yield advance


def _line(view: DownloadView) -> str:
    name = view.repo_id + (f"@{view.revision}" if view.revision else "")
    if view.filename:
        name += f" {view.filename}"
    if view.bits is not None:
        name += f" ({bits_words(view.bits)})"
    total = "?" if view.total_bytes is None else format_bytes(view.total_bytes)
    line = f"{view.download_id}  {view.status}  {name}  "
    line += f"{format_bytes(view.downloaded_bytes)} of {total}"
    if view.status is DownloadStatus.DOWNLOADING:
        line += f"  {format_bytes(view.speed_bytes_per_s)}/s"
    if view.note is not None:
        line += f"  {view.note}"
    return line + (f"  {view.error}" if view.error else "")
