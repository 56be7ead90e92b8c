"""The tables of the usage and of the figures' history: every SQL statement on them.

The functions work on a given connection, in the thread of :mod:`lmx.router.usage.store`. Hours and
days are those of this machine's time zone, as SQLite's ``localtime`` has them.
"""

import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date, datetime, timedelta
from typing import Final, Literal, cast

from lmx.protocol.messages.keys import ApiKey
from lmx.router.http.responses import Answer
from lmx.router.record_file import columns_of, create_tables

SCHEMA_VERSION: Final = 1
"""The file's ``user_version``. Raise it with every change of a table."""

KEPT_DAYS: Final = 400
"""The usage is kept for this long: a year in a calendar, and the month before."""

HOURS_KEPT_DAYS: Final = 35
"""After this long the hours of a day are added up to one row, which stands at the day's noon."""

FIGURES_KEPT_DAYS: Final = 8

MOST_ROWS: Final = 200_000
"""The most rows of a table: about 20 MB. The oldest go first."""

MOST_PAIRS: Final = 50
"""An answer names this many pairs of a model and a key, and adds up all others: with 400 days it
has 20,000 rows."""

MOST_POINTS: Final = 360
"""The most points of an answer: wider than that are few screens."""

MINUTE_S: Final = 60

SAMPLE_S: Final = 10.0
"""The time between two looks at what the workers have generated."""

_HOUR_S: Final = 3600


@dataclass(slots=True)
class Usage:
    """What the requests of one hour, model and key have used."""

    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def add(self, other: "Usage") -> None:
        """Add another's values."""
        for name in _USED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Minute:
    """The figures of one minute, of a model or of all. Sums come with what they are sums of, so
    that those of two routers, or of several minutes, are added."""

    tokens: int = 0
    ttft_s: float = 0.0
    ttft_count: int = 0
    gap_s: float = 0.0
    gap_count: int = 0
    waiting: int = 0
    """The most that were seen in the minute, as are the next two."""
    running: int = 0
    memory_bytes: int = 0

    def add(self, other: "Minute") -> None:
        """Add another's sums, and take the greater of its other values."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _HIGHEST:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))


_USED: Final = tuple(each.name for each in fields(Usage))
_FIGURES: Final = tuple(each.name for each in fields(Minute))
_HIGHEST: Final = ("waiting", "running", "memory_bytes")
_SUMS: Final = tuple(name for name in _FIGURES if name not in _HIGHEST)

UsageKey = tuple[int, str, str]
"""The beginning of an hour in Unix time, the model and the key's ``usage_id``. Without a model, or
without a key, the text is empty."""

MinuteKey = tuple[int, str]
"""The beginning of a minute in Unix time, and the model; an empty text stands for all."""

_USAGE_COLUMNS: Final = ("hour_s", "model", "key", *_USED)
_FIGURES_COLUMNS: Final = ("minute_s", "model", *_FIGURES)

_CREATE: Final = """
CREATE TABLE usage (
  hour_s INTEGER NOT NULL, model TEXT NOT NULL, key TEXT NOT NULL, requests INTEGER NOT NULL,
  errors INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
  completion_tokens INTEGER NOT NULL, PRIMARY KEY (hour_s, model, key)
) WITHOUT ROWID;
CREATE TABLE figures (
  minute_s INTEGER NOT NULL, model TEXT NOT NULL, tokens INTEGER NOT NULL, ttft_s REAL NOT NULL,
  ttft_count INTEGER NOT NULL, gap_s REAL NOT NULL, gap_count INTEGER NOT NULL,
  waiting INTEGER NOT NULL, running INTEGER NOT NULL, memory_bytes INTEGER NOT NULL,
  PRIMARY KEY (minute_s, model)
) WITHOUT ROWID;
"""

_CREATE_KEYS: Final = "CREATE TABLE keys (id TEXT PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID"
"""The names of the keys, also of those that are gone. It is not in the file's version: an earlier
release has no such table, and uses the same file."""

_KEYS_COLUMNS: Final = ("id", "name")

_ADDED: Final = ", ".join(f"{name} = {name} + excluded.{name}" for name in _USED)
_FIGURES_ADDED: Final = ", ".join(
    [f"{name} = {name} + excluded.{name}" for name in _SUMS]
    + [f"{name} = max({name}, excluded.{name})" for name in _HIGHEST]
)
_SUMMED: Final = ", ".join(f"sum({name})" for name in _USED)
_DAY: Final = "date(hour_s, 'unixepoch', 'localtime')"
_NOON: Final = f"CAST(strftime('%s', {_DAY} || ' 12:00', 'utc') AS INTEGER)"
"""It exists on every day; a clock that is put forward may leave out a midnight."""

_PUT_USAGE: Final = (
    f"INSERT INTO usage VALUES ({', '.join('?' * len(_USAGE_COLUMNS))}) "  # noqa: S608
    f"ON CONFLICT DO UPDATE SET {_ADDED}"
)
_PUT_FIGURES: Final = (
    f"INSERT INTO figures VALUES ({', '.join('?' * len(_FIGURES_COLUMNS))}) "  # noqa: S608
    f"ON CONFLICT DO UPDATE SET {_FIGURES_ADDED}"
)
_PUT_NAME: Final = "INSERT INTO keys VALUES (?, ?) ON CONFLICT DO UPDATE SET name = excluded.name"
_HOURS_TO_JOIN: Final = (
    f"SELECT {_NOON}, hour_s FROM (SELECT DISTINCT hour_s FROM usage WHERE hour_s < ?) "  # noqa: S608
    f"WHERE hour_s <> {_NOON}"
)
_JOIN_HOUR: Final = (
    f"INSERT INTO usage SELECT ?, model, key, {', '.join(_USED)} FROM usage WHERE hour_s = ? "  # noqa: S608
    f"ON CONFLICT DO UPDATE SET {_ADDED}"
)


def create(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty file, unless another router has just done so."""
    create_tables(connection, _CREATE, SCHEMA_VERSION)


