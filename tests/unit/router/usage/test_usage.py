"""What was used: its sums, its bounds, several routers and broken files; and the two routes."""

import asyncio
import contextlib
import json
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, LmxError, UnavailableError
from lmx.protocol.messages.keys import ApiKey, DayBudget
from lmx.router import record_file
from lmx.router.metrics.requests import NONE, Spent
from lmx.router.services import SERVICES
from lmx.router.usage import store as usage_store
from lmx.router.usage import tables
from lmx.router.usage.budgets import DayBudgets
from lmx.router.usage.sampling import TokensSeen, figures_of
from lmx.router.usage.store import UsageStore
from lmx.router.usage.tables import Minute, Usage, day_begin_s
from tests.support.fakes.admin_lines import cold_line, reported_status, status_line
from tests.support.fakes.fake_peers import until
from tests.support.faults.bad_files import BAD_FILES, put_bad
from tests.support.rigs.budgets import examples
from tests.support.rigs.router_rig import MODEL, Rig, chat_body, router_rig

ADMIN = {"X-Admin-Key": "test-admin-key"}
NOW_S = datetime(2026, 11, 27, 14, 20).timestamp()
SUMS = ("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens")


@contextlib.contextmanager
def opened(path: Path, *keys: ApiKey) -> Iterator[UsageStore]:
    store = UsageStore(path, lambda: keys)
    store.start()
    try:
        yield store
    finally:
        store.close(5.0)


@contextlib.contextmanager
def table() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        tables.create(connection)
        tables.create_keys(connection, ())
        yield connection


@contextlib.contextmanager
def time_zone(name: str) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


LAPTOP = ApiKey.of_secret("key-of-the-laptop-1", "laptop")


def spent(model: str = "m", key: ApiKey | None = LAPTOP, **fields: Any) -> Spent:
    return Spent(model=model, key=key, requests=1, prompt_tokens=10, **fields)


def put(connection: sqlite3.Connection, at_s: float, model: str = "m", **used: int) -> None:
    hour_s = tables.hour_begin_s(at_s)
    tables.write(connection, {(hour_s, model, ""): Usage(**(used or {"requests": 1}))}, {}, {})


def count(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0])


async def test_two_routers_add_to_one_file_and_a_third_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    with opened(path) as one, opened(path) as other:
        for number in range(30):
            (one, other)[number % 2].add(
                spent(completion_tokens=number, errors=number % 3 == 0, ttft_s=0.5, gaps_s=[0.1])
            )
        one.add(spent(NONE, None))
    with opened(path) as later:
        answer = await later.usage(2, "day")
        assert [(row["model"], row["key"], row["requests"]) for row in answer["rows"]] == [
            (None, None, 1), ("m", "laptop", 30)
        ]  # fmt: skip
        assert answer["rows"][1]["errors"] == 10
        assert answer["rows"][1]["completion_tokens"] == sum(range(30))
        assert answer["rest"] == []
        figures = await later.figures(1, "m")
        assert {point["ttft_s"] for point in figures["points"]} == {0.5}
        assert figures["models"] == ["m"]
        assert await later.figures(1, "other") == figures | {"model": "other", "points": []}


@pytest.mark.parametrize("kind", sorted(BAD_FILES))
async def test_a_file_that_is_none_of_lmx_is_moved_aside(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "usage.sqlite"
    put_bad(path, kind)
    with opened(path) as store:
        store.add(spent())
        assert len((await store.usage(1, "day"))["rows"]) == 1


async def test_tables_of_another_version_are_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE usage (x)")
        other.execute("PRAGMA user_version = 1")
    with opened(path) as store:
        assert (await store.usage(1, "day"))["rows"] == []
    assert path.with_name("usage.sqlite.damaged").exists()


async def test_a_disk_that_fails_loses_nothing_until_it_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "_PAUSE_S", 0.01)
    monkeypatch.setattr(usage_store, "_ROWS_LIMIT", 5)
    folder = tmp_path / "later"
    with opened(folder / "usage.sqlite") as store:
        for number in range(20):
            store.add(spent(f"m{number % 6}"))
        with pytest.raises(LmxError) as caught:
            await store.usage(1, "day")
        assert caught.value.code is ErrorCode.USAGE_UNAVAILABLE
        assert store.failures
        assert store.dropped == 3, "those of the sixth model"
        folder.mkdir()
        end_s = time.monotonic() + 90
        while True:
            with contextlib.suppress(LmxError):
                found = await store.usage(1, "day")
                break
            assert time.monotonic() < end_s
            await asyncio.sleep(0.02)
        assert sum(row["requests"] for row in found["rows"]) == 17


