"""Requests for a model that is not loaded: one load for all of them, a queue with a limit, and
word of how far it is."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support.rigs.rig import Rig, Stream, ask, http, rig, scripted, wait_until, whole

pytestmark = pytest.mark.process

WORDS = "word " * 3


@pytest.fixture(scope="module")
def server() -> Iterator[Rig]:
    """Cold models, one for each test."""
    models = [
        scripted("many", preload=False, options={"load_s": 1.0}),
        scripted("left", preload=False, options={"load_s": 1.0}),
        scripted("narrow", preload=False, max_rows=2, max_queue=3),
        scripted("slow", preload=False, options={"load_s": 4.5}),
        scripted("broken", preload=False, options={"load_error": "no lm_head"}),
    ]
    config = {"models": models, "timing": {"load_stall_timeout_s": 30}}
    with rig(config) as lmx:
        yield lmx


def waiting(lmx: Rig) -> int:
    """How many requests wait for models, as the router's last beat says."""
    return int(lmx.status()["router"]["waiting"])


async def refusals(asked: Sequence[asyncio.Task[Any]], count: int) -> None:
    while sum(task.done() for task in asked) < count:
        await asyncio.sleep(0.02)


def spawned(lmx: Rig, model: str) -> int:
    """How often the model's worker was started."""
    return sum(e["model"] == model for e in lmx.log_events("supervisor", "worker.spawned"))


async def test_a_hundred_first_requests_are_one_load(server: Rig) -> None:
    async with http() as session:
        url = server.url
        streams = [Stream(session, url, ask("many", {"tokens": 3})) for _ in range(60)]
        others = [whole(session, url, "many", {"tokens": 3}) for _ in range(40)]
        answers = await asyncio.gather(*others)
        await asyncio.gather(*(stream.ended() for stream in streams))
    assert Counter((stream.text, stream.done) for stream in streams) == {(WORDS, True): 60}
    texts = Counter(answer["choices"][0]["message"]["content"] for _, answer in answers)
    assert texts == {WORDS: 40}
    assert spawned(server, "many") == 1


async def test_a_client_that_leaves_does_not_abort_the_load(server: Rig) -> None:
    async with http() as session:
        stream = Stream(session, server.url, ask("left", {"tokens": 3}))
        await asyncio.to_thread(server.wait_state, "left", "loading")
        await stream.hang_up()
    await asyncio.to_thread(server.wait_state, "left", "ready")
    assert spawned(server, "left") == 1


async def test_who_finds_the_waiting_room_full_learns_when_to_come_back(server: Rig) -> None:
    """Five places: two rows and a queue of three. The rest is told at once, not after the load."""
    async with http() as session:
        asked = [
            asyncio.create_task(whole(session, server.url, "narrow", {"tokens": 3}))
            for _ in range(12)
        ]
        with server.held_load("narrow"):
            await asyncio.wait_for(refusals(asked, 7), 90)
        answers = await asyncio.gather(*asked)
    assert Counter(status for status, _ in answers) == {200: 5, 429: 7}
    for status, answer in answers:
        if status == 429:
            assert (answer["code"], answer["type"]) == ("queue_full", "rate_limit_error")
            assert 1 <= int(answer["headers"]["Retry-After"]) <= 60
    assert spawned(server, "narrow") == 1


async def test_a_place_that_a_client_leaves_is_free_again(server: Rig) -> None:
    await asyncio.to_thread(server.cli, "unload", "narrow")
    async with http() as session:
        url = server.url
        with server.held_load("narrow"):
            leaving = [Stream(session, url, ask("narrow", {"tokens": 3})) for _ in range(5)]
            await asyncio.to_thread(wait_until, lambda: waiting(server) == 5, "all wait")
            assert (await whole(session, url, "narrow", {"tokens": 3}))[0] == 429
            await asyncio.gather(*(stream.hang_up() for stream in leaving))
            await asyncio.to_thread(wait_until, lambda: waiting(server) == 0, "all have left")
            staying = [
                asyncio.create_task(whole(session, url, "narrow", {"tokens": 3})) for _ in range(5)
            ]
            await asyncio.to_thread(wait_until, lambda: waiting(server) == 5, "others wait")
        answers = await asyncio.gather(*staying)
    assert Counter(status for status, _ in answers) == {200: 5}


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


async def test_an_error_after_the_comments_is_an_event_and_before_them_a_status(
    server: Rig,
) -> None:
    async with http() as session:
        with server.held_load("broken"):
            stream = Stream(session, server.url, ask("broken", {"tokens": 3}))
            other = asyncio.create_task(whole(session, server.url, "broken", {"tokens": 3}))
            async with asyncio.timeout(90):
                while not stream.comments:  # The headers are out then.
                    await asyncio.sleep(0.05)
        status, error = await other
        await stream.ended()
    assert (stream.status, stream.done, stream.after_error) == (200, False, 0)
    (event,) = stream.errors
    assert (status, event["code"]) == (503, "model_load_failed")
    assert error["code"] == event["code"]
    assert "no lm_head" in event["message"]
