"""The store of job records alone: one file, several stores, dead routers, broken files."""

import asyncio
import contextlib
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.router import record_file
from lmx.router.jobs import records
from lmx.router.jobs import store as job_store
from lmx.router.jobs.records import JobRow, JobState, ResponseRow, Wanted, create, listed, write
from lmx.router.jobs.store import JobStore, open_records
from tests.support.fakes.fake_peers import until
from tests.support.faults.bad_files import BAD_FILES, put_bad
from tests.support.rigs.budgets import examples

_RUNNING_ROUTER = """
import sys, time
from pathlib import Path
from lmx.router.jobs.records import JobRow
from lmx.router.jobs.store import JobStore
store = JobStore(Path(sys.argv[1]), 3600, 1000, 2**30)
store.start()
store.put(JobRow("running-there", "chat", "m", None, "running", True, time.time(), "r"))
time.sleep(0.01)
while not store._rows == {}:
    time.sleep(0.01)
import asyncio
print(asyncio.run(store.get("running-there", None)).state, flush=True)
time.sleep(60)
"""


def row(job_id: str, state: JobState = JobState.COMPLETED, **fields: object) -> JobRow:
    over = state not in (JobState.QUEUED, JobState.RUNNING)
    values: dict[str, object] = {
        "kind": "chat",
        "model": "m",
        "owner": None,
        "stream": False,
        "created_s": time.time(),
        "request_id": "req_1",
        "ended_s": time.time() if over else None,
    }
    return JobRow(id=job_id, state=state.value, **(values | fields))  # type: ignore[arg-type]


@contextlib.contextmanager
def opened(
    path: Path, max_age_s: float = 3600.0, max_count: int = 1000, max_bytes: int = 2**30
) -> Iterator[JobStore]:
    store = JobStore(path, max_age_s, max_count, max_bytes)
    store.start()
    try:
        yield store
    finally:
        store.close(5.0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[JobStore]:
    with opened(tmp_path / "jobs.sqlite") as one:
        yield one


async def ids(store: JobStore, **wanted: object) -> list[str]:
    page = await store.listed(Wanted(**wanted))  # type: ignore[arg-type]
    assert page is not None
    return [one.id for one in page[0]]


async def test_what_was_put_is_read_and_replaced(store: JobStore) -> None:
    store.put(row("a", JobState.RUNNING))
    store.put(row("a", result=b'{"x":1}'))
    found = await store.get("a", None)
    assert found is not None
    assert (found.state, found.result, store.is_own(found)) == ("completed", b'{"x":1}', True)
    await store.delete("a")
    assert await store.get("a", None) is None


async def test_a_job_under_way_is_not_deleted(store: JobStore) -> None:
    store.put(row("a", JobState.RUNNING))
    await store.delete("a")
    assert await store.get("a", None) is not None


async def test_the_file_is_for_its_owner_alone(store: JobStore, tmp_path: Path) -> None:
    store.put(row("a"))
    await store.get("a", None)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {0o600}


async def test_what_is_deleted_is_not_left_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def built_otherwise(path: Path, **options: Any) -> sqlite3.Connection:
        """As of a SQLite that overwrites nothing by default."""
        connection: sqlite3.Connection = connect(path, **options)
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    monkeypatch.setattr(sqlite3, "connect", built_otherwise)
    path = tmp_path / "jobs.sqlite"
    with opened(path) as store:
        store.put(row("a", result=b"a secret " * 2000))
        store.put(row("b"))
        assert await ids(store) == ["b", "a"]
        await store.delete("a")
    assert b"a secret" not in path.read_bytes()


async def test_another_owner_sees_nothing(store: JobStore) -> None:
    store.put(row("a", owner="key_a"))
    store.put(row("b", owner="key_b"))
    assert await store.get("a", "key_b") is None
    assert await ids(store, owner="key_b") == ["b"]
    assert await store.listed(Wanted(owner="key_b", after="a")) is None


async def test_who_has_no_key_sees_no_job_of_one(store: JobStore) -> None:
    """Also once the last key is revoked, when nobody needs one."""
    stored = ResponseRow(b"[]", b"{}")
    store.put(row("of-a-key", owner="key_a", response=stored))
    store.put(row("of-nobody", response=stored))
    assert await ids(store) == ["of-nobody"]
    assert await store.get("of-a-key", None) is None
    assert await store.response("of-a-key", None) is None
    assert await store.turns("of-a-key", None, 9, 1_000) == []
    assert await store.listed(Wanted(after="of-a-key")) is None
    assert await store.get("of-nobody", "key_a") is None
    assert await store.response("of-nobody", None) is not None
    assert len(await store.turns("of-nobody", None, 9, 1_000)) == 1


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to be taken for one" * 40, b"short"]
)
async def test_a_file_that_is_no_database_is_moved_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jobs.sqlite"
    path.write_bytes(content)
    with opened(path) as store:
        store.put(row("a"))
        assert await store.get("a", None) is not None
    assert path.with_name("jobs.sqlite.damaged").read_bytes() == content


