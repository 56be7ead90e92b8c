"""Looks at every line of a batch's input before any is answered, some at a time, and records where
each is. Only a batch whose lines are all in order begins."""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

import orjson

from lmx.protocol.errors import RequestError
from lmx.protocol.states import ModelKind
from lmx.router.files import batch_tables
from lmx.router.files.batch_tables import BatchRow, BatchStatus, LineRow
from lmx.router.files.store import FileStore, input_name
from lmx.router.inference.batches.lines import (
    ANTHROPIC_ENDPOINT,
    DUPLICATE,
    EMPTY,
    KINDS,
    MOST_LINES,
    TOO_MANY,
    LineFault,
    order_of,
    parse_line,
    unknown_model,
)
from lmx.router.supervisor.directory import Directory, require_kind
from lmx.router.supervisor.routing import candidates

_LINES_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 2 * 1024 * 1024
_MOST_ERRORS: Final = 100
"""More errors than this help nobody."""

_GONE: Final = LineFault("file_not_found", "The input file was deleted.", "input_file_id")


@dataclass(slots=True)
class _Reading:
    """How far the input was read, and what was found."""

    file: BufferedReader
    endpoint: str
    directory: Directory
    limit_bytes: int
    number: int = 0
    total: int = 0
    is_over: bool = False
    models: dict[str | None, str] = field(default_factory=dict)
    """The model that each name means."""
    errors: list[dict[str, Any]] = field(default_factory=list)

    def next_lines(self) -> list[LineRow]:
        """Return the next lines that are in order."""
        found: list[LineRow] = []
        began = self.file.tell()
        while len(found) < _LINES_AT_ONCE and self.file.tell() - began < _BYTES_AT_ONCE:
            offset = self.file.tell()
            raw = self.file.readline(self.limit_bytes + 1)
            if not raw:
                self.is_over = True
                break
            self.number += 1
            if not raw.strip():
                continue
            self.total += 1
            try:
                found.append(self._line(raw, offset))
            except LineFault as fault:
                self.errors.append(fault.shown(self.number))
            if len(self.errors) >= _MOST_ERRORS or self.total > MOST_LINES:
                self.is_over = True
                break
        return found

    def _line(self, raw: bytes, offset: int) -> LineRow:
        if len(raw) > self.limit_bytes:
            # The rest of it would be taken for further lines.
            self.is_over = True
            raise LineFault(
                "line_too_long",
                f"This line is longer than {self.limit_bytes} bytes, the most that a request may "
                "have (server.body_limit_bytes).",
            )
        line = parse_line(raw, self.endpoint)
        model = self.models.get(line.model)
        if model is None:
            model = self.models[line.model] = self._model(line.model, KINDS[self.endpoint])
        order = order_of(self.endpoint, line.body)
        return LineRow(self.number, line.custom_id, model, order, offset, len(raw))

    def _model(self, name: str | None, kind: ModelKind) -> str:
        try:
            model = candidates(self.directory, name, kind)[0]
            require_kind(model, kind)
        except RequestError as error:
            if self.endpoint == ANTHROPIC_ENDPOINT:
                # There it is an error of the one request, which it gets when it is its turn.
                return name or ""
            raise unknown_model(name, error.message) from error
        return model.model_id


async def validate(files: FileStore, row: BatchRow, directory: Directory, limit_bytes: int) -> None:
    """Record the lines of a batch, and let it begin or fail. One that was cut is validated again.
    One that was cancelled meanwhile ends with all its lines.

    ``directory`` has the models that its key may use, ``limit_bytes`` is the longest line. Raises
    what :meth:`FileStore.perform` does: then it stays to be validated.
    """
    await files.forget_lines(row.id)
    path = files.folder / input_name(row.id)
    if not await asyncio.to_thread(linked, files.folder / row.input_file_id, path):
        await _fail(files, row, [_GONE.shown(None)])
        return
    file = await asyncio.to_thread(path.open, "rb")
    try:
        reading = _Reading(file, row.endpoint, directory, limit_bytes)
        while not reading.is_over:
            lines = await asyncio.to_thread(reading.next_lines)
            same = await files.perform(_adding(row.id, lines))
            reading.errors += [DUPLICATE.shown(line.number) for line in same]
            reading.is_over |= len(reading.errors) >= _MOST_ERRORS
    finally:
        await asyncio.to_thread(file.close)
    errors = sorted(reading.errors, key=lambda one: one["line"])[:_MOST_ERRORS]
    if reading.total > MOST_LINES:
        errors = [TOO_MANY.shown(None)]
    elif not reading.total:
        errors = [EMPTY.shown(None)]
    if errors:
        await _fail(files, row, errors)
        return
    await files.perform(lambda records: _begun(records, row.id, reading))


def _begun(records: sqlite3.Connection, batch_id: str, reading: _Reading) -> None:
    models = set(reading.models.values())
    found = {"total": reading.total, "model": models.pop() if len(models) == 1 else None}
    now_s = int(time.time())
    # In this order: a batch may be cancelled between the two, and stays so.
    if not batch_tables.change(
        records, batch_id, (BatchStatus.VALIDATING,),
        status=BatchStatus.IN_PROGRESS, in_progress_s=now_s, **found,
    ):  # fmt: skip
        batch_tables.change(
            records, batch_id, (BatchStatus.CANCELLING,),
            status=BatchStatus.FINALIZING, finalizing_s=now_s, **found,
        )  # fmt: skip


def _adding(batch_id: str, lines: list[LineRow]) -> Callable[[Any], list[LineRow]]:
    return lambda records: batch_tables.add_lines(records, batch_id, lines)


def linked(source: Path, path: Path) -> bool:
    """Let the batch have its input for itself: its client may delete the file. Return whether it is
    there."""
    try:
        os.link(source, path)
    except FileExistsError:
        pass
    except FileNotFoundError:
        return path.exists()
    return True


async def _fail(files: FileStore, row: BatchRow, errors: list[dict[str, Any]]) -> None:
    await files.perform(
        lambda records: batch_tables.change(
            records,
            row.id,
            (BatchStatus.VALIDATING, BatchStatus.CANCELLING),
            status=BatchStatus.FAILED,
            errors=orjson.dumps(errors),
            ended_s=int(time.time()),
        )
    )
    await asyncio.to_thread((files.folder / input_name(row.id)).unlink, missing_ok=True)
    await files.forget_lines(row.id)
