"""Loads that go wrong, are slow, or do not fit; and models that come on demand."""

from __future__ import annotations

import asyncio

import pytest
from rig import Stream, ask, http, rig, scripted, wait_until

pytestmark = pytest.mark.process


async def test_a_cold_model_is_loaded_once_by_many_requests() -> None:
    config = {"models": [scripted("cold", preload=False, options={"load_s": 1.0})]}
    with rig(config) as lmx:
        assert lmx.worker("cold")["state"] == "cold"
        async with http() as session:
            url = lmx.url
            streams = [Stream(session, url, ask("cold", {"tokens": 3})) for _ in range(20)]
            await asyncio.gather(*(stream.ended() for stream in streams))
        assert {stream.text for stream in streams} == {"word " * 3}
        assert len(lmx.log_events("supervisor", "worker.spawned")) == 1


async def test_a_client_that_leaves_does_not_abort_the_load() -> None:
    config = {"models": [scripted("cold", preload=False, options={"load_s": 1.0})]}
    with rig(config) as lmx:
        async with http() as session:
            stream = Stream(session, lmx.url, ask("cold", {"tokens": 3}))
            await asyncio.to_thread(lmx.wait_state, "cold", "loading")
            await stream.hang_up()
        lmx.wait_state("cold", "ready")
        assert len(lmx.log_events("supervisor", "worker.spawned")) == 1


@pytest.mark.parametrize(
    ("options", "cause", "words"),
    [
        ({"load_crash": True}, "crash", "SIGABRT"),
        ({"load_exit": 7}, "crash", "status 7"),
        ({"load_error": "no tensor lm_head"}, "load_failed", "no tensor lm_head"),
        ({"load_hang": True}, "hang", "no progress"),
    ],
)
def test_a_load_that_keeps_failing_is_quarantined_with_its_reason(
    options: dict[str, object], cause: str, words: str
) -> None:
    config = {
        "models": [scripted("broken", options=options), scripted("fine")],
        "restart": {"max_failures": 1, "backoff_base_s": 0.1},
        "timing": {"load_stall_timeout_s": 1.0, "abort_grace_s": 0.5},
    }
    with rig(config) as lmx:
        line = lmx.wait_state("broken", "quarantined")
        assert words in line["problem"]
        assert "lmx-supervisor restart broken" in line["problem"]
        exits = lmx.log_events("supervisor", "worker.exited")
        assert [event["cause"] for event in exits] == [cause, cause]
        assert lmx.wait_state("fine", "ready")["restarts"] == 0
        done = lmx.cli("load", "broken")
        assert done.returncode == 1
        assert words in done.stderr


def test_a_slow_load_with_progress_is_waited_for() -> None:
    """Twice the stall limit in all, but never without progress for so long."""
    config = {
        "models": [scripted("slow", options={"load_s": 4.0})],
        "timing": {"load_stall_timeout_s": 2.0},
    }
    with rig(config) as lmx:
        fractions = set()

        def loaded() -> bool:
            line = lmx.worker("slow")
            fractions.add(line["fraction"])
            return bool(line["state"] == "ready")

        wait_until(loaded, "slow is ready")
        assert len(fractions - {None}) >= 3, "progress is shown"


async def test_a_model_larger_than_the_budget_is_refused_with_figures() -> None:
    config = {
        "models": [scripted("small"), scripted("big", memory_bytes="3 GiB", preload=False)],
        "memory": {"budget_bytes": "2 GiB"},
    }
    with rig(config) as lmx:
        lmx.wait_state("small", "ready")
        done = lmx.cli("load", "big")
        assert done.returncode == 1
        assert "3.0 GiB" in done.stderr
        assert "whole budget of 2.0 GiB" in done.stderr
        async with http() as session:
            url = f"{lmx.url}/chat/completions"
            async with session.post(url, json=ask("big", "hi", stream=False)) as response:
                error = (await response.json())["error"]
                assert (response.status, error["code"]) == (503, "insufficient_memory")
                assert int(response.headers["Retry-After"]) >= 1
        assert lmx.worker("small")["state"] == "ready"


async def test_unload_lets_streams_end_and_gives_the_process_back() -> None:
    with rig({"models": [scripted("alpha")]}) as lmx:
        line = lmx.wait_state("alpha", "ready")
        async with http() as session:
            stream = Stream(session, lmx.url, ask("alpha", {"tokens": 60, "step_s": 0.02}))
            await stream.has_text(20)
            done = await asyncio.to_thread(lmx.cli, "unload", "alpha")
            assert (done.returncode, f"pid {line['pid']} is gone" in done.stdout) == (0, True)
            await stream.ended()
            assert (stream.text, stream.errors) == ("word " * 60, [])
            assert lmx.worker("alpha")["state"] == "cold"
            again = Stream(session, lmx.url, ask("alpha", {"tokens": 3}))
            await again.ended()
            assert again.text == "word " * 3, "a request loads it again"
