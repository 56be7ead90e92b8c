"""Makes the files of a batch's results, once no more are to come, and ends the batch."""

import asyncio
import hashlib
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from lmx.router.files import batch_tables
from lmx.router.files.batch_tables import BatchRow, BatchStatus, DoneLine
from lmx.router.files.blobs import BlobWriter
from lmx.router.files.store import FileStore, input_name
from lmx.router.files.tables import FileRow
from lmx.router.record_file import durable

LIFETIME_S: Final = 30 * 86_400
"""For how long a batch's output is kept, unless its client has said otherwise."""

_LINES_AT_ONCE: Final = 32

_CUT: Final = {
    BatchStatus.EXPIRED: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    BatchStatus.CANCELLED: (
        "batch_cancelled",
        "This request was not executed because the batch was cancelled.",
    ),
}


def openai_line(row: BatchRow, line: DoneLine) -> tuple[bool, bytes]:
    """Return whether a line belongs into the output, and not to the errors, and what stands
    there."""
    shown: dict[str, Any] = {
        "id": _request_id(row.id, line.number),
        "custom_id": line.custom_id,
        "response": None,
        "error": None,
    }
    if line.body is None:
        code, message = _CUT[BatchStatus(row.end)]
        shown["error"] = {"code": code, "message": message}
    else:
        shown["response"] = {
            "status_code": line.status,
            "request_id": line.request_id,
            "body": orjson.Fragment(line.body),
        }
    return bool(line.ok), orjson.dumps(shown) + b"\n"


def anthropic_line(row: BatchRow, line: DoneLine) -> tuple[bool, bytes]:
    """Return the same for Anthropic's API, where all lines are in one file."""
    result: dict[str, Any]
    if line.body is None:
        result = {"type": "expired" if row.end == BatchStatus.EXPIRED else "canceled"}
    elif line.ok:
        result = {"type": "succeeded", "message": orjson.Fragment(line.body)}
    else:
        result = {"type": "errored", "error": orjson.Fragment(line.body)}
    return True, orjson.dumps({"custom_id": line.custom_id, "result": result}) + b"\n"


_FORMS: Final[dict[str, Callable[[BatchRow, DoneLine], tuple[bool, bytes]]]] = {
    "openai": openai_line,
    "anthropic": anthropic_line,
}


@dataclass(slots=True)
class _Output:
    """A file that is being made."""

    file_id: str
    writer: BlobWriter
    size_bytes: int = 0


async def finish(files: FileStore, row: BatchRow) -> None:
    """Write the output of a batch that is finalizing, and end it. If this is cut, by whatever,
    nothing is left of it, and it is done again."""
    form = _FORMS[row.api]
    async with AsyncExitStack() as stack:
        made: dict[bool, _Output] = {}
        async for pieces in _pieces(files, row, form):
            for ok, text in pieces.items():
                if ok not in made:
                    file_id = f"file-{secrets.token_hex(12)}"
                    writer = await stack.enter_async_context(files.writing(file_id))
                    made[ok] = _Output(file_id, writer)
                await asyncio.to_thread(made[ok].writer.write, text)
                made[ok].size_bytes += len(text)
        for one in made.values():
            await asyncio.to_thread(one.writer.sync)
        await files.perform(_ending(row, made, files.folder / input_name(row.id)))
    await files.forget_lines(row.id)


async def _pieces(
    files: FileStore, row: BatchRow, form: Callable[[BatchRow, DoneLine], tuple[bool, bytes]]
) -> AsyncIterator[dict[bool, bytes]]:
    after = 0
    while True:
        lines = await files.perform(_reading(row.id, after))
        if not lines:
            return
        after = lines[-1].number
        texts: dict[bool, list[bytes]] = {}
        for line in lines:
            ok, text = form(row, line)
            texts.setdefault(ok, []).append(text)
        yield {ok: b"".join(parts) for ok, parts in texts.items()}


def _reading(batch_id: str, after: int) -> Callable[[sqlite3.Connection], list[DoneLine]]:
    return lambda records: batch_tables.done_lines(records, batch_id, after, _LINES_AT_ONCE)


def _ending(
    row: BatchRow, made: dict[bool, _Output], input_path: Path
) -> Callable[[sqlite3.Connection], None]:
    """Return what ends the batch: its files are placed, whole, then one transaction has the records
    of all of them and the end, and then its input is removed. A power cut in between can't undo the
    end: a batch without an end and without its input would have lost its results."""
    now_s = int(time.time())
    lifetime_s = row.output_lifetime_s or LIFETIME_S
    names = {True: "output", False: "error"}
    rows = [
        FileRow(
            one.file_id,
            row.owner,
            f"{row.id}_{names[ok]}.jsonl",
            "batch_output",
            one.size_bytes,
            now_s,
            now_s + lifetime_s,
        )
        for ok, one in made.items()
    ]
    ids = {ok: one.file_id for ok, one in made.items()}

    def end(records: sqlite3.Connection) -> bool:
        return batch_tables.end(
            records,
            row.id,
            rows,
            status=row.end,
            ended_s=now_s,
            cut=row.left,
            output_file_id=ids.get(True),
            error_file_id=ids.get(False),
        )

    def placed(records: sqlite3.Connection) -> None:
        commit = partial(end, records)
        for one in made.values():
            commit = partial(one.writer.commit, commit)
        with durable(records):
            commit()
        with suppress(OSError):  # The next sweep removes it too.
            input_path.unlink()

    return placed


def _request_id(batch_id: str, number: int) -> str:
    digest = hashlib.blake2b(f"{batch_id}/{number}".encode(), digest_size=12)
    return f"batch_req_{digest.hexdigest()}"