async def test_nothing_is_written_twice_when_what_follows_a_write_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(record_file, "_PAUSE_S", 0.01)
    monkeypatch.setattr(tables, "bound", locked)
    with opened(tmp_path / "usage.sqlite") as store:
        store.add(spent())
        with pytest.raises(LmxError):
            await store.usage(1, "day")
        store.add(spent())
        assert [row["requests"] for row in (await store.usage(1, "day"))["rows"]] == [2]


def stored(name: str, owner: str, created_at_s: float) -> ApiKey:
    made = ApiKey.of_secret(f"the-secret-of-{owner}", name)
    return replace(made, owner=owner, created_at_s=created_at_s)


async def test_a_key_with_the_name_of_a_revoked_one_has_not_used_what_that_one_has(
    tmp_path: Path,
) -> None:
    first, second = stored("ci", "key_1", NOW_S), stored("ci", "key_2", NOW_S + 1)
    again = replace(second, digest="of another secret")
    home = ApiKey.of_secret("a-key-of-the-configuration", "ci")
    path = tmp_path / "usage.sqlite"
    with opened(path, first) as store:
        store.add(spent(key=first))
        assert [row["key"] for row in (await store.usage(1, "day"))["rows"]] == ["ci"]
    with opened(path, second, LAPTOP) as store:
        assert await store.of_key(second, 1) == {}
        for key, count in ((second, 2), (again, 1), (LAPTOP, 4), (home, 5)):
            for _ in range(count):
                store.add(spent(key=key))
        (used,) = (await store.of_key(second, 1)).values()
        assert used.requests == 3, "and one keeps it with another secret"
        assert (await store.today())["key_2"] == used
        rows = (await store.usage(1, "day"))["rows"]
        assert {(row["key"], row["key_id"]): row["requests"] for row in rows} == {
            ("ci (revoked)", "key_1"): 1,
            ("ci", "key_2"): 3,
            ("laptop", "config:laptop"): 4,
            ("ci (revoked)", "config:ci"): 5,
        }
        await DayBudgets(store).begin(replace(second, budget=DayBudget(requests=4)))
        with pytest.raises(UnavailableError):
            await DayBudgets(store).begin(replace(home, budget=DayBudget(requests=4)))
    with opened(path, LAPTOP) as store:
        names = [row["key"] for row in (await store.usage(1, "day"))["rows"]]
        assert sorted(map(str, names)) == ["ci", "ci", "ci", "laptop"], "all of the name are gone"


async def test_a_file_that_has_the_usage_by_name_gives_each_key_its_own(tmp_path: Path) -> None:
    """Nothing is lost, and what a key of the same name had used before is not the new one's."""
    path = tmp_path / "usage.sqlite"
    now_s = time.time()
    hours = [tables.hour_begin_s(now_s - ago * 3600) for ago in (50, 26, 0)]
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as before:
        tables.create(before)
        for hour_s in hours:
            for number, name in enumerate(("ci", "home", "gone", "key_abc", "")):
                values = (hour_s, "m", name, 10**number, 0, 1, 0, 1)
                before.execute(f"INSERT INTO usage VALUES ({', '.join('?' * 8)})", values)
    ci = stored("ci", "key_1", hours[1] + 100.0)
    home = ApiKey.of_secret("a-key-of-the-configuration", "home")
    unnamed = replace(ApiKey.of_secret("another-key-of-the-configuration"), owner="key_abc")
    for _ in range(2):
        with opened(path, ci, home, unnamed) as store:
            counted = [
                sum(day.requests for day in (await store.of_key(key, 9)).values())
                for key in (ci, home, unnamed, None)
            ]
            assert counted == [2, 30, 3000, 30_000]
            rows = (await store.usage(9, "day"))["rows"]
            assert sum(row["requests"] for row in rows) == 33_333
            assert {row["key"] for row in rows} == {
                "ci", "ci (revoked)", "home", "gone", "key_abc", None
            }  # fmt: skip
    with contextlib.closing(sqlite3.connect(path)) as after:
        assert tables.fault_of(after) is None
        assert after.execute("PRAGMA user_version").fetchone()[0] == tables.SCHEMA_VERSION


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York"])
def test_days_and_hours_are_those_of_the_machine(zone: str) -> None:
    with time_zone(zone), table() as connection:
        last, first = datetime(2026, 3, 29, 23, 59), datetime(2026, 3, 30, 0, 0)
        put(connection, last.timestamp())
        put(connection, first.timestamp(), requests=5)
        now_s = datetime(2026, 3, 30, 12).timestamp()
        days = tables.usage_of(connection, 2, "day", (), now_s)
        assert [(one["time"], one["requests"]) for one in days["rows"]] == [
            ("2026-03-29", 1), ("2026-03-30", 5)
        ]  # fmt: skip
        today = tables.usage_of(connection, 1, "hour", (), now_s)
        assert [one["time"] for one in today["rows"]] == [first.astimezone().isoformat()]
        assert (today["first_day"], today["last_day"]) == ("2026-03-30", "2026-03-30")


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 60 * 24), st.sampled_from(["a", "b", ""]), st.integers(0, 10**9)),
        max_size=40,
    )
)
def test_no_sum_of_a_day_changes_when_its_hours_are_joined(
    used: list[tuple[int, str, int]],
) -> None:
    with table() as connection:
        expected: Counter[tuple[str, str | None]] = Counter()
        for hours_ago, model, tokens in used:
            at_s = NOW_S - hours_ago * 3600
            put(connection, at_s, model, prompt_tokens=tokens)
            expected[date.fromtimestamp(at_s).isoformat(), model or None] += tokens
        for _ in range(2):
            tables.bound(connection, NOW_S)
            answer = tables.usage_of(connection, 100, "day", (), NOW_S)
            found = {(row["time"], row["model"]): row["prompt_tokens"] for row in answer["rows"]}
            assert found == dict(expected)
            total = connection.execute("SELECT sum(prompt_tokens) FROM usage").fetchone()[0] or 0
            assert total == sum(tokens for *_, tokens in used)
        old_s = tables.day_begin_s(NOW_S, tables.HOURS_KEPT_DAYS)
        rows = connection.execute("SELECT hour_s, model FROM usage WHERE hour_s < ?", (old_s,))
        days = [(date.fromtimestamp(at_s), model) for at_s, model in rows]
        assert len(days) == len(set(days)), "a day has one row for a model"


