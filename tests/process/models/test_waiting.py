"""Requests for a model that is not loaded: one load for all of them, a queue with a limit, and
word of how far it is."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.rigs.rig import Rig, Stream, ask, http, rig, scripted, whole

WORDS = "word " * 3


@pytest.fixture(scope="module")
def server() -> Iterator[Rig]:
    """A cold model."""
    models = [scripted("slow", preload=False, options={"load_s": 4.5})]
    with rig({"models": models, "timing": {"load_stall_timeout_s": 30}}) as lmx:
        yield lmx


async def test_a_stream_that_waits_shows_how_far_the_load_is(server: Rig) -> None:
    async with http() as session:
        with server.held_load("slow"):
            stream = Stream(session, server.url, ask("slow", {"tokens": 3}))
            beside = asyncio.create_task(whole(session, server.url, "slow", {"tokens": 3}))
            async with asyncio.timeout(90):
                while not any("%" in text for _, text in stream.comments):
                    await asyncio.sleep(0.05)
        await stream.ended()
        status, answer = await beside
    assert (stream.status, stream.text, stream.done) == (200, WORDS, True)
    said = [text for _, text in stream.comments]
    assert all("slow" in text for text in said)
    assert any("weights" in text and "%" in text for text in said), said
    assert len(set(said)) == len(said), "only what has changed is told"
    # Who does not stream gets no byte before the answer, and the same answer.
    assert (status, answer["choices"][0]["message"]["content"]) == (200, WORDS)
    spawned = server.log_events("supervisor", "worker.spawned")
    assert [event["model"] for event in spawned] == ["slow"], "one load for both"