@pytest.mark.parametrize("kind", sorted(BAD_FILES))
async def test_what_is_no_file_or_garbage_is_moved_aside(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "jobs.sqlite"
    put_bad(path, kind)
    if kind in ("folder", "pipe"):
        put_bad(path.with_name("jobs.sqlite-wal"), kind)
    with opened(path) as store:
        store.put(row("a"))
        assert await store.get("a", None) is not None


async def test_a_file_of_another_version_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
        other.execute("CREATE TABLE jobs (x)")
    other.close()
    with opened(path) as store:
        assert await ids(store) == []
    assert path.with_name("jobs.sqlite.damaged").exists()


@pytest.mark.parametrize(
    "made",
    [
        "DROP TABLE jobs; CREATE TABLE jobs (x)",
        "DROP TABLE responses; CREATE TABLE responses (id, y)",
        "CREATE TRIGGER no BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'no'); END",
        "CREATE UNIQUE INDEX one_model ON jobs (model)",
    ],
)
async def test_a_file_with_other_tables_is_moved_aside(tmp_path: Path, made: str) -> None:
    path = tmp_path / "jobs.sqlite"
    with opened(path) as store:
        assert await ids(store) == []
    with sqlite3.connect(path) as other:
        other.executescript(made)
    other.close()
    with opened(path) as store:
        store.put(row("a"))
        store.put(row("b"))
        assert await ids(store) == ["b", "a"]
    assert path.with_name("jobs.sqlite.damaged").exists()


async def test_a_file_that_breaks_while_it_is_used_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    with opened(path) as store:
        for number in range(200):
            store.put(row(f"job-{number}", result=b"x" * 5000))
        assert len(await ids(store, limit=100)) == 100
    size_bytes = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size_bytes - 4096))
    with opened(path) as store:
        with pytest.raises(LmxError) as caught:
            await ids(store, limit=100)
        assert caught.value.code is ErrorCode.JOBS_UNAVAILABLE
        store.put(row("new"))
        assert await ids(store) == ["new"]
        assert store.failures == 1


async def test_two_that_meet_one_broken_file_share_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    with opened(path) as one, opened(path) as other:
        for number in range(200):
            one.put(row(f"job-{number}", result=b"x" * 5000))
        assert len(await ids(one, limit=100)) == 100
        assert len(await ids(other, limit=1)) == 1
        with contextlib.closing(sqlite3.connect(path)) as third:
            third.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size_bytes = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(size_bytes - 4096))
        with pytest.raises(LmxError):
            await ids(one, limit=100)
        one.put(row("new"))
        assert await ids(one) == ["new"]
        with pytest.raises(LmxError):
            await ids(other, limit=100)
        assert await ids(other) == ["new"]
    assert not path.with_name("jobs.sqlite.damaged-2").exists()