def test_age_and_number_are_limited() -> None:
    with table() as connection:
        for days_ago in range(0, 500, 10):
            put(connection, NOW_S - days_ago * 86400)
            minute = (int(NOW_S) - days_ago * 8640, "m")
            tables.write(connection, {}, {minute: Minute(tokens=1)}, {})
        tables.bound(connection, NOW_S)
        assert count(connection, "usage") == 41
        assert count(connection, "figures") == 9
        tables.bound(connection, NOW_S, most_rows=5)
        assert (count(connection, "usage"), count(connection, "figures")) == (5, 5)
        newest = connection.execute("SELECT max(hour_s) FROM usage").fetchone()[0]
        assert newest == tables.hour_begin_s(NOW_S)


def test_a_pair_beyond_the_most_is_in_the_rest_and_in_no_row() -> None:
    with table() as connection:
        for number in range(500):
            for days_ago in range(3):
                put(connection, NOW_S - days_ago * 86400, f"m{number:03}", completion_tokens=number)
        answer = tables.usage_of(connection, 3, "day", (), NOW_S)
        assert {row["model"] for row in answer["rows"]} == {f"m{n:03}" for n in range(450, 500)}
        assert [one["completion_tokens"] for one in answer["rest"]] == [sum(range(450))] * 3
        days = [
            (datetime.fromtimestamp(NOW_S) - timedelta(n)).date().isoformat() for n in (2, 1, 0)
        ]
        assert [one["time"] for one in answer["rest"]] == days


def test_points_are_joined_where_there_would_be_too_many() -> None:
    with table() as connection:
        end_s = int(NOW_S) // 60 * 60
        for ago in range(24 * 60):
            minute = Minute(tokens=60, ttft_s=2.0 * ago, ttft_count=2, waiting=ago % 7, running=1)
            tables.write(connection, {}, {(end_s - ago * 60, ""): minute}, {})
        now_s = end_s + 59.999
        short = tables.figures_of(connection, 1, None, now_s)
        assert (short["step_s"], len(short["points"])) == (60, 61)
        whole = tables.figures_of(connection, 24, None, now_s)
        assert whole["step_s"] == 240
        assert len(whole["points"]) <= tables.MOST_POINTS + 1
        assert {point["tokens_per_s"] for point in whole["points"]} == {1.0}
        assert whole["points"][-2]["ttft_s"] == sum(range(1, 5)) / 4
        assert max(point["waiting"] for point in whole["points"]) == 6