def create_keys(connection: sqlite3.Connection, keys: Iterable[ApiKey]) -> None:
    """Make the table of the keys' names, unless it is there.

    A release without it had the usage by name. What is of one of ``keys`` is that key's from now
    on, for a stored key from the hour on in which it was made; what is older is left as it is, and
    is no key's that there is.
    """
    if columns_of(connection, "keys"):
        return
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        if columns_of(connection, "keys"):
            return  # Another router has just done it.
        connection.execute(_CREATE_KEYS)
        stored_first = sorted(keys, key=lambda key: key.created_at_s is None)
        for key in stored_first:
            since_s = 0 if key.created_at_s is None else hour_begin_s(key.created_at_s)
            connection.execute(
                "UPDATE usage SET key = ? WHERE key = ? AND hour_s >= ?",
                (key.usage_id, key.shown_name, since_s),
            )
            connection.execute(_PUT_NAME, (key.usage_id, key.shown_name))


def fault_of(connection: sqlite3.Connection) -> str | None:
    """Return why the tables of a file are not those that lmx makes; None if they are."""
    for table, columns in (("usage", _USAGE_COLUMNS), ("figures", _FIGURES_COLUMNS)):
        if columns_of(connection, table) != columns:
            return f"its table `{table}` has other columns"
    if columns_of(connection, "keys") not in ((), _KEYS_COLUMNS):
        return "its table `keys` has other columns"
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
        return f"it has {name[:80]!r}, which lmx did not make"
    return None


def write(
    connection: sqlite3.Connection,
    usage: Mapping[UsageKey, Usage],
    minutes: Mapping[MinuteKey, Minute],
    names: Mapping[str, str],
) -> None:
    """Add to what is there, in one transaction. ``names`` are those of the keys, by their
    ``usage_id``."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        connection.executemany(
            _PUT_USAGE, [(*key, *(getattr(one, n) for n in _USED)) for key, one in usage.items()]
        )
        connection.executemany(
            _PUT_FIGURES,
            [(*key, *(getattr(one, n) for n in _FIGURES)) for key, one in minutes.items()],
        )
        connection.executemany(_PUT_NAME, names.items())


def bound(connection: sqlite3.Connection, now_s: float, most_rows: int = MOST_ROWS) -> None:
    """Remove what is too old or too much, and add up the hours of days long past."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        before_s = day_begin_s(now_s, HOURS_KEPT_DAYS)
        joined = connection.execute(_HOURS_TO_JOIN, (before_s,)).fetchall()
        connection.executemany(_JOIN_HOUR, joined)
        connection.executemany("DELETE FROM usage WHERE hour_s = ?", [(at,) for _, at in joined])
        for table, time_column, oldest_s in (
            ("usage", "hour_s", day_begin_s(now_s, KEPT_DAYS)),
            ("figures", "minute_s", now_s - FIGURES_KEPT_DAYS * 24 * _HOUR_S),
        ):
            connection.execute(f"DELETE FROM {table} WHERE {time_column} < ?", (oldest_s,))  # noqa: S608
            # All rows of the time at which the number is reached go, so that no sum is a part.
            connection.execute(
                f"DELETE FROM {table} WHERE {time_column} <= (SELECT {time_column} FROM {table} "  # noqa: S608
                f"ORDER BY {time_column} DESC LIMIT 1 OFFSET ?)",
                (most_rows,),
            )
        connection.execute("DELETE FROM keys WHERE id NOT IN (SELECT key FROM usage)")


