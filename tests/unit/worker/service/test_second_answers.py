"""An answer that is made once more waits for a turn of its own."""

import asyncio
import itertools
import time
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, UnavailableError
from lmx.protocol.messages.data import Timings
from lmx.worker.scheduling.requests import RequestFailed
from lmx.worker.service.admission import LifetimeCounts
from lmx.worker.service.generations import Generations


def test_the_time_of_the_first_answer_is_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals: list[float] = []

    def turn(opened: Any, work: Any, done: Any, *, decodes: bool) -> None:
        work()

    def prepare(opened: Any, arrived_s: float, *, is_retry: bool = False) -> None:
        arrivals.append(arrived_s)

    generations: Any = object.__new__(Generations)
    generations._open = SimpleNamespace(queue=turn, report_if_idle=lambda: None)
    generations._run_ids = itertools.count()
    generations._counts = LifetimeCounts()
    monkeypatch.setattr(generations, "_prepare", prepare)
    request = SimpleNamespace(request_id="r", owner="o", media=())
    lost_s: list[float] = []
    opened = SimpleNamespace(
        gone=False, request=request, retry=lambda _, compute_s: lost_s.append(compute_s)
    )
    timings = Timings(queue_s=100.0, prefill_s=100.0, decode_s=400.0, drafted_tokens=7)
    end = SimpleNamespace(timings=timings, compute_s=3.0)
    before_s = time.monotonic()
    with closing(asyncio.new_event_loop()) as loop:
        future: asyncio.Future[str | None] = loop.create_future()
        future.set_result("it does not satisfy the schema")
        generations._reviewed(opened, SimpleNamespace(may_retry=True), end, future)
    assert len(arrivals) == 1 and arrivals[0] >= before_s
    # What it took counts all the same.
    assert (lost_s, generations._counts.drafted_tokens) == ([3.0], 7)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnavailableError(ErrorCode.INSUFFICIENT_MEMORY, "later"), ErrorCode.INSUFFICIENT_MEMORY),
        (MemoryError(), ErrorCode.INSUFFICIENT_MEMORY),
        (TypeError(), ErrorCode.INTERNAL),
    ],
)
def test_it_fails_with_the_code_that_the_first_would_have_had(
    error: Exception, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations: Any = object.__new__(Generations)
    generations._open = SimpleNamespace(report_if_idle=lambda: None)
    ends: list[RequestFailed] = []
    monkeypatch.setattr(generations, "_end_alone", lambda _, end: ends.append(end))
    opened = SimpleNamespace(gone=False, run_id=7, request=SimpleNamespace(request_id="r"))
    with closing(asyncio.new_event_loop()) as loop:
        future: asyncio.Future[None] = loop.create_future()
        future.set_exception(error)
        generations._retry_prepared(opened, future)
    assert [(end.stream_id, end.code) for end in ends] == [(7, code)]
