"""The usage as the router's event loop sees it: added to at each request's end, and written every
second."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from sqlite3 import Connection
from typing import Final, Literal, NamedTuple

import structlog

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.keys import ApiKey
from lmx.router.metrics.requests import NONE, Spent
from lmx.router.record_file import RecordFile, RecordKind
from lmx.router.usage import tables
from lmx.router.usage.tables import (
    FiguresAnswer,
    Minute,
    MinuteKey,
    Usage,
    UsageAnswer,
    UsageKey,
    hour_begin_s,
)

_GATHER_S: Final = 1.0
"""Writes are collected for this long. A router that is killed loses the usage of this time."""

_ROWS_LIMIT: Final = 8192
"""The most rows that wait to be written: hours of a server whose disk fails."""

_BOUND_INTERVAL_S: Final = 600.0
"""The time between two searches for what is too old."""

_log = structlog.get_logger()


class _Waiting(NamedTuple):
    usage: dict[UsageKey, Usage]
    minutes: dict[MinuteKey, Minute]
    names: dict[str, str]
    """Those of the keys in ``usage``."""


class UsageStore(RecordFile[_Waiting]):
    """The usage in one file, to which several routers may add at once.

    :meth:`add` and :meth:`sampled` never wait and never raise. What waits to be written has a
    limit; beyond it new hours, minutes, models and keys are left out, and counted in ``dropped``.
    ``keys`` returns the keys that there are. The file's thread calls it too.
    """

    def __init__(self, path: Path, keys: Callable[[], Iterable[ApiKey]]) -> None:
        kind = RecordKind(
            "usage",
            "usage records",
            ErrorCode.USAGE_UNAVAILABLE,
            tables.SCHEMA_VERSION,
            tables.create,
            tables.fault_of,
            lambda connection: tables.create_keys(connection, keys()),
        )
        super().__init__(path, kind, _GATHER_S)
        self.dropped = 0
        self._keys = keys
        self._kept = _Waiting({}, {}, {})
        """The condition of the file guards it: the loop and the thread share it."""
        self._bounded_at_s = 0.0

    def add(self, spent: Spent) -> None:
        """Add what a request has used, at its end."""
        now_s = time.time()
        model = "" if spent.model == NONE else spent.model
        used = Usage(
            spent.requests,
            spent.errors,
            spent.prompt_tokens,
            spent.cached_tokens,
            spent.completion_tokens,
        )
        figures = Minute(gap_s=sum(spent.gaps_s), gap_count=len(spent.gaps_s))
        if spent.ttft_s is not None:
            figures.ttft_s, figures.ttft_count = spent.ttft_s, 1
        minutes = {}
        if figures != Minute():
            minute_s = _minute_s(now_s)
            # A request for no model has no figures, so these are two rows.
            minutes = {(minute_s, model): figures, (minute_s, ""): figures}
        key = spent.key
        usage_id = "" if key is None else key.usage_id
        names = {} if key is None else {usage_id: key.shown_name}
        self._collect(_Waiting({(hour_begin_s(now_s), model, usage_id): used}, minutes, names))

    def sampled(self, figures: dict[str, Minute]) -> None:
        """Add figures that were seen now, by their model; an empty text stands for all."""
        minute_s = _minute_s(time.time())
        self._collect(_Waiting({}, {(minute_s, model): one for model, one in figures.items()}, {}))

    async def usage(self, days: int, by: Literal["day", "hour"]) -> UsageAnswer:
        """Return what was used on the last days. Raises USAGE_UNAVAILABLE, as :meth:`figures`
        does."""
        return await self._read(
            lambda file: tables.usage_of(file, days, by, self._keys(), time.time())
        )

    async def of_key(self, key: ApiKey | None, days: int) -> dict[str, Usage]:
        """Return what a key has used on the last days, by the day; with None what requests without
        a key have."""
        usage_id = "" if key is None else key.usage_id
        return await self._read(lambda file: tables.used_by(file, usage_id, days, time.time()))

    async def today(self) -> dict[str, Usage]:
        """Return what was used today, by the keys' ``usage_id``."""
        return await self._read(lambda file: tables.used_today(file, time.time()))

    async def figures(self, hours: int, model: str | None) -> FiguresAnswer:
        """Return the figures of the last hours, of a model or of all."""
        return await self._read(lambda file: tables.figures_of(file, hours, model, time.time()))

    def _collect(self, more: _Waiting) -> None:
        with self._changed:
            if not self._waiting():
                self._changed.notify()
            self._add(more)

    def _add(self, more: _Waiting) -> None:
        # Values are copied: those of two rows, or of a row and what it is added to, may be one.
        for key, used in more.usage.items():
            if self._has_room(key in self._kept.usage):
                self._kept.usage.setdefault(key, Usage()).add(used)
                self._kept.names.update(more.names)
        for at, figures in more.minutes.items():
            if self._has_room(at in self._kept.minutes):
                self._kept.minutes.setdefault(at, Minute()).add(figures)

    def _has_room(self, known: bool) -> bool:
        if known or self._waiting() < _ROWS_LIMIT:
            return True
        self._drop(1)
        return False

    def _waiting(self) -> int:
        return len(self._kept.usage) + len(self._kept.minutes)

    def _take(self) -> _Waiting:
        taken, self._kept = self._kept, _Waiting({}, {}, {})
        return taken

    def _put_back(self, batch: _Waiting) -> None:
        newer, self._kept = self._kept, batch
        self._add(newer)

    def _drop(self, count: int) -> None:
        if not self.dropped:
            _log.error("usage.dropped", path=str(self._path))
        self.dropped += count

    # The methods below run in the thread.

    def _write(self, connection: Connection, batch: _Waiting) -> None:
        tables.write(connection, batch.usage, batch.minutes, batch.names)

    def _bound(self, connection: Connection) -> None:
        now_s = time.monotonic()
        if now_s - self._bounded_at_s >= _BOUND_INTERVAL_S or not self._bounded_at_s:
            self._bounded_at_s = now_s
            tables.bound(connection, time.time())

    def _lose(self, batch: _Waiting) -> None:
        self._drop(len(batch.usage) + len(batch.minutes))


def _minute_s(at_s: float) -> int:
    return int(at_s) // tables.MINUTE_S * tables.MINUTE_S