def test_the_speed_of_this_minute_is_by_the_time_that_has_passed_of_it() -> None:
    with table() as connection:
        end_s = int(NOW_S) // 60 * 60
        minutes = {(end_s - 60, ""): Minute(tokens=600), (end_s, ""): Minute(tokens=200)}
        tables.write(connection, {}, minutes, {})
        for hours, passed_s, speed in ((1, 20, 10.0), (1, 2, 20.0), (1, 60, 3.333), (24, 20, 10.0)):
            found = tables.figures_of(connection, hours, None, end_s + passed_s)
            assert found["points"][-1]["tokens_per_s"] == speed


def test_figures_are_of_what_is_new_and_of_models_that_have_some() -> None:
    seen = TokensSeen()

    def look(tokens: int, **fields: Any) -> dict[str, Minute]:
        line = status_line(MODEL, tokens_total=tokens, memory_bytes=300, **fields)
        return figures_of(reported_status(line, cold_line("big")), seen)

    assert look(500)[MODEL].tokens == 0, "made before the first look"
    found = look(530, requests_active=2, requests_queued=3)
    expected = Minute(tokens=30, running=2, waiting=3, memory_bytes=300)
    assert found == {"": expected, MODEL: expected}
    for instance, tokens in (("second", 20), ("third", 30)):
        assert look(tokens, instance=instance)[MODEL].tokens == tokens, "of a new worker"


async def test_the_routes_show_requests_by_key_and_after_a_restart(tmp_path: Path) -> None:
    secrets = ("key-of-the-laptop-1", "key-of-nobody-123456")
    keys = (ApiKey.of_secret(secrets[0], "laptop"), ApiKey.of_secret(secrets[1]))
    jobs_path = str(tmp_path / "jobs.sqlite")
    for expected in (1, 2):
        async with router_rig(api_keys=keys, jobs_path=jobs_path) as rig:
            chat = f"{rig.url}/v1/chat/completions"
            for secret in secrets:
                headers = {"Authorization": f"Bearer {secret}"}
                async with rig.http.post(chat, json=chat_body(), headers=headers) as response:
                    assert response.status == 200
            path = f"{rig.url}/admin/usage?days=1"
            async with rig.http.get(path) as response:
                assert response.status == 401
            async with rig.http.get(path, headers=ADMIN) as response:
                rows = (await response.json())["rows"]
            assert [(row["model"], row["requests"]) for row in rows] == [(MODEL, expected)] * 2
            assert sorted(row["key"][:4] for row in rows) == ["key_", "lapt"]
            assert all(row["completion_tokens"] for row in rows)
            _, figures = await rig.json("GET", "/admin/usage/figures", headers=ADMIN)
            assert figures["points"][-1]["ttft_s"] is not None
            assert figures["models"] == [MODEL]
            for wrong in ("usage?days=0", "usage?by=week", "usage/figures?hours=193"):
                async with rig.http.get(f"{rig.url}/admin/{wrong}", headers=ADMIN) as response:
                    assert response.status == 400


async def test_a_budget_of_a_day_ends_at_midnight_and_outlives_routers(tmp_path: Path) -> None:
    laptop = replace(
        ApiKey.of_secret("key-of-the-laptop-1", "laptop"), budget=DayBudget(requests=3)
    )
    phone = replace(ApiKey.of_secret("key-of-the-phone-12", "phone"), budget=DayBudget(tokens=20))
    jobs_path = str(tmp_path / "jobs.sqlite")

    async def chat(rig: Rig, key: str, **fields: Any) -> tuple[int, str | None, str]:
        headers = {"Authorization": f"Bearer {key}"}
        url = f"{rig.url}/v1/chat/completions"
        async with rig.http.post(url, json=chat_body(**fields), headers=headers) as answer:
            return answer.status, answer.headers.get("Retry-After"), await answer.text()

    async def own(rig: Rig, key: str) -> Any:
        headers = {"Authorization": f"Bearer {key}"}
        got, body = await rig.json("GET", "/v1/usage", headers=headers)
        assert got == 200
        return body

    for _ in range(2):
        async with router_rig(api_keys=(laptop, phone), jobs_path=jobs_path) as rig:
            first = (await own(rig, "key-of-the-laptop-1"))["left_today"]["requests"] == 3
            if first:
                # What fails costs nothing.
                assert (await chat(rig, "key-of-the-laptop-1", messages=[]))[0] == 400
                for _ in range(3):
                    assert (await chat(rig, "key-of-the-laptop-1"))[0] == 200
                # Each takes 12 tokens: the second one begins before the budget is used up.
                assert (await chat(rig, "key-of-the-phone-12"))[0] == 200
                assert (await chat(rig, "key-of-the-phone-12"))[0] == 200
            for key, said in (
                ("key-of-the-laptop-1", "The key 'laptop' has used its 3 requests of today"),
                ("key-of-the-phone-12", "The key 'phone' has used its 20 tokens of today"),
            ):
                status, retry_after, text = await chat(rig, key)
                assert (status, said in text) == (429, True), text
                assert 0 < int(retry_after or 0) <= 25 * 3600 + 1
                left_s = day_begin_s(time.time(), -1) - time.time()
                assert abs(int(retry_after or 0) - left_s) < 100
            seen = await own(rig, "key-of-the-laptop-1")
            assert (seen["key"], seen["left_today"]) == ("laptop", {"requests": 0, "tokens": None})
            assert seen["limits"]["requests_per_day"] == 3
            assert seen["days"][-1]["completion_tokens"] == 15
            assert "phone" not in json.dumps(seen)


