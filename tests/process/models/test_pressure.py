"""What happens when a worker takes more memory than there is for all of them."""

import asyncio
from collections import Counter

import pytest

from tests.support.rigs.rig import Stream, ask, http, rig, scripted, wait_until

pytestmark = pytest.mark.long


async def test_who_grows_beyond_the_budget_is_warned_then_ended_and_the_others_live_on() -> None:
    """The engine keeps what it took, whatever is asked of its requests: the last resort."""
    models = [
        scripted("grows", memory_bytes="100 MiB"),
        scripted("other", memory_bytes="100 MiB", pinned=True),
    ]
    memory = {"budget_bytes": "320 MiB", "min_residency_s": 0}
    with rig({"models": models, "memory": memory}) as lmx:
        before = {name: lmx.wait_state(name, "ready") for name in ("grows", "other")}
        async with http() as session:
            url, long = lmx.url, {"tokens": 100_000, "step_s": 0.05}
            living = Stream(session, url, ask("other", long))
            small = [Stream(session, url, ask("grows", long)) for _ in range(3)]
            await asyncio.gather(*(stream.has_text(5) for stream in (living, *small)))
            greedy = Stream(session, url, ask("grows", {**long, "grow_mib": 320}))
            await asyncio.gather(*(stream.ended() for stream in (greedy, *small)))
            # Twice a request gave way, to come back later; that was of no help, so it was ended.
            codes = Counter(s.errors[0]["code"] for s in (greedy, *small))
            assert codes == {"worker_out_of_memory": 4}
            assert len(lmx.log_events("worker-grows", "row.preempted")) == 2
            levels = [event.data["level"] for event in lmx.events("memory.pressure")]
            assert "hard" in levels
            await asyncio.to_thread(wait_until, lambda: lmx.events("worker.exited"), "it is gone")
            exited = [(e.model_id, e.data["cause"]) for e in lmx.events("worker.exited")]
            assert exited == [("grows", "out_of_memory")]
            assert lmx.worker("grows")["exits"] == {"out_of_memory": 1}
            assert (living.errors, living.done) == ([], False)
            assert lmx.worker("other")["pid"] == before["other"]["pid"]
            # What was ended serves again, once there is memory for it.
            again = Stream(session, url, ask("grows", {"tokens": 3}))
            await again.ended()
            assert (again.text, again.errors) == ("word " * 3, [])
            await living.hang_up()
        assert lmx.status()["supervisor"]["missing_bytes"] == 0
