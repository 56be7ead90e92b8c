"""Requests for models that are not ready: one question, one line, deadlines, ways out of it."""

import asyncio
import time
from functools import partial
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, GenerationError
from lmx.protocol.messages.control import Acquire, Acquired, Denied, RouterBeat, Withdraw
from lmx.protocol.messages.data import Preparing
from lmx.protocol.messages.snapshot import ModelView
from lmx.protocol.messages.tasks import Embed
from lmx.protocol.states import ExitCause, LoadPhase, SlotState, WorkerState
from lmx.router.services import SERVICES
from lmx.router.workers.dispatch import _PAUSES_S
from lmx.router.workers.waits import Waits
from tests.support.fakes.fake_peers import FakeStream, FakeSupervisor, cold, ready, refuses, until
from tests.support.rigs.router_rig import INSTANCE, MODEL, TEXTS, Rig, answer, router_rig

LOADED = "0000000b"


def loading(fraction: float | None = None, **fields: Any) -> ModelView:
    return cold(
        "big",
        SlotState.OCCUPIED,
        worker=WorkerState.LOADING,
        phase=LoadPhase.WEIGHTS,
        fraction=fraction,
        **fields,
    )


def _always(reply: Acquired, _question: Acquire) -> Acquired:
    return reply


def waiting(rig: Rig) -> int:
    return rig.router.queues.waiting("big")


async def test_a_hundred_requests_for_a_cold_model_share_one_acquire(rig: Rig) -> None:
    worker = rig.add_worker(LOADED, answer)
    await rig.publish(cold("big"))
    requests = [asyncio.create_task(rig.chat_json(model="big")) for _ in range(100)]
    await until(lambda: waiting(rig) == 100 and rig.supervisor.acquires)
    beats = rig.supervisor.count(RouterBeat)
    await until(lambda: rig.supervisor.count(RouterBeat) > beats + 1)
    beat = [seen for seen in rig.supervisor.seen if isinstance(seen, RouterBeat)][-1]
    assert (beat.waiting, beat.streams, beat.requests_total) == (100, 0, 0)
    question = rig.supervisor.acquires[0][2]
    assert question.model_id == "big"
    assert rig.spec.load_wait_s - 10 < question.wait_s <= rig.spec.load_wait_s
    assert 0 <= question.waited_s < 10
    await rig.supervisor.reply(0, Acquired("big", LOADED))
    answers = await asyncio.gather(*requests)
    assert {status for status, _ in answers} == {200}
    assert rig.supervisor.count(Acquire) == 1
    assert len(worker.streams) == 100
    # The next one asks anew: nothing is remembered that the snapshot does not say.
    rig.supervisor.acquire_reply = lambda question: Acquired(question.model_id, LOADED)
    assert (await rig.chat_json(model="big"))[0] == 200
    assert rig.supervisor.count(Acquire) == 2


async def test_those_who_wait_are_released_in_the_order_of_their_arrival(rig: Rig) -> None:
    worker = rig.add_worker(LOADED, answer)
    await rig.publish(cold("big"))
    requests = []
    for number in range(10):
        requests.append(asyncio.create_task(rig.chat_json(model="big", max_tokens=number + 1)))
        await until(lambda: waiting(rig) == len(requests))
    await rig.supervisor.reply(0, Acquired("big", LOADED))
    answers = await asyncio.gather(*requests)
    assert {status for status, _ in answers} == {200}, answers
    assert [stream.request.max_tokens for stream in worker.streams] == list(range(1, 11))


async def test_a_router_that_stood_still_does_not_take_the_supervisor_for_gone(rig: Rig) -> None:
    rig.router.supervisor._silence_s = 0.5
    rig.add_worker(LOADED, answer)
    await rig.publish(cold("big"))
    request = asyncio.create_task(rig.chat_json(model="big"))
    await until(lambda: rig.supervisor.acquires)
    time.sleep(1.0)  # Twice the beats that may stay without an answer.
    beats = rig.supervisor.count(RouterBeat)
    await until(lambda: rig.supervisor.count(RouterBeat) > beats + 2)
    await rig.supervisor.reply(0, Acquired("big", LOADED))
    assert (await request)[0] == 200
    assert rig.supervisor.count(Acquire) == 1


