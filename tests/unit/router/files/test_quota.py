"""What counts to the limits of files: no bytes on the disk are anybody's for nothing."""

import sqlite3

import pytest

from lmx.router.files import batch_tables, quota, tables
from lmx.router.files.batch_tables import BatchRow, NoRoomError, Result, TooManyError
from lmx.router.files.quota import Quota
from lmx.router.files.tables import FileRow

ENOUGH = Quota(10**9, 10**9)


@pytest.fixture
def records() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    tables.create(connection)
    batch_tables.create(connection)
    return connection


def file(name: str, size_bytes: int, owner: str | None = "one") -> FileRow:
    return FileRow(name, owner, "in.jsonl", "batch", size_bytes, 1, None)


def batch(batch_id: str, file_id: str, owner: str | None = "one") -> BatchRow:
    return BatchRow(batch_id, owner, "openai", "/v1/embeddings", file_id, "in_progress", 1, 2)


def is_taken(records: sqlite3.Connection, size_bytes: int, owner: str | None = "one") -> None:
    """Check what an owner, and all together, have taken."""
    for one in (Quota(size_bytes, 10**9), Quota(10**9, size_bytes)):
        assert quota.full(records, {owner}, one) == {owner}
    more = Quota(size_bytes + 1, size_bytes + 1)
    assert quota.full(records, {owner}, more) == frozenset()


def test_an_input_whose_file_was_deleted_counts_until_its_batch_has_ended(
    records: sqlite3.Connection,
) -> None:
    tables.add(records, file("file-a", 50_000), ENOUGH)
    for batch_id in ("b1", "b2"):
        batch_tables.add(records, batch(batch_id, "file-a"), 50_000, 9, ENOUGH)
    is_taken(records, 50_000)  # The batches have links to it.
    tables.remove(records, ["file-a"])
    is_taken(records, 50_000)
    assert quota.full(records, {"other"}, Quota(1, 10**9)) == frozenset()
    for batch_id in ("b1", "b2"):
        is_taken(records, 50_000)
        batch_tables.change(records, batch_id, ("in_progress",), status="failed", ended_s=2)
    is_taken(records, 0)
    batch_tables.forget_old(records, 0, 9)
    assert records.execute("SELECT count(*) FROM inputs").fetchone() == (0,)


def test_the_input_of_a_batch_without_a_file_and_results_count(
    records: sqlite3.Connection,
) -> None:
    batch_tables.add(records, batch("b1", "input-1"), 20_000, 9, ENOUGH)
    is_taken(records, 20_000)
    batch_tables.write_results(records, {("b1", 1): Result(True, 200, "req", b"x" * 3_000)})
    is_taken(records, 23_000)
    # They count to a new file too.
    assert tables.add(records, file("file-a", 5_000), Quota(27_999, 10**9)) == 27_999
    assert tables.add(records, file("file-a", 5_000), Quota(28_000, 10**9)) is None
    assert tables.add(records, file("file-b", 5_000, "other"), Quota(5_000, 32_999)) == 32_999
    # The output takes the place of the results.
    batch_tables.change(records, "b1", ("in_progress",), status="finalizing")
    output = file("file-o", 3_500)  # As small as a file can count.
    assert batch_tables.end(records, "b1", [output], status="completed", ended_s=2)
    is_taken(records, 5_000 + quota.LEAST_BYTES)


def test_a_batch_needs_room(records: sqlite3.Connection) -> None:
    tables.add(records, file("file-a", 50_000), ENOUGH)
    with pytest.raises(NoRoomError) as refused:
        batch_tables.add(records, batch("b1", "file-a"), 50_000, 9, Quota(54_095, 10**9))
    assert refused.value.limit_bytes == 54_095
    batch_tables.add(records, batch("b1", "file-a"), 50_000, 9, Quota(54_096, 10**9))
    with pytest.raises(NoRoomError):
        batch_tables.add(records, batch("b2", "input-2"), 30_000, 9, Quota(79_999, 10**9))
    with pytest.raises(TooManyError):
        batch_tables.add(records, batch("b2", "file-a"), 50_000, 1, ENOUGH)
    assert [row.id for row in batch_tables.under_way(records)] == ["b1"]