@pytest.mark.parametrize(
    "path", ["/v1/usage?days=30", "/v1/jobs", f"/v1/responses/resp_{24 * '0'}"]
)
async def test_a_flood_of_one_key_leaves_room_for_others(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "_OWN_READS_LIMIT", 2)
    begun, over = threading.Event(), threading.Event()
    keys = ("key-of-the-laptop-1", "key-of-the-phone-12")
    async with router_rig(api_keys=keys, jobs_path=str(tmp_path / "jobs.sqlite")) as rig:

        async def get(key: str) -> tuple[int, Any, str | None]:
            headers = {"Authorization": f"Bearer {key}"}
            async with rig.http.get(f"{rig.url}{path}", headers=headers) as answer:
                return answer.status, await answer.json(), answer.headers.get("Retry-After")

        services = rig.router._runner.app[SERVICES]
        store: Any = services.usage if "usage" in path else services.jobs

        def hold(_: sqlite3.Connection) -> bool:
            begun.set()
            return over.wait(90)

        holds = asyncio.create_task(store._read(hold))
        try:
            assert await asyncio.to_thread(begun.wait, 90)
            flood = [asyncio.create_task(get(keys[0])) for _ in range(5)]
            refused = []
            for one in asyncio.as_completed(flood):
                refused.append(await one)
                if len(refused) == 3:
                    break
            assert [(status, again) for status, _, again in refused] == [(429, "1")] * 3
            assert refused[0][1]["error"]["code"] == "rate_limit_exceeded"
            other = asyncio.create_task(get(keys[1]))
            await until(lambda: len(store._reads) >= 3)
        finally:
            over.set()
        assert await holds
        assert (await other)[0] in (200, 404)


async def test_two_requests_at_once_are_not_both_the_last_one_of_a_day(tmp_path: Path) -> None:
    store = UsageStore(tmp_path / "usage.sqlite", lambda: ())
    store.start()
    try:
        budgets = DayBudgets(store)
        key = replace(ApiKey.of_secret("key-of-the-laptop-1", "ci"), budget=DayBudget(requests=2))
        results = await asyncio.gather(
            *(budgets.begin(key) for _ in range(5)), return_exceptions=True
        )
        assert [type(each) for each in results].count(UnavailableError) == 3
        budgets.end(key)
        await budgets.begin(key)
    finally:
        store.close(90.0)


async def test_one_that_ends_while_the_usage_is_read_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = UsageStore(Path("unused"), lambda: ())
    key = replace(ApiKey.of_secret("key-of-the-laptop-1", "ci"), budget=DayBudget(requests=2))
    budgets = DayBudgets(store)
    ended = 0

    async def read(_key: ApiKey, _days: int) -> dict[str, Usage]:
        nonlocal ended
        if budgets._running[key.owner] == 2:
            budgets.end(key)
            ended = 1
        return {date.today().isoformat(): Usage(requests=ended)}

    monkeypatch.setattr(store, "of_key", read)
    await budgets.begin(key)
    await budgets.begin(key)


async def test_a_budget_that_is_used_up_stays_so_while_the_usage_can_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = UsageStore(Path("unused"), lambda: ())
    key = replace(ApiKey.of_secret("key-of-the-laptop-1", "ci"), budget=DayBudget(requests=2))
    budgets = DayBudgets(store)

    async def read(_key: ApiKey, _days: int) -> dict[str, Usage]:
        return {date.today().isoformat(): Usage(requests=2)}

    async def full(_key: ApiKey, _days: int) -> dict[str, Usage]:
        raise LmxError(ErrorCode.USAGE_UNAVAILABLE, "too many read at a time")

    for reading in (read, full):
        monkeypatch.setattr(store, "of_key", reading)
        with pytest.raises(UnavailableError):
            await budgets.begin(key)