async def test_a_full_room_is_429_with_the_time_that_the_load_still_takes(rig: Rig) -> None:
    rig.add_worker(LOADED, answer)
    await rig.publish(cold("big", SlotState.QUEUED, position=3, max_waiting=2))
    requests = [asyncio.create_task(rig.chat_json(model="big")) for _ in range(2)]
    await until(lambda: waiting(rig) == 2)
    async with rig.chat(model="big", stream=True) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == (429, "queue_full")
        assert 20 <= int(response.headers["Retry-After"]) <= 30
        assert "3rd in line" in error["message"]
    await rig.supervisor.reply(0, Acquired("big", LOADED))
    assert [status for status, _ in await asyncio.gather(*requests)] == [200, 200]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_last_client_that_leaves_frees_its_place_and_takes_the_question_back(
    rig: Rig, stream: bool
) -> None:
    rig.add_worker(LOADED, answer)
    await rig.publish(cold("big", max_waiting=1))
    request = asyncio.create_task(rig.chat_json(model="big", stream=stream))
    await until(lambda: waiting(rig) == 1)
    assert (await rig.chat_json(model="big"))[0] == 429
    request.cancel()
    await until(lambda: waiting(rig) == 0)
    await until(lambda: rig.supervisor.count(Withdraw) == 1)
    other = asyncio.create_task(rig.chat_json(model="big"))
    await until(lambda: len(rig.supervisor.acquires) == 2)
    # What was asked before comes to nothing, also when it is answered after all.
    await rig.supervisor.reply(0, Denied(ErrorCode.MODEL_LOADING, "not yet"))
    await rig.supervisor.reply(1, Acquired("big", LOADED))
    assert (await other)[0] == 200
    assert (rig.supervisor.count(Withdraw), len(rig.supervisor.acquires)) == (1, 2)


async def test_the_question_stays_while_others_wait(rig: Rig) -> None:
    rig.add_worker(LOADED, answer)
    await rig.publish(cold("big"))
    leaving = asyncio.create_task(rig.chat_json(model="big"))
    await until(lambda: waiting(rig) == 1)
    staying = asyncio.create_task(rig.chat_json(model="big"))
    await until(lambda: waiting(rig) == 2 and rig.supervisor.acquires)
    leaving.cancel()
    await until(lambda: waiting(rig) == 1)
    await rig.supervisor.reply(0, Acquired("big", LOADED))
    assert (await staying)[0] == 200
    assert (rig.supervisor.count(Withdraw), len(rig.supervisor.acquires)) == (0, 1)


async def test_each_request_waits_as_long_as_it_may_and_learns_where_it_stood() -> None:
    async with router_rig(load_wait_s=3.0) as rig:
        await rig.publish(loading(0.4))
        answers = await asyncio.gather(*(rig.chat_json(model="big") for _ in range(2)))
        for status, body in answers:
            assert (status, body["error"]["code"]) == (503, "model_loading")
            assert "big is loading: weights 40%" in body["error"]["message"]
        assert any("1st of 2 in line" in body["error"]["message"] for _, body in answers)
        await until(lambda: waiting(rig) == 0)


async def test_the_supervisor_is_asked_again_while_requests_wait(rig: Rig) -> None:
    rig.add_worker(LOADED, answer)
    await rig.publish(cold("big"))
    request = asyncio.create_task(rig.chat_json(model="big"))
    await until(lambda: rig.supervisor.acquires)
    await rig.supervisor.reply(0, Denied(ErrorCode.MODEL_LOADING, "not yet"))
    await until(lambda: len(rig.supervisor.acquires) == 2)
    assert rig.supervisor.acquires[1][2].waited_s > rig.supervisor.acquires[0][2].waited_s
    await rig.supervisor.reply(1, Acquired("big", LOADED))
    assert (await request)[0] == 200


async def test_a_denied_acquire_is_the_answer_of_all_who_wait(rig: Rig) -> None:
    await rig.publish(cold("big", SlotState.QUARANTINED))
    rig.supervisor.acquire_reply = lambda _: Denied(
        ErrorCode.MODEL_QUARANTINED, "crashed 4 times", retry_after_s=30
    )
    async with rig.chat(model="big", stream=True) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "30"
        assert (await response.json())["error"]["code"] == "model_quarantined"
    rig.supervisor.acquire_reply = lambda _: Denied(ErrorCode.MODEL_DRAINED, "drained")
    status, body = await rig.chat_json(model="big")
    assert (status, body["error"]["code"]) == (503, "model_drained")
    assert rig.supervisor.count(Acquire) == 2


async def test_load_time_is_in_the_timings(rig: Rig) -> None:
    rig.add_worker(LOADED, answer)
    await rig.publish(cold("big"))
    request = asyncio.create_task(rig.chat_json(model="big"))
    await until(lambda: rig.supervisor.acquires)
    await asyncio.sleep(0.2)  # the duration of the load is what is measured
    await rig.supervisor.reply(0, Acquired("big", LOADED))
    _, body = await request
    assert 0.2 <= body["timings"]["load_s"] <= body["timings"]["first_token_s"]