def hour_begin_s(at_s: float) -> int:
    """Return when the hour of a time began. Some time zones are half an hour apart from others."""
    offset_s = time.localtime(at_s).tm_gmtoff
    return (int(at_s) + offset_s) // _HOUR_S * _HOUR_S - offset_s


def day_begin_s(now_s: float, days_before: int) -> float:
    """Return when the day began that was this many days before today."""
    day = date.fromtimestamp(now_s) - timedelta(days=days_before)
    return datetime(day.year, day.month, day.day).timestamp()  # local, as meant


class UsageSums(Answer):
    """What requests have used."""

    requests: int
    """All requests for models that have ended, whatever became of them."""
    errors: int
    """Those among them that ended with an error. A client that leaves is not one."""
    prompt_tokens: int
    cached_tokens: int
    """The tokens of the prompts that did not have to be computed."""
    completion_tokens: int


class UsageRow(UsageSums):
    """What the requests of one time, model and key have used."""

    time: str
    """The day (2026-11-27), or the beginning of the hour with its distance from UTC
    (2026-11-27T14:00:00+01:00)."""
    model: str | None
    """Null for requests that named no existing model."""
    key: str | None
    """The key's name, or else what identifies it (`key_...`); with `(revoked)` where another key
    has the name now. Null without a key."""
    key_id: str | None
    """It differs for keys of the same name, one of which was revoked. Null without a key."""


class UsageRest(UsageSums):
    """What all requests of one time have used whose model and key are named in no row."""

    time: str


class UsageAnswer(Answer):
    """The answer of GET /admin/usage, the oldest first."""

    by: Literal["day", "hour"]
    first_day: str
    last_day: str
    """Today."""
    rows: list[UsageRow]
    rest: list[UsageRest]
    """Beyond the 50 pairs of a model and a key with the most tokens in these days, they are added
    up here."""


def usage_of(
    connection: sqlite3.Connection,
    days: int,
    by: Literal["day", "hour"],
    keys: Iterable[ApiKey],
    now_s: float,
) -> UsageAnswer:
    """Return what was used today and on the days before, ``days`` together. ``keys`` are those that
    there are."""
    since_s = day_begin_s(now_s, days - 1)
    pairs = connection.execute(
        "SELECT model, key FROM usage WHERE hour_s >= ? GROUP BY model, key "
        "ORDER BY sum(prompt_tokens + completion_tokens) DESC, sum(requests) DESC, model, key "
        "LIMIT ?",
        (since_s, MOST_PAIRS),
    ).fetchall()
    named = set(pairs)
    names = _shown_names(connection, keys)
    period = _DAY if by == "day" else "hour_s"
    rows: list[UsageRow] = []
    rest: dict[str, Usage] = {}
    for at, model, key, *used in connection.execute(
        f"SELECT {period}, model, key, {_SUMMED} FROM usage WHERE hour_s >= ? "  # noqa: S608
        "GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
        (since_s,),
    ):
        shown = at if by == "day" else datetime.fromtimestamp(at).astimezone().isoformat()
        if (model, key) in named:
            sums = sums_of(Usage(*used))
            name = names.get(key, key) or None
            rows.append(
                {
                    "time": shown,
                    "model": model or None,
                    "key": name,
                    "key_id": key or None,
                    **sums,
                }
            )
        else:
            rest.setdefault(shown, Usage()).add(Usage(*used))
    return {
        "by": by,
        "first_day": date.fromtimestamp(since_s).isoformat(),
        "last_day": date.fromtimestamp(now_s).isoformat(),
        "rows": rows,
        "rest": [{"time": shown, **sums_of(used)} for shown, used in rest.items()],
    }


def _shown_names(connection: sqlite3.Connection, keys: Iterable[ApiKey]) -> dict[str, str]:
    """Return the names by the keys' ``usage_id``: of those that there are, and of those before."""
    now = {key.usage_id: key.shown_name for key in keys}
    taken = set(now.values())
    before = [
        *connection.execute("SELECT id, name FROM keys"),
        *((name, name) for name in taken),  # What a release had that knew names alone.
    ]
    return {one: f"{name} (revoked)" if name in taken else name for one, name in before} | now