async def test_a_locked_file_delays_records_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmx.router.record_file._BUSY_TIMEOUT_MS", 20)
    monkeypatch.setattr(record_file, "_PAUSE_S", 0.02)
    path = tmp_path / "jobs.sqlite"
    with opened(path) as store:
        await store.get("none", None)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        store.put(row("a", JobState.RUNNING))
        give_up_at = time.monotonic() + 180
        while not store.failures:
            assert time.monotonic() < give_up_at
            await asyncio.sleep(0.01)
        store.put(row("a"))
        other.execute("ROLLBACK")
        other.close()
        while (found := await _or_none(store, "a")) is None:
            assert time.monotonic() < give_up_at
        assert found.state == "completed"
        assert store.dropped == 0


async def test_a_read_outlasts_another_router_that_stands_still_with_the_lock(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.sqlite"
    with opened(path) as store:
        await store.get("none", None)
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(3.0, other.close).start()
        store.put(row("a"))
        assert await ids(store) == ["a"]
        assert store.failures == 0


async def _or_none(store: JobStore, job_id: str) -> JobRow | None:
    try:
        return await store.get(job_id, None)
    except LmxError:
        return None


async def test_a_folder_that_is_not_there_costs_records_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "_PAUSE_S", 0.01)
    monkeypatch.setattr(job_store, "_ROWS_LIMIT", 5)
    with opened(tmp_path / "none" / "jobs.sqlite") as store:
        for number in range(20):
            store.put(row(f"job-{number}"))
        with pytest.raises(LmxError) as caught:
            await store.get("job-1", None)
        assert caught.value.code is ErrorCode.JOBS_UNAVAILABLE
        assert store.dropped >= 10
        (tmp_path / "none").mkdir()
        give_up_at = time.monotonic() + 180
        while await _or_none(store, "job-0") is None:
            assert time.monotonic() < give_up_at


async def test_a_result_that_does_not_fit_is_dropped_and_its_job_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_store, "_RESULTS_LIMIT_BYTES", 100)
    store = JobStore(tmp_path / "jobs.sqlite", 3600, 1000, 2**30)
    store.put(row("a", result=b"x" * 90))
    store.put(row("b", result=b"x" * 90))
    store.start()
    first, second = await store.get("a", None), await store.get("b", None)
    assert first is not None and first.result == b"x" * 90
    assert second is not None and second.result is None
    assert store.dropped == 1
    store.close(5.0)


async def test_a_record_that_can_never_be_written_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(path: Path) -> sqlite3.Connection:
        connection = open_records(path)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
        return connection

    monkeypatch.setattr(job_store, "open_records", limited)
    with opened(tmp_path / "jobs.sqlite") as store:
        store.put(row("large", result=b"x" * 20_000))
        assert await _or_none(store, "large") is None
        store.put(row("next"))
        assert await ids(store) == ["next"]
        assert store.dropped == 1


async def test_more_readers_than_there_may_be_get_an_error(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "_READS_LIMIT", 0)
    with pytest.raises(LmxError) as caught:
        await store.get("a", None)
    assert caught.value.code is ErrorCode.JOBS_UNAVAILABLE


async def test_one_requester_s_reads_leave_room_for_others(store: JobStore) -> None:
    """A flood of one key fills its own share of the queue, and gets 429s beyond it."""
    begun, over = threading.Event(), threading.Event()

    def hold(_: sqlite3.Connection) -> bool:
        begun.set()
        return over.wait(90)

    holds = asyncio.create_task(store._read(hold))
    try:
        assert await asyncio.to_thread(begun.wait, 90)

        def read_by(who: str) -> asyncio.Task[JobRow | None]:
            reader = record_file.READER.set(who)
            try:
                return asyncio.create_task(store.get("a", None))
            finally:
                record_file.READER.reset(reader)

        flood = [read_by("key_a") for _ in range(300)]
        await asyncio.sleep(0)
        others = [read_by("key_b"), read_by("")]
    finally:
        over.set()
    found = await asyncio.gather(*flood, *others, return_exceptions=True)
    refused = [one for one in found if isinstance(one, LmxError)]
    assert {one.code for one in refused} == {ErrorCode.RATE_LIMIT_EXCEEDED}
    assert all(one.retry_after_s == 1.0 for one in refused)
    assert len(refused) == 300 - 32
    assert found[-2:] == [None, None]
    assert await holds
    assert await read_by("key_a") is None, "and may read again at once"