# Workers on their way out.


refuse = refuses(ErrorCode.MODEL_UNLOADED, "draining")


async def test_a_request_that_meets_workers_on_their_way_out_tries_again() -> None:
    refusals = 3

    async def third_time_lucky(fake: FakeStream) -> None:
        nonlocal refusals
        refusals -= 1
        await (refuse(fake) if refusals >= 0 else answer(fake))

    async with router_rig(third_time_lucky) as rig:
        rig.supervisor.acquire_reply = lambda question: Acquired(question.model_id, INSTANCE)
        status, body = await rig.chat_json()
        assert status == 200
        assert body["choices"][0]["message"]["content"] == "".join(TEXTS)
        waits = [question.waited_s for _, _, question in rig.supervisor.acquires]
        assert len(waits) == 3
        assert waits[-1] >= sum(_PAUSES_S[:3]), "it keeps its place"


async def test_the_attempts_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmx.router.workers.dispatch._PAUSES_S", (0.0, 0.01, 0.01))
    async with router_rig(refuse) as rig:
        rig.supervisor.acquire_reply = lambda question: Acquired(question.model_id, INSTANCE)
        status, body = await rig.chat_json()
        assert (status, body["error"]["code"]) == (503, "model_unloaded")
        assert len(rig.worker.streams) == 4


async def test_a_request_that_comes_back_is_not_refused_for_those_behind_it() -> None:
    gives_way = asyncio.Event()

    async def first_too_late(fake: FakeStream) -> None:
        if len(rig.others[0].streams) > 1:
            await answer(fake)
            return
        await gives_way.wait()
        await refuse(fake)

    async with router_rig() as rig:
        worker = rig.add_worker(LOADED, first_too_late)
        await rig.publish(cold("big", max_waiting=1))
        first = asyncio.create_task(rig.chat_json(model="big", max_tokens=1))
        await until(lambda: rig.supervisor.acquires)
        await rig.supervisor.reply(0, Acquired("big", LOADED))
        await until(lambda: worker.streams)
        second = asyncio.create_task(rig.chat_json(model="big", max_tokens=2))
        await until(lambda: waiting(rig) == 1)
        gives_way.set()
        await until(lambda: waiting(rig) == 2 or first.done())
        # For the next one it is full as before.
        assert (await rig.chat_json(model="big"))[0] == 429
        await rig.supervisor.reply(1, Acquired("big", LOADED))
        assert [status for status, _ in await asyncio.gather(first, second)] == [200, 200]
        assert [stream.request.max_tokens for stream in worker.streams] == [1, 1, 2]