def used_by(
    connection: sqlite3.Connection, usage_id: str, days: int, now_s: float
) -> dict[str, Usage]:
    """Return what a key has used today and on the days before, by the day; an empty text stands for
    requests without a key."""
    found = connection.execute(
        f"SELECT {_DAY}, {_SUMMED} FROM usage WHERE hour_s >= ? AND key = ? GROUP BY 1",  # noqa: S608
        (day_begin_s(now_s, days - 1), usage_id),
    )
    return {day: Usage(*used) for day, *used in found}


def used_today(connection: sqlite3.Connection, now_s: float) -> dict[str, Usage]:
    """Return what was used today, by the keys' ``usage_id``."""
    found = connection.execute(
        f"SELECT key, {_SUMMED} FROM usage WHERE hour_s >= ? GROUP BY key",  # noqa: S608
        (day_begin_s(now_s, 0),),
    )
    return {usage_id: Usage(*used) for usage_id, *used in found}


def sums_of(used: Usage) -> UsageSums:
    """Return a usage as answers show it."""
    return cast("UsageSums", {name: getattr(used, name) for name in _USED})


class FiguresPoint(Answer):
    """The figures of one step of time."""

    at_s: int
    """The step's beginning, in Unix time."""
    tokens_per_s: float
    """The tokens that were generated, by the time that is covered."""
    ttft_s: float | None
    """The mean time to the first token of the requests that ended in it. Null without any."""
    inter_token_s: float | None
    """The mean time between two outputs of these requests."""
    waiting: int
    """The most requests that waited at the same time, for a model or in its worker."""
    running: int
    """The most requests that were computed at the same time."""
    memory_bytes: int
    """The most memory that the workers had."""


class FiguresAnswer(Answer):
    """The answer of GET /admin/usage/figures."""

    model: str | None
    """The model whose figures they are; null: those of all models."""
    first_s: int
    """The beginning of the time that was requested, in Unix time."""
    last_s: int
    step_s: int
    """The time of a point: 60 s, or more where the points would be more than 360."""
    points: list[FiguresPoint]
    """The oldest first. There is none for a time in which no router ran, or which had no worker of
    this model."""
    models: list[str]
    """The models that have points in this time."""


def figures_of(
    connection: sqlite3.Connection, hours: int, model: str | None, now_s: float
) -> FiguresAnswer:
    """Return the figures of the last hours, of a model or of all."""
    minutes = hours * 60
    step_s = max(1, -(-minutes // MOST_POINTS)) * MINUTE_S
    last_s = int(now_s)
    first_s = last_s // step_s * step_s - hours * _HOUR_S // step_s * step_s
    highest = ", ".join(f"max({name})" for name in _HIGHEST)
    sums = ", ".join(f"sum({name})" for name in _SUMS)
    points: list[FiguresPoint] = []
    for (
        at_s,
        covered,
        tokens,
        ttft_s,
        ttfts,
        gap_s,
        gaps,
        waiting,
        running,
        memory,
        newest_s,
    ) in connection.execute(
        f"SELECT minute_s / :step_s * :step_s, count(*), {sums}, {highest}, max(minute_s) "  # noqa: S608
        "FROM figures WHERE minute_s >= :first_s AND model = :model GROUP BY 1 ORDER BY 1",
        {"step_s": step_s, "first_s": first_s, "model": model or ""},
    ):
        # The minute that has just begun has the tokens of one look at least.
        left_s = max(0.0, newest_s + MINUTE_S - max(now_s, newest_s + SAMPLE_S))
        points.append(
            {
                "at_s": at_s,
                "tokens_per_s": round(tokens / (covered * MINUTE_S - left_s), 3),
                "ttft_s": round(ttft_s / ttfts, 4) if ttfts else None,
                "inter_token_s": round(gap_s / gaps, 5) if gaps else None,
                "waiting": waiting,
                "running": running,
                "memory_bytes": memory,
            }
        )
    models = connection.execute(
        "SELECT DISTINCT model FROM figures WHERE minute_s >= ? AND model <> '' ORDER BY model",
        (first_s,),
    )
    return {
        "model": model,
        "first_s": first_s,
        "last_s": last_s,
        "step_s": step_s,
        "points": points,
        "models": [name for (name,) in models],
    }
