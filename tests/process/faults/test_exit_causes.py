"""Why a worker ended, told apart wherever somebody looks: the client's error, the status, the
events; and deadlines that a model has of its own."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.rigs.rig import Rig, Stream, ask, http, rig, scripted, wait_until, whole

pytestmark = pytest.mark.long

QUICKLY = {"tokens": 3}
HANG_S = 3.0
"""After so long without progress the model "hangs" is taken for hung; others have an hour."""

AT = 20
"""The token at which a request's worker ends: late enough that the client has seen the first."""

CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "aborts": ({"abort_at": AT}, "crash", "worker_crashed"),
    "is_killed": ({"crash_at": AT}, "signal", "worker_crashed"),
    "hangs": ({"hang_at": AT}, "hang", "worker_hung"),
    "has_no_memory": ({"memory_error_at": AT}, "out_of_memory", "worker_out_of_memory"),
    "breaks": ({"step_raise_at": AT}, "crash", "engine_error"),
    # It is told as the failure of one row, and may have spoiled those of all.
    "loses_its_device": ({"device_at": AT}, "crash", "engine_error"),
}
"""Model: what its request does, the cause of its worker's exit, the code that its client gets."""

LOADS: dict[str, tuple[dict[str, Any], str]] = {
    "no_load": ({"load_error": "no tensor lm_head"}, "load_failed"),
    "crashed_load": ({"load_crash": True}, "crash"),
    "no_room": ({"load_exit": 4}, "out_of_memory"),
    "hung_load": ({"load_hang": True}, "hang"),
    "endless_load": ({"load_cpu_s": 3600}, "hang"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Rig]:
    """A model for each way to end."""
    models = [
        *(scripted(n, stall_timeout_s=HANG_S if n == "hangs" else 3600) for n in CASES),
        scripted("by_disk"),
        *(
            scripted(
                name,
                preload=False,
                options=options,
                load_stall_timeout_s=HANG_S if cause == "hang" else 3600,
            )
            for name, (options, cause) in LOADS.items()
        ),
    ]
    timing = {"stall_timeout_s": 3600, "load_stall_timeout_s": 3600, "beat_timeout_s": 10}
    restart = {"max_failures": 1, "backoff_base_s": 0.2, "backoff_max_s": 0.4}
    config = {"models": models, "timing": timing, "restart": restart}
    with rig(config) as lmx:
        for name in (*CASES, "by_disk"):
            lmx.wait_state(name, "ready")
        yield lmx


def last_exit(lmx: Rig, model: str) -> dict[str, Any]:
    """What the status says of the model's last exit, which must be told everywhere alike."""
    line = lmx.worker(model)
    last: dict[str, Any] = line["last_exit"]
    event = [e for e in lmx.events("worker.exited") if e.model_id == model][-1]
    logged = [e for e in lmx.log_events("supervisor", "worker.exited") if e["model"] == model][-1]
    assert event.data["cause"] == logged["cause"] == last["cause"]
    assert line["exits"][last["cause"]] >= 1
    assert abs(time.time() - last["at_s"]) < 3600
    return last


@pytest.mark.parametrize("model", CASES)
async def test_each_end_has_its_cause_and_its_code(server: Rig, model: str) -> None:
    directive, cause, code = CASES[model]
    before = server.worker(model)
    async with http() as session:
        stream = Stream(
            session, server.url, ask(model, {"tokens": 50, "step_s": 0.05, **directive})
        )
        # An end before anything has left is an HTTP error instead of an event.
        await stream.has_text(5)
        await stream.ended()
        # A process that ends at once may take its last words along.
        assert ("word " * AT).startswith(stream.text)
        assert [error["code"] for error in stream.errors] == [code]
        assert not stream.done
        await asyncio.to_thread(
            wait_until, lambda: server.worker(model)["pid"] != before["pid"], "it has ended"
        )
        again = Stream(session, server.url, ask(model, QUICKLY))
        await again.ended()
        assert again.text == "word " * 3
    last = await asyncio.to_thread(last_exit, server, model)
    assert last["cause"] == cause, last
    after = server.worker(model)
    assert (after["state"], after["restarts"]) == ("ready", before["restarts"] + 1)
    assert after["pid"] != before["pid"]
    if cause == "hang":
        assert "no progress" in stream.errors[0]["message"]
        log = (server.home / "logs" / f"worker-{model}.log").read_text()
        assert "scripted_engine.py" in log and "in _hang" in log, "the stacks of a hung process"


async def test_a_disk_that_takes_nothing_is_reported_and_passes_by_itself(server: Rig) -> None:
    """More often than a model may fail, and no operator has to do anything."""
    line = await asyncio.to_thread(server.wait_state, "by_disk", "ready")
    run, gone, url = server.home / "run", server.home / "run.gone", server.url

    def ends() -> list[dict[str, Any]]:
        logged = server.log_events("supervisor", "worker.exited")
        return [one for one in logged if one["model"] == "by_disk" and one["cause"] == "host"]

    run.rename(gone)
    try:
        os.kill(line["pid"], signal.SIGKILL)
        async with http() as session:
            status, error = await whole(session, url, "by_disk", QUICKLY)
        assert (status, error["code"]) == (503, "model_load_failed")
        assert "the disk of LMX_HOME" in error["message"]
        await asyncio.to_thread(wait_until, lambda: len(ends()) >= 3, "it was tried three times")
    finally:
        (gone / f"w-{line['instance']}").unlink()  # lmx could not see it
        gone.rename(run)
    await asyncio.to_thread(server.wait_state, "by_disk", "ready")
    assert not [e for e in server.events("model.quarantined") if e.model_id == "by_disk"]


@pytest.mark.parametrize("model", LOADS)
async def test_a_load_that_ends_badly_says_how(server: Rig, model: str) -> None:
    _, cause = LOADS[model]
    # The time in which a load waits for a processor does not count against it.
    async with http(400) as session, asyncio.timeout(400):
        status, error = await whole(session, server.url, model, QUICKLY)
    assert (status, error["code"] in ("model_load_failed", "model_quarantined")) == (503, True)
    line = await asyncio.to_thread(server.wait_state, model, "quarantined")
    last = await asyncio.to_thread(last_exit, server, model)
    assert last["cause"] == cause, last
    assert last["detail"].rstrip(".") in line["problem"]
    (event,) = [e for e in server.events("model.quarantined") if e.model_id == model]
    assert event.detail


async def test_reset_forgives_a_quarantined_model_through_the_cli(server: Rig) -> None:
    async with http() as session:
        await whole(session, server.url, "no_load", QUICKLY)
        await asyncio.to_thread(server.wait_state, "no_load", "quarantined")
        loads = len(server.log_events("supervisor", "worker.spawned"))
        status, error = await whole(session, server.url, "no_load", QUICKLY)
        assert (status, error["code"]) == (503, "model_quarantined")
        assert "run `lmx" in error["message"]
        assert len(server.log_events("supervisor", "worker.spawned")) == loads
        done = await asyncio.to_thread(server.cli, "reset", "no_load")
        assert (done.returncode, server.worker("no_load")["state"]) == (0, "cold")
        done = await asyncio.to_thread(server.cli, "load", "no_load")
        assert (done.returncode, "no tensor lm_head" in done.stderr) == (1, True)
        assert len(server.log_events("supervisor", "worker.spawned")) > loads
