"""`lmx batch`: requests in a file, answered while no other request needs the models."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import quote

import click

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.supervisor.cli.command import command, json_option, place

if TYPE_CHECKING:
    from lmx.supervisor.sockets.http_client import HttpClient

_ENDPOINTS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
)
_ENDED: Final = ("completed", "failed", "expired", "cancelled")
_LIMIT_S: Final = 900.0
_POLL_S: Final = 1.0
_POLL_LIMIT_S: Final = 30.0
_PATIENCE_S: Final = 600.0
_RESTARTED: Final = (
    ErrorCode.INVALID_AUTHENTICATION,
    ErrorCode.NOT_RUNNING,
    ErrorCode.SHUTTING_DOWN,
    ErrorCode.SUPERVISOR_UNAVAILABLE,
)
"""Errors of an lmx that is being restarted, or has been: its key for this machine is another one
then, and its port may be."""
_MOST_ERRORS: Final = 10
_PAGE: Final = 100
"""The most that one answer lists."""


@click.group("batch")
def batch_group() -> None:
    """Have the requests in a file answered while no other request needs the models.

    They run in the background, however long it takes, and outlive this command, and lmx itself.
    Whoever asks a model meanwhile comes first.

    \b
    Examples:
      lmx batch run reviews.jsonl
      lmx batch run reviews.jsonl --detach
      lmx batch list
      lmx batch results batch_0123456789abcdef01234567 > answers.jsonl
    """


@batch_group.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH",
    help="Write the results there (default: FILE with .results.jsonl at its end).",
)  # fmt: skip
@click.option("--detach", is_flag=True, help="Print the batch's id, and do not wait for its end.")
@command
def run(file: Path, output: Path | None, detach: bool) -> None:
    """Send the lines of FILE as a batch, wait for its end, and write the results.

    Each line is a JSON object as OpenAI's batches have it: custom_id, method (POST), url (such as
    /v1/chat/completions) and body. Ctrl-C ends this command and not the batch: `lmx batch results`
    fetches its results later. Exit code 1: the batch did not complete, or some of its lines failed.
    """
    if detach and output is not None:
        raise click.UsageError(
            "--output is written at the batch's end, which --detach does not wait for: leave one "
            "of them out; `lmx batch results` prints the results later"
        )
    if not file.is_file():
        raise click.UsageError(
            f"{file} is no regular file: write the lines into one, because their number of bytes "
            "is sent before them"
        )
    target = output or file.with_name(f"{file.stem}.results.jsonl")
    if not detach:
        _check_target(target)
    api = _api()
    endpoint = _endpoint_of(file)
    sent = api.upload("/v1/files", {"purpose": "batch"}, file)
    body = {"input_file_id": sent["id"], "endpoint": endpoint, "completion_window": "24h"}
    made = api.call("POST", "/v1/batches", body)
    if detach:
        click.echo(made["id"])
        return
    click.echo(f"{made['id']}: `lmx batch results {made['id']}` if this command is ended", err=True)
    done = _wait(api, made)
    if done["output_file_id"] or done["error_file_id"]:
        with _written(target) as written:
            _write_results(_api(), done, written)  # lmx may have been restarted meanwhile
        click.echo(f"wrote {target}", err=True)
    _check(done)


@batch_group.command("list")
@json_option
@command
def list_batches(as_json: bool) -> None:
    """List the batches, the newest first: how far each is."""
    api = _api()
    found: list[Any] = []
    has_more = True
    while has_more:
        after = found[-1]["id"] if found else None
        page = api.call("GET", "/v1/batches", query={"limit": _PAGE, "after": after})
        found += page["data"]
        has_more = page["has_more"] and bool(page["data"])
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    if not found:
        click.echo("there are no batches: `lmx batch run FILE` makes one")
    for one in found:
        click.echo(f"{one['id']}  {_words(one)}")


@batch_group.command()
@click.argument("batch_id", metavar="ID")
@command
def cancel(batch_id: str) -> None:
    """Cancel the batch ID. What was answered until now is in its results."""
    api = _api()
    done = _wait(api, api.call("POST", f"{_path(batch_id)}/cancel"), quiet=True)
    click.echo(f"{batch_id}  {_words(done)}")


@batch_group.command()
@click.argument("batch_id", metavar="ID")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH",
    help="Write them there (default: to the standard output).",
)  # fmt: skip
@command
def results(batch_id: str, output: Path | None) -> None:
    """Print the results of the batch ID, which must have ended: a line of JSON for each line.

    The lines that were answered come first, then those that failed.
    """
    api = _api()
    found = api.call("GET", _path(batch_id))
    if found["status"] not in _ENDED:
        raise OperationError(
            ErrorCode.INVALID_VALUE,
            f"{batch_id} has not ended: {_words(found)}. Try again later, or cancel it",
        )
    if output is None:
        _write_results(api, found, sys.stdout.buffer)
    else:
        with _written(output) as written:
            _write_results(api, found, written)
    _show_errors(found)


def _api() -> HttpClient:
    from lmx.supervisor.cli.chat.session import connect
    from lmx.supervisor.sockets.http_client import HttpClient

    return HttpClient(connect(place()).remote, _LIMIT_S)


def _path(batch_id: str) -> str:
    return f"/v1/batches/{quote(batch_id, safe='')}"


def _endpoint_of(file: Path) -> str:
    """Return the url of the first line: lmx looks at all of them."""
    with file.open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"")
    try:
        url = json.loads(first)["url"]
    except (ValueError, LookupError, TypeError) as error:
        raise OperationError(
            ErrorCode.INVALID_VALUE,
            f"the first line of {file} is no request of a batch: it is an object with custom_id, "
            "method, url and body",
        ) from error
    if url not in _ENDPOINTS:
        raise OperationError(
            ErrorCode.INVALID_VALUE,
            f"the first line of {file} has the url {url!r}; it is one of {', '.join(_ENDPOINTS)}",
        )
    return str(url)


def _wait(api: HttpClient, found: Any, *, quiet: bool = False) -> Any:
    """Return a batch once it has ended, and show meanwhile how far it is. An lmx that is restarted
    is waited for. Raises :class:`OperationError`."""
    shows = not quiet and sys.stderr.isatty()
    client: HttpClient | None = api
    answered_at_s = time.monotonic()
    while found["status"] not in _ENDED:
        if shows:
            click.echo(f"\r\x1b[K{_words(found)}", nl=False, err=True)
        time.sleep(_POLL_S)
        is_new = client is None
        try:
            client = client or _api()
            found = client.call("GET", _path(found["id"]), limit_s=_POLL_LIMIT_S)
            answered_at_s = time.monotonic()
        except OperationError as error:
            is_denied = error.code is ErrorCode.INVALID_AUTHENTICATION
            is_late = time.monotonic() > answered_at_s + _PATIENCE_S
            if error.code not in _RESTARTED or is_late or (is_new and is_denied):
                raise
            if not is_new:
                cleared = "\r\x1b[K" if shows else ""
                click.echo(f"{cleared}waiting for lmx: {error.message}", err=True)
            client = None
    if shows:
        click.echo("\r\x1b[K", nl=False, err=True)
    return found


def _words(found: Any) -> str:
    counts = found["request_counts"]
    parts = [found["status"]]
    if counts["total"]:
        parts.append(f"{counts['completed'] + counts['failed']:,} of {counts['total']:,} lines")
    if counts["failed"]:
        parts.append(f"{counts['failed']:,} failed")
    return ", ".join(parts)


def _write_results(api: HttpClient, found: Any, to: BinaryIO) -> None:
    for name in ("output_file_id", "error_file_id"):
        if found[name] is not None:
            api.download(f"/v1/files/{quote(found[name], safe='')}/content", to)


def _check_target(target: Path) -> None:
    """Raise :class:`click.UsageError` unless results can be written there, before a batch runs."""
    written = target.absolute() if _is_replaced(target) else target.resolve()
    folder = written.parent
    if not folder.is_dir():
        raise click.UsageError(f"{target}: there is no folder {folder}")
    where = folder if _is_replaced(written) else written
    if not os.access(where, os.W_OK):
        raise click.UsageError(f"{target}: {where} can't be written; --output names another file")


def _is_replaced(target: Path) -> bool:
    """Return whether a file takes the target's place. A device, a pipe or a link is written to."""
    return not os.path.lexists(target) or stat.S_ISREG(target.lstat().st_mode)


@contextlib.contextmanager
def _written(target: Path) -> Iterator[BinaryIO]:
    """Give a file that takes the place of ``target`` once it is whole, with the mode of the one
    that was there; or the target itself, if it is no regular file."""
    import tempfile

    if not _is_replaced(target):
        with target.open("wb") as file:
            yield file
        return
    descriptor, name = tempfile.mkstemp(
        dir=target.absolute().parent, prefix=f".{target.name[:80]}."
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
        Path(name).replace(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def _check(done: Any) -> None:
    """Say how a batch has ended, and leave with the exit code 1 if not all is well."""
    click.echo(_words(done), err=True)
    _show_errors(done)
    if done["status"] != "completed" or done["request_counts"]["failed"]:
        raise click.exceptions.Exit(1)


def _show_errors(found: Any) -> None:
    errors = (found["errors"] or {"data": []})["data"]
    for one in errors[:_MOST_ERRORS]:
        where = "" if one["line"] is None else f"line {one['line']}: "
        click.echo(f"  {where}{one['message']} ({one['code']})", err=True)
    if len(errors) > _MOST_ERRORS:
        click.echo(f"  and {len(errors) - _MOST_ERRORS} more", err=True)
