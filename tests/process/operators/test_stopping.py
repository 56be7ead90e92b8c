"""How lmx goes down: what runs may finish, what is new is refused, nothing is cut in silence."""

import asyncio

import pytest

from tests.support.rigs.rig import Stream, ask, http, rig, scripted, wait_until, whole

pytestmark = pytest.mark.process


async def test_streams_finish_within_the_limit_and_new_work_is_refused() -> None:
    models = [scripted("alpha"), scripted("cold", preload=False, options={"load_s": 60})]
    config = {"models": models, "timing": {"shutdown_grace_s": 10.0, "load_stall_timeout_s": 60}}
    with rig(config) as lmx:
        lmx.wait_state("alpha", "ready")
        async with http() as session:
            url = lmx.url
            short = Stream(session, url, ask("alpha", {"tokens": 60, "step_s": 0.02}))
            endless = Stream(session, url, ask("alpha", {"tokens": 100_000, "step_s": 0.02}))
            waiting = Stream(session, url, ask("cold", {"tokens": 3}))
            # A connection that is there already: the port takes no new one any more.
            await whole(session, url, "alpha", {"tokens": 1})
            await asyncio.gather(short.has_text(20), endless.has_text(20))
            stopping = asyncio.create_task(asyncio.to_thread(lmx.stop))
            await asyncio.to_thread(
                wait_until, lambda: lmx.log_events("router", "router.stopping"), "it stops"
            )
            status, error = await whole(session, url, "alpha", {"tokens": 1})
            assert (status, error["code"]) == (503, "shutting_down")
            assert int(error["headers"]["Retry-After"]) >= 1
            await short.ended()
            assert (short.text, short.done) == ("word " * 60, True)
            await endless.ended()
            assert [error["code"] for error in endless.errors] == ["shutting_down"]
            assert (endless.done, endless.after_error) == (False, 0)
            await waiting.ended()
            codes = [error["code"] for error in waiting.errors]
            assert (waiting.status, codes) in ((503, []), (200, ["shutting_down"]))
        assert await stopping == 0
        assert lmx.processes() == []
