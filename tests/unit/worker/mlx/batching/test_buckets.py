"""Which rows share a bucket, by their lengths alone."""

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lmx.worker.mlx.batching import buckets
from lmx.worker.mlx.batching.buckets import DecodeBuckets
from lmx.worker.mlx.decoding.decode import DecodeStep, Joining
from lmx.worker.mlx.decoding.sequence import DecodeSequence


class Batch:
    """In place of a ``DecodeBatch``: each row gets a token in each step."""

    def __init__(self, forward: Any, *_: object, background: bool) -> None:
        self.adapter = ""
        self.background = background
        self.rows: list[DecodeSequence] = []
        self.ahead = False

    @property
    def last(self) -> Joining | None:
        return Joining(self.rows[0], [], None, None) if len(self.rows) == 1 else None

    def join(self, joining: Joining) -> Sequence[tuple[int, Exception]]:
        self.rows.append(joining.row)
        return ()

    def step(self) -> DecodeStep:
        self.ahead = True
        for row in self.rows:
            row.tokens.append(0)
        return DecodeStep(())

    def flush(self) -> DecodeStep:
        self.ahead = False
        return DecodeStep(())

    def leave(self, sequence_ids: Collection[int]) -> None:
        self.rows = [row for row in self.rows if row.sequence_id not in sequence_ids]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> DecodeBuckets:
    monkeypatch.setattr(buckets, "DecodeBatch", Batch)
    no: Any = None
    forward: Any = SimpleNamespace(with_adapter=lambda _: None)
    return DecodeBuckets(forward, no, no, together=True)


def join(rows: DecodeBuckets, *lengths: int) -> None:
    """Let rows of these lengths join; their lengths are their ids."""
    for length in lengths:
        row = DecodeSequence(length, [0] * length, 1_000_000, "")
        rows.join(Joining(row, [], None, None))


def ids(rows: DecodeBuckets) -> list[list[int]]:
    return [[row.sequence_id for row in bucket.rows] for bucket in rows.active]


def step(rows: DecodeBuckets, times: int) -> None:
    for _ in range(times):
        rows.step(lambda batch: batch.step(), longer=rows.longer_due)


def test_a_row_joins_those_of_the_nearest_length(rows: DecodeBuckets) -> None:
    join(rows, 100, 2300, 2100, 150)
    assert ids(rows) == [[100, 150], [2300, 2100]]


def test_rows_that_have_become_alike_decode_together(rows: DecodeBuckets) -> None:
    join(rows, 500, 3000, 6000)
    assert ids(rows) == [[500, 3000], [6000]]
    step(rows, 50)
    rows.leave([500])
    step(rows, 2)  # What is drawn is returned first.
    assert ids(rows) == [[6000, 3000]]
    before = {row.sequence_id: len(row.tokens) for row in rows.rows}
    step(rows, 100)
    assert {row.sequence_id: len(row.tokens) - before[row.sequence_id] for row in rows.rows} == {
        3000: 100,
        6000: 100,
    }


def test_the_shortest_rows_are_those_that_are_shortest_now(rows: DecodeBuckets) -> None:
    join(rows, 100, 2200, 2300, 5000)
    assert ids(rows) == [[100, 2200], [2300, 5000]]
    grown = next(row for row in rows.rows if row.sequence_id == 2200)
    grown.tokens += [0] * 9000
    rows.leave([100, 5000])
    step(rows, 1)
    assert ids(rows) == [[2300], [2200]]
