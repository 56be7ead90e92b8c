"""Which of two errors is the reason when the load of a model of ranks fails."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.specs import LogSpec, RanksSpec, WorkerSpec
from lmx.worker import lifecycle
from lmx.worker.lifecycle import WorkerLifecycle
from tests.support.fakes.fake_peers import until

LOST = OperationError(ErrorCode.WORKER_CRASHED, "rank 1 has ended.")
BROKEN = RuntimeError("[ring] a socket was closed")
REFUSED = OperationError(ErrorCode.MODEL_LOAD_FAILED, "studio has no memory.")


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ((BROKEN, LOST), ErrorCode.WORKER_CRASHED),
        ((LOST, BROKEN), ErrorCode.WORKER_CRASHED),
        ((REFUSED, LOST), ErrorCode.MODEL_LOAD_FAILED),
        ((BROKEN,), ErrorCode.MODEL_LOAD_FAILED),
    ],
)
async def test_a_lost_rank_is_the_reason_for_what_it_breaks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    errors: tuple[Exception, ...],
    code: ErrorCode,
) -> None:
    monkeypatch.setattr(lifecycle, "_RANK_FOUND_S", 0.0)
    spec = WorkerSpec(
        "0", "m", "/", str(tmp_path), LogSpec("/"), "a:b", {}, 1, 8, 8, ranks=RanksSpec(2)
    )
    worker = WorkerLifecycle(spec)
    sent: list[Any] = []
    monkeypatch.setattr(worker._control, "send", sent.append)
    try:
        for error in errors:
            report: Any = worker._rank_lost if error is LOST else worker.load_failed
            report(error)
        await until(lambda: sent)
        for _ in range(10):
            await asyncio.sleep(0)
        assert [failed.code for failed in sent] == [code]
    finally:
        worker.close()
