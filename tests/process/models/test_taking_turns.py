"""A busy model gives way to another for which there is no room; and a model that an operator takes
out of service. In which batches models take turns, ``test_fairness`` simulates."""

import asyncio
from pathlib import Path

import pytest

from tests.support.rigs.rig import Stream, ask, http, rig, scripted, whole

pytestmark = pytest.mark.long

WORDS = "word " * 3
QUICKLY = {"tokens": 3}
LONG = 400
"""Tokens of an answer of 12 s: whoever looks meanwhile finds it under way."""


async def test_a_busy_one_that_is_evicted_ends_what_it_has_however_long() -> None:
    """For fairness a busy model takes no new request; no deadline cuts one that it has."""
    memory = {"budget_bytes": "150 MiB", "min_residency_s": 0, "fair_wait_s": 0.5}
    models = [scripted(name, preload=False, memory_bytes="100 MiB") for name in ("a", "b")]
    with rig({"models": models, "memory": memory, "timing": {"drain_timeout_s": 0.3}}) as lmx:
        async with http() as session:
            url = lmx.url
            long = Stream(session, url, ask("a", {"tokens": LONG, "step_s": 0.03}))
            await long.has_text(5)
            other = Stream(session, url, ask("b", QUICKLY))
            await asyncio.to_thread(lmx.wait_state, "a", "draining")
            late = Stream(session, url, ask("a", QUICKLY))
            await asyncio.gather(long.ended(), other.ended(), late.ended())
        assert (long.text, long.errors) == ("word " * LONG, [])
        # Who came while it gave way had to wait its turn.
        assert [(s.text, s.errors) for s in (other, late)] == [(WORDS, [])] * 2
        exits = [(e.model_id, e.data["cause"]) for e in lmx.events("worker.exited")]
        assert exits == [("a", "evicted"), ("b", "evicted")]


async def test_a_drained_model_takes_nothing_until_it_is_reset(tmp_path: Path) -> None:
    """Requests that come before the drain has ended are answered at once too."""
    with rig({"models": [scripted("a")]}) as lmx:
        pid = lmx.wait_state("a", "ready")["pid"]
        async with http() as session:
            url = lmx.url
            refused = tmp_path / "refused"
            script = {"tokens": 100_000, "step_s": 0.03, "until": str(refused)}
            stream = Stream(session, url, ask("a", script))
            await stream.has_text(20)
            draining = asyncio.create_task(asyncio.to_thread(lmx.cli, "drain", "a"))
            await asyncio.to_thread(lmx.wait_state, "a", "draining")
            status, error = await whole(session, url, "a", QUICKLY)
            assert (status, error["code"]) == (503, "model_drained")
            refused.touch()
            done = await draining
            assert (done.returncode, f"pid {pid} is gone" in done.stdout) == (0, True)
            await stream.ended()
            assert (stream.errors, stream.done) == ([], True)
            assert lmx.worker("a")["state"] == "drained"
            status, error = await whole(session, url, "a", QUICKLY)
            assert (status, error["code"]) == (503, "model_drained")
            assert "`lmx" in error["message"], "it says what to do"
            done = await asyncio.to_thread(lmx.cli, "reset", "a")
            assert (done.returncode, lmx.worker("a")["state"]) == (0, "cold")
            assert (await whole(session, url, "a", QUICKLY))[0] == 200
        assert [e.name for e in lmx.events("model.drained", "model.reset")] == [
            "model.drained", "model.reset",
        ]  # fmt: skip