async def test_readers_wait_for_their_turn_and_not_for_longer(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline is that of a read, and not that of the reads before it."""
    goes_on, over = threading.Semaphore(0), threading.Event()
    stood_still = 0

    async def part(found: set[asyncio.Future[Any]], timeout: float) -> None:
        """A part of the deadline, within which the thread does one step if it can. The first ones
        pass while all of the router stands still."""
        nonlocal stood_still
        assert timeout == record_file._STEP_DEADLINE_S / record_file._WAITS
        if stood_still < record_file._WAITS - 1:
            stood_still += 1
            return
        before = store._steps
        goes_on.release()
        await until(
            lambda: hangs is not None or store._steps > before or any(one.done() for one in found)
        )

    hangs: asyncio.Task[bool] | None = None
    own = SimpleNamespace(wait=part, wrap_future=asyncio.wrap_future)
    monkeypatch.setattr(record_file, "asyncio", own)
    slow = [store._read(lambda _: goes_on.acquire(timeout=90)) for _ in range(20)]
    assert await asyncio.gather(*slow) == [True] * 20, "each within its own deadline"
    hangs = asyncio.create_task(store._read(lambda _: over.wait(90)))
    try:
        for one in (hangs, asyncio.create_task(store.get("a", None))):
            with pytest.raises(LmxError) as caught:
                await one
            assert caught.value.code is ErrorCode.JOBS_UNAVAILABLE
    finally:
        over.set()


async def test_what_the_thread_has_read_already_is_the_answer_whatever_the_deadline(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router that stood still may find both at once."""

    def wrap(found: Any) -> asyncio.Future[Any]:
        found.exception(90)
        return asyncio.wrap_future(found)

    monkeypatch.setattr(record_file, "_WAITS", 0)
    own = SimpleNamespace(wait=asyncio.wait, wrap_future=wrap)
    monkeypatch.setattr(record_file, "asyncio", own)
    assert await store._read(lambda _: "read") == "read"


async def test_one_owner_s_records_push_out_no_other_s(tmp_path: Path) -> None:
    limit_bytes = 4 * 1024**2
    picture = ResponseRow(os.urandom(500_000), b"{}")
    with opened(tmp_path / "jobs.sqlite", max_bytes=limit_bytes, max_count=20) as store:
        for number in range(5):
            store.put(row(f"small-{number}", owner="small", result=b"x" * 10_000))
        for number in range(30):
            store.put(row(f"large-{number}", owner="large", response=picture))
            store.put(row(f"many-{number}", owner="many"))
            await store.get("a", None)
        assert len(await ids(store, owner="small")) == 5
        left = await ids(store, owner="large")
        assert left == [f"large-{number}" for number in range(29, 29 - len(left), -1)] and left
        await store.sweep(set)
        assert len(await ids(store, owner="small")) == 5
        assert await ids(store, owner="large") == left
        assert len(await ids(store, owner="many")) == 20 - 5 - len(left)
        # What is under way can't go, and takes no room from what has ended.
        for number in range(10):
            going = row(f"going-{number}", JobState.RUNNING, owner="going", response=picture)
            store.put(going)
        for _ in range(2):
            with capture_logs() as logs:
                await store.sweep(lambda: {f"going-{number}" for number in range(10)})
        assert not logs, "nothing is logged at each write, though all is more than the limit"
        assert len(await ids(store, owner="small")) == 5
        assert len(await ids(store, owner="going")) == 10


async def test_age_and_number_decide_what_goes(tmp_path: Path) -> None:
    now_s = time.time()
    with opened(tmp_path / "jobs.sqlite", max_age_s=100, max_count=3) as store:
        store.put(row("old", created_s=now_s - 300, ended_s=now_s - 200))
        store.put(row("long", JobState.RUNNING, created_s=now_s - 500))
        for number in range(5):
            store.put(row(f"job-{number}", created_s=now_s - 10 + number))
        await store.sweep(lambda: {"long"})
        assert await ids(store) == ["job-4", "job-3", "job-2", "long"]


def size_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


async def test_the_file_has_a_limit_and_the_oldest_go(tmp_path: Path) -> None:
    path, limit_bytes = tmp_path / "jobs.sqlite", 4 * 1024**2
    with opened(path, max_bytes=limit_bytes) as store:
        store.put(row("under-way", JobState.RUNNING, created_s=0.0))
        for number in range(100):
            store.put(row(f"job-{number}", created_s=1.0 + number, result=os.urandom(100_000)))
            if number % 20 == 0:
                await ids(store)
        found = await ids(store, limit=1000)
        await store.sweep(lambda: {"under-way"})
    assert found[0] == "job-99", "the newest stay"
    assert found[-1] == "under-way", "and so does what is under way"
    assert 10 <= len(found) < 50
    assert path.stat().st_size <= limit_bytes, "the disk has back what they took"


async def test_records_come_back_after_a_disk_that_was_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was opened then stays read-only for whoever opened it, whatever the disk does."""
    read_only = True

    def open_as_the_disk_is(path: Path) -> sqlite3.Connection:
        connection = open_records(path)
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        return connection

    monkeypatch.setattr(job_store, "open_records", open_as_the_disk_is)
    monkeypatch.setattr(record_file, "_PAUSE_S", 0.02)
    with opened(tmp_path / "jobs.sqlite") as store:
        store.put(row("kept"))
        with pytest.raises(LmxError) as caught:
            await store.get("kept", None)
        assert caught.value.code is ErrorCode.JOBS_UNAVAILABLE
        read_only = False
        await until_there(store, "kept")


async def test_records_come_back_after_a_disk_that_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "_PAUSE_S", 0.02)
    path = tmp_path / "jobs.sqlite"
    with opened(path) as store:
        store.put(row("before", result=b"x" * 1_000_000))
        await until_there(store, "before")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes(path), limits[1]))
        try:
            store.put(row("during", result=b"y" * 4_000_000))
            with pytest.raises(LmxError) as caught:
                await store.get("during", None)
            assert caught.value.code is ErrorCode.JOBS_UNAVAILABLE
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        await until_there(store, "during")
        found = await store.get("during", None)
        assert found is not None
        assert len(found.result or b"") == 4_000_000
        assert sorted(await ids(store)) == ["before", "during"]


async def until_there(store: JobStore, job_id: str) -> None:
    """Wait until a record can be read."""
    end_s = time.monotonic() + 180.0
    while True:
        with contextlib.suppress(LmxError):
            if await store.get(job_id, None) is not None:
                return
        assert time.monotonic() < end_s, "the records stay unavailable"
        await asyncio.sleep(0.02)


async def test_an_end_that_was_lost_is_reported_by_the_next_sweep(store: JobStore) -> None:
    store.put(row("lost", JobState.RUNNING))
    store.put(row("live", JobState.RUNNING))
    await store.sweep(lambda: {"live"})
    lost, live = await store.get("lost", None), await store.get("live", None)
    assert lost is not None and live is not None
    assert (lost.state, live.state) == ("interrupted", "running")
    assert lost.error is not None and b"job_interrupted" in lost.error


async def test_a_job_that_begins_while_a_sweep_waits_for_the_thread_is_not_taken_for_lost(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        busy.set()
        go_on.wait(90)

    live: set[str] = set()
    with monkeypatch.context() as patch:
        patch.setattr(records, "get", slow)
        reading = asyncio.create_task(store.get("any", None))
        await asyncio.to_thread(busy.wait, 5)
        sweep = asyncio.create_task(store.sweep(lambda: live))
        await asyncio.sleep(0)
        live.add("begins")
        store.put(row("begins", JobState.RUNNING))
        go_on.set()
        await reading
    await sweep
    begun = await store.get("begins", None)
    assert begun is not None
    assert begun.state == "running"


async def test_a_job_that_ends_during_a_sweep_is_not_taken_for_lost(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps, go_on = threading.Event(), threading.Event()
    under_way = records.under_way

    def held_up(connection: sqlite3.Connection, token: str) -> frozenset[str]:
        found = under_way(connection, token)
        sweeps.set()
        go_on.wait(90)
        return found

    monkeypatch.setattr(records, "under_way", held_up)
    live = {"ends"}
    store.put(row("ends", JobState.RUNNING))
    sweep = asyncio.create_task(store.sweep(lambda: live))
    await asyncio.to_thread(sweeps.wait, 5)
    store.put(row("ends"))
    live.clear()
    go_on.set()
    await sweep
    ended = await store.get("ends", None)
    assert ended is not None
    assert ended.state == "completed"


async def test_what_is_forgotten_is_gone_whether_it_was_written_or_not(store: JobStore) -> None:
    store.put(row("written", JobState.QUEUED))
    assert await ids(store) == ["written"]
    store.put(row("waits", JobState.QUEUED))
    for job_id in ("written", "waits"):
        store.forget(job_id)
    assert await ids(store) == []


async def test_two_stores_share_a_file_and_leave_each_others_jobs_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    with opened(path) as one, opened(path) as two:
        one.put(row("a", JobState.RUNNING))
        assert (await one.get("a", None)) is not None
        two.put(row("b"))
        await two.sweep(tuple)
        found = await two.get("a", None)
        assert found is not None
        assert (found.state, two.is_own(found), one.is_own(found)) == ("running", False, True)
        assert await ids(one) == await ids(two)


async def test_many_stores_make_the_file_at_the_same_moment(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(opened(path)) for _ in range(8)]
        for number, one in enumerate(stores):
            one.put(row(f"job-{number}"))
        await asyncio.gather(*(one.get("none", None) for one in stores))
        assert len(await ids(stores[0])) == 8
    assert not path.with_name("jobs.sqlite.damaged").exists()


def test_a_file_that_another_router_makes_at_this_moment_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    ending = threading.Timer(0.2, lambda: other.execute("ROLLBACK"))
    ending.start()
    try:
        open_records(path).close()
    finally:
        ending.join()
        other.close()


async def test_jobs_of_a_router_that_was_killed_are_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    with subprocess.Popen(
        [sys.executable, "-c", _RUNNING_ROUTER, str(path)], stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline().strip() == "running"
            with opened(path) as store:
                store.put(row("mine", JobState.RUNNING))
                found = await store.get("running-there", None)
                assert found is not None and found.state == "running"
                other.kill()
                other.wait(90)
                found = await store.get("running-there", None)
                assert found is not None
                assert found.state == "interrupted"
                assert found.ended_s is not None and found.error is not None
                mine = await store.get("mine", None)
                assert mine is not None and mine.state == "running"
        finally:
            other.kill()


_JOBS = st.lists(
    st.tuples(
        st.sampled_from([1.0, 2.0, 3.0]),
        st.sampled_from(list(JobState)),
        st.sampled_from(["m", "n"]),
        st.sampled_from([None, "key_a", "key_b"]),
    ),
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None)
@given(
    jobs=_JOBS,
    limit=st.integers(1, 7),
    state=st.none() | st.sampled_from(list(JobState)),
    model=st.none() | st.just("m"),
    owner=st.none() | st.just("key_a"),
)
def test_pages_joined_are_the_whole_list_in_order(
    jobs: list[tuple[float, JobState, str, str | None]],
    limit: int,
    state: JobState | None,
    model: str | None,
    owner: str | None,
) -> None:
    rows = [
        row(f"job-{number}", each, created_s=created_s, model=name, owner=who)
        for number, (created_s, each, name, who) in enumerate(jobs)
    ]
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create(connection)
        write(connection, {one.id: one for one in rows})
        seen: list[str] = []
        after, more = None, True
        while more:
            page = listed(connection, Wanted(owner, state, model, None, limit, after))
            assert page is not None
            assert len(page[0]) <= limit
            seen += [one.id for one in page[0]]
            after, more = (seen[-1] if seen else None), page[1]
    wanted = [
        one
        for one in rows
        if (state is None or one.state == state)
        and (model is None or one.model == model)
        and one.owner == owner
    ]
    wanted.sort(key=lambda one: (one.created_s, one.id), reverse=True)
    assert seen == [one.id for one in wanted]
