"""Two models on the real engine at once: what happens to one is nothing to the other."""

import asyncio
import os
import signal

import pytest

from tests.support.rigs.rig import Rig, Stream, ask, http, wait_until

# The first test also fetches, converts and loads the models.
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.engine,
    pytest.mark.process,
    pytest.mark.timeout(900),
]

COUNT = "Count from one to thirty in words."


def request(model: str, tokens: int) -> dict[str, object]:
    return ask(model, COUNT, temperature=0, max_tokens=tokens, ignore_eos=True)


@pytest.fixture(scope="module")
def whole(server: Rig) -> str:
    """What SmolLM2 answers when nothing else happens. It lasts for seconds: the other model is
    killed meanwhile."""

    async def alone() -> str:
        async with http() as session:
            stream = Stream(session, server.url, request("smollm2", 120))
            await stream.ended(300)
            return stream.text

    return asyncio.run(alone())


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, "worker_crashed"), (signal.SIGSTOP, "worker_hung")]
)
async def test_one_model_dies_while_both_stream(
    server: Rig, whole: str, number: signal.Signals, code: str
) -> None:
    before = {
        name: server.wait_state(name, "ready", deadline_s=300) for name in ("smollm2", "tiny")
    }
    assert before["smollm2"]["pid"] != before["tiny"]["pid"]
    router = server.status()["router"]["pid"]
    async with http() as session:
        url = server.url
        living = Stream(session, url, request("smollm2", 120))
        await living.has_text(5, 300)
        dying = Stream(session, url, request("tiny", 7000))
        await dying.has_text(5, 300)
        assert not living.done
        os.kill(before["tiny"]["pid"], number)
        await asyncio.gather(living.ended(300), dying.ended(300))
        assert [error["code"] for error in dying.errors] == [code]
        assert (dying.done, dying.after_error) == (False, 0)
        assert (living.errors, living.done) == ([], True)
        assert living.text == whole, "not a token differs"
        again = Stream(session, url, request("tiny", 4))
        await again.ended(300)
        assert (again.status, again.errors) == (200, [])
        assert again.text
    after = server.wait_state("tiny", "ready", deadline_s=300)
    assert after["pid"] != before["tiny"]["pid"]
    assert server.status()["router"]["pid"] == router
    assert server.worker("smollm2")["pid"] == before["smollm2"]["pid"]


async def test_a_real_row_is_freed_within_one_step(server: Rig) -> None:
    seen = len(server.log_events("worker-smollm2", "stream.cancelled"))
    async with http() as session:
        stream = Stream(session, server.url, request("smollm2", 4000))
        await stream.has_text(5, 300)
        await stream.hang_up()

    def cancelled() -> list[dict[str, object]]:
        return server.log_events("worker-smollm2", "stream.cancelled")[seen:]

    (event,) = await asyncio.to_thread(wait_until, cancelled, "it is cancelled")
    assert event["where"] == "decode"
    freed, at = event["step_when_freed"], event["step_at_cancel"]
    assert isinstance(freed, int)
    assert isinstance(at, int)
    assert freed - at <= 1