async def test_the_prompts_of_others_take_nothing_of_a_requests_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its deadline begins with its turn, for generations as for tasks."""
    monkeypatch.setattr("lmx.router.workers.dispatch._ACCEPT_DEADLINE_S", 0.1)
    monkeypatch.setattr("lmx.router.workers.dispatch._ANSWER_GRACE_S", 0.0)
    goes_on = asyncio.Event()

    async def late(fake: FakeStream) -> None:
        await goes_on.wait()
        await answer(fake)

    async with router_rig(late) as rig:
        embed = Embed(0, "r", deadline_s=0.1, texts=("a",))
        directory = rig.router.supervisor.latest
        assert directory is not None
        (model,) = directory.models
        tasks = rig.router._runner.app[SERVICES].tasks
        task = asyncio.create_task(tasks.perform(model, embed, Waits()))
        request = asyncio.create_task(rig.chat_json())
        await until(lambda: rig.worker.streams and rig.worker.tasks)
        done, _ = await asyncio.wait({task, request}, timeout=0.5)
        assert not done, "nobody has begun with them"
        stream = rig.worker.streams[0]
        await stream.send(Preparing(rig.worker.tasks[0].stream_id))
        with pytest.raises(GenerationError, match=r"did not answer in 0\.1 s"):
            await task
        goes_on.set()
        assert (await request)[0] == 200
        assert (len(rig.worker.streams), len(rig.worker.tasks)) == (1, 1)


async def test_a_worker_that_takes_no_request_up_is_asked_once_more_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmx.router.workers.dispatch._TURN_GRACE_S", 0.1)

    async def silent(fake: FakeStream) -> None:
        pass

    async with router_rig(silent) as rig:
        await rig.publish(ready(MODEL, INSTANCE, max_queue_s=0.1))
        rig.supervisor.acquire_reply = lambda question: Acquired(question.model_id, INSTANCE)
        status, body = await rig.chat_json()
        assert (status, body["error"]["code"]) == (503, "worker_lost")
        assert "did not begin with the request in 0.2 s" in body["error"]["message"]
        assert len(rig.worker.streams) == 2


async def test_a_prompt_that_comes_to_no_end_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmx.router.workers.dispatch._ACCEPT_DEADLINE_S", 0.1)

    async def endless(fake: FakeStream) -> None:
        await fake.prepare()

    async with router_rig(endless) as rig:
        rig.supervisor.acquire_reply = lambda question: Acquired(question.model_id, INSTANCE)
        status, body = await rig.chat_json()
        assert (status, body["error"]["code"]) == (503, "worker_lost")
        assert "did not take the request in 0.1 s" in body["error"]["message"]
        assert len(rig.worker.streams) == 1


@pytest.mark.parametrize(("crashes", "status"), [(1, 200), (2, 500)])
async def test_a_request_that_no_worker_had_taken_survives_one_crash(
    crashes: int, status: int
) -> None:
    """Of another request, most likely; were it its own, it must not go on crashing workers."""
    instances = [f"0000010{number}" for number in range(3)]
    seen = asyncio.Queue[str]()

    async def silent(fake: FakeStream) -> None:
        seen.put_nowait("")

    async with router_rig() as rig:
        for number, instance in enumerate(instances):
            rig.add_worker(instance, silent if number < crashes else answer)
        await rig.publish(ready("big", instances[0]))
        request = asyncio.create_task(rig.chat_json(model="big"))
        for number in range(crashes):
            await asyncio.wait_for(seen.get(), 90)
            following = Acquired("big", instances[number + 1])
            rig.supervisor.acquire_reply = partial(_always, following)
            await rig.publish(ready("big", instances[number + 1]))
            await rig.supervisor.exited(instances[number], "big", ExitCause.CRASH, "status 1")
        assert (await request)[0] == status


@pytest.mark.parametrize(
    ("cause", "code", "status"),
    [
        (ExitCause.HANG, "worker_hung", 500),
        (ExitCause.CRASH, "worker_crashed", 500),
        (ExitCause.OUT_OF_MEMORY, "worker_out_of_memory", 503),
    ],
)
async def test_a_request_that_its_worker_was_preparing_is_not_tried_on_another(
    cause: ExitCause, code: str, status: int
) -> None:
    """Those that waited behind it are."""
    begun = asyncio.Event()

    async def hang(fake: FakeStream) -> None:
        if fake.request.max_tokens == 1:
            await fake.prepare()
            begun.set()

    async with router_rig() as rig:
        first = rig.add_worker("00000100", hang)
        second = rig.add_worker("00000101", answer)
        await rig.publish(ready("big", "00000100"))

        async def ask_for_trouble() -> tuple[int, Any, Any]:
            async with rig.chat(model="big", max_tokens=1) as response:
                return response.status, response.headers, await response.json()

        bad = asyncio.create_task(ask_for_trouble())
        await begun.wait()
        good = asyncio.create_task(rig.chat_json(model="big", max_tokens=2))
        await until(lambda: len(first.streams) == 2)
        rig.supervisor.acquire_reply = partial(_always, Acquired("big", "00000101"))
        link = rig.router.workers.link_to("00000100")
        await until(lambda: any(stream.timeout.begun for stream in link._streams.values()))
        await rig.publish(ready("big", "00000101"))
        await rig.supervisor.exited("00000100", "big", cause, "no token for 120 s")
        found, headers, body = await bad
        assert (found, body["error"]["code"]) == (status, code)
        assert (headers["X-Should-Retry"], headers.get("Retry-After")) == ("false", None)
        assert (await good)[0] == 200
        assert [stream.request.max_tokens for stream in second.streams] == [2]


async def test_no_attempt_is_made_after_the_deadline() -> None:
    async def late(fake: FakeStream) -> None:
        await asyncio.sleep(0.3)  # longer than the request may wait
        await refuse(fake)

    async with router_rig(late, load_wait_s=0.2) as rig:
        status, body = await rig.chat_json()
        assert (status, body["error"]["code"]) == (503, "model_unloaded")
        assert len(rig.worker.streams) == 1


async def test_what_another_worker_would_not_change_is_final() -> None:
    async with router_rig(refuses(ErrorCode.MODEL_DRAINED, "an operator drained it")) as rig:
        status, body = await rig.chat_json()
        assert (status, body["error"]["code"]) == (503, "model_drained")
        assert not rig.supervisor.acquires


# The supervisor.


async def test_without_a_supervisor_warm_models_serve_on_and_cold_ones_are_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmx.router.supervisor.model_queues._SILENCE_GRACE_S", 0.3)
    async with router_rig() as rig:
        await rig.publish(ready(MODEL, INSTANCE), cold("big"))
        request = asyncio.create_task(rig.chat_json(model="big"))
        await until(lambda: rig.supervisor.acquires)
        rig.supervisor.answers_beats = False
        # Told after five silent beats and the grace, before the load's own deadline.
        status, body = await asyncio.wait_for(request, 90)
        assert (status, body["error"]["code"]) == (503, "supervisor_unavailable")
        assert not rig.router.supervisor.alive
        async with rig.chat(model="big") as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
            assert (await response.json())["error"]["code"] == "supervisor_unavailable"
        assert (await rig.chat_json())[0] == 200
        rig.supervisor.answers_beats = True
        await until(lambda: rig.router.supervisor.alive)


async def test_who_waits_asks_the_next_supervisor(rig: Rig) -> None:
    rig.add_worker(LOADED, answer)
    await rig.publish(cold("big"))
    requests = [asyncio.create_task(rig.chat_json(model="big")) for _ in range(3)]
    await until(lambda: waiting(rig) == 3)
    await rig.supervisor.stop()
    await until(lambda: not rig.router.supervisor.alive)
    late = asyncio.create_task(rig.chat_json(model="big"))
    await until(lambda: waiting(rig) == 4)
    rig.supervisor = FakeSupervisor(rig.context, rig.run_dir)
    rig.supervisor.acquire_reply = lambda question: Acquired(question.model_id, LOADED)
    await rig.supervisor.publish(cold("big"))
    answers = await asyncio.gather(*requests, late)
    assert {status for status, _ in answers} == {200}
    assert rig.supervisor.acquires[0][2].waited_s > 0.5


async def test_a_supervisor_that_never_replies_does_not_hold_a_request_for_ever() -> None:
    async with router_rig(load_wait_s=0.2) as rig:
        await rig.publish(cold("big"))
        status, body = await asyncio.wait_for(rig.chat_json(model="big"), 90)
    assert (status, body["error"]["code"]) == (503, "model_loading")


async def test_the_end_of_the_router_ends_the_waiting(rig: Rig) -> None:
    await rig.publish(cold("big"))
    request = asyncio.create_task(rig.chat_json(model="big"))
    await until(lambda: waiting(rig) == 1)
    await rig.router.stop(grace_s=0.0)
    status, body = await request
    assert (status, body["error"]["code"]) == (503, "shutting_down")


async def test_who_comes_back_to_a_router_that_ends_gets_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmx.router.workers.dispatch._PAUSES_S", (0.5, 0.5))
    async with router_rig(refuse) as rig:
        request = asyncio.create_task(rig.chat_json())
        await until(lambda: rig.worker.streams and not rig.router.workers.open_streams)
        await rig.router.stop(grace_s=0.0)
        status, body = await request
        assert (status, body["error"]["code"]) == (503, "shutting_down")


async def test_tasks_wait_in_the_same_room(rig: Rig) -> None:
    await rig.publish(cold("big"))
    request = asyncio.create_task(rig.post_json("/v1/embeddings", model="big", input="x"))
    await until(lambda: waiting(rig) == 1)
    worker = rig.add_worker(LOADED, answer)
    await until(lambda: rig.supervisor.acquires)
    await rig.supervisor.reply(0, Acquired("big", LOADED))
    await until(lambda: worker.tasks)
    assert isinstance(worker.tasks[0], Embed)
    request.cancel()


async def test_an_adapter_waits_in_its_models_line_and_is_named_to_the_worker(rig: Rig) -> None:
    worker = rig.add_worker(LOADED, answer)
    await rig.publish(cold("big"), cold("sql", base="big"))
    names = ("big", "sql", "sql")
    requests = [asyncio.create_task(rig.chat_json(model=name)) for name in names]
    await until(lambda: waiting(rig) == 3 and rig.supervisor.acquires)
    assert rig.router.queues.waiting("sql") == 3
    # One that leaves takes nothing from the others.
    requests.pop().cancel()
    await until(lambda: waiting(rig) == 2)
    assert not rig.supervisor.count(Withdraw)
    await rig.supervisor.reply(0, Acquired("big", LOADED))
    answers = await asyncio.gather(*requests)
    assert [question.model_id for _, _, question in rig.supervisor.acquires] == ["big"]
    assert [body["model"] for _, body in answers] == ["big", "sql"]
    assert [stream.request.adapter for stream in worker.streams] == ["", "sql"]
    _, found = await rig.json("GET", "/v1/models")
    listed = {one["id"]: one["parent"] for one in found["data"]}
    assert listed == {"big": None, "sql": "big"}
