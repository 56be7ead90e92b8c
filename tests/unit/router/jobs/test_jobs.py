"""Jobs over HTTP: every generation has a record, and what is under way can be cancelled."""

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import Denied
from lmx.protocol.messages.data import Accepted, Delta, Timings, TokenLogprob
from lmx.protocol.messages.snapshot import Route
from lmx.protocol.messages.tasks import TaskFinished, Vectors
from lmx.protocol.states import ModelKind
from lmx.router.jobs import store
from lmx.router.jobs.records import JobRow
from lmx.router.operators.jobs import (
    CancelledJob,
    DeletedJob,
    JobList,
    JobWithResult,
    RequestList,
)
from tests.support.clients.answer_check import check_shape
from tests.support.fakes.fake_peers import FakeStream, cold, ends, plays, refuses, until
from tests.support.rigs.router_rig import (
    MODEL,
    TEXTS,
    Rig,
    answer,
    chat_body,
    data_lines,
    router_rig,
)

ADMIN = {"X-Admin-Key": "test-admin-key"}
WHOLE = "".join(TEXTS)


async def get(rig: Rig, path: str, **headers: str) -> tuple[int, Any]:
    return await rig.json("GET", path, headers=headers)


async def delete(rig: Rig, job_id: str, **headers: str) -> tuple[int, Any]:
    return await rig.json("DELETE", f"/v1/jobs/{job_id}", headers=headers)


async def job(rig: Rig, job_id: str) -> Any:
    status, body = await get(rig, f"/v1/jobs/{job_id}")
    assert status == 200, body
    check_shape(JobWithResult, body)
    return body


async def job_when(rig: Rig, job_id: str, condition: Callable[[Any], bool]) -> Any:
    """The job, once it is as the condition wants it."""
    async with asyncio.timeout(90):
        while not condition(found := await job(rig, job_id)):
            await asyncio.sleep(0.01)
    return found


async def only_job(rig: Rig) -> Any:
    """The one job that there is, once there is one."""
    async with asyncio.timeout(90):
        while True:
            status, page = await get(rig, "/v1/jobs")
            assert status == 200, page
            check_shape(JobList, page)
            if page["data"]:
                assert len(page["data"]) == 1
                return page["data"][0]
            await asyncio.sleep(0.01)


async def silent(stream: FakeStream) -> None:
    """Some text, then nothing more."""
    await stream.accept()
    await stream.say("Hel", "lo")


accepted_only = plays()


async def nothing(_: FakeStream) -> None:
    pass


async def test_an_answer_and_its_job_are_one(rig: Rig) -> None:
    async with rig.chat() as response:
        body = await response.json()
        assert response.headers["X-Job-Id"] == body["id"]
        found = await job(rig, body["id"])
        assert found["result"] == body
        assert (found["usage"], found["timings"]) == (body["usage"], body["timings"])
        expected = {
            "object": "job",
            "kind": "chat",
            "model": MODEL,
            "state": "completed",
            "stream": False,
            "tokens": 5,
            "error": None,
            "http_status": 200,
            "request_id": response.headers["X-Request-Id"],
            "queue_position": None,
        }
        assert {name: found[name] for name in expected} == expected
        assert found["created"] <= found["started"] <= found["ended"]


async def test_a_stream_has_the_record_of_an_answer_that_does_not_stream(rig: Rig) -> None:
    async with rig.chat(stream=True) as response:
        job_id = response.headers["X-Job-Id"]
        lines = data_lines(await response.read())
    assert json.loads(lines[0])["id"] == job_id
    found = await job(rig, job_id)
    _, whole = await rig.chat_json()
    assert found["stream"] is True
    for part in ("choices", "usage", "object", "model"):
        assert found["result"][part] == whole[part]


async def test_logprobs_are_in_the_record_unless_a_stream_had_them() -> None:
    likely = plays(Delta(0, "hi", 1, logprobs=(TokenLogprob(b"hi", -0.1, 5),)), ends(tokens=1))

    async with router_rig(likely) as rig:
        streamed = json.loads((await rig.chat_events(logprobs=True))[0])
        _, whole = await rig.chat_json(logprobs=True)
        choice = (await job(rig, streamed["id"]))["result"]["choices"][0]
        assert (choice["message"]["content"], choice["logprobs"]) == ("hi", None)
        assert (await job(rig, whole["id"]))["result"] == whole
        assert whole["choices"][0]["logprobs"]["content"]


async def test_completions_are_jobs_too_with_all_their_prompts(rig: Rig) -> None:
    status, body = await rig.post_json("/v1/completions", prompt=["a", "b"], logprobs=1)
    assert status == 200
    found = await job(rig, body["id"])
    assert (found["kind"], found["result"], found["tokens"]) == ("completion", body, 10)
    assert len(body["choices"]) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "status"),
    [(ErrorCode.CONTEXT_LENGTH_EXCEEDED, 400), (ErrorCode.QUEUE_FULL, 429)],
)
async def test_what_is_refused_before_it_began_is_no_job(
    code: ErrorCode, status: int, stream: bool
) -> None:
    refused = asyncio.Event()

    async with router_rig(refuses(code, "no", after=refused)) as rig:
        request = asyncio.create_task(rig.chat(stream=stream))
        # Its record is written meanwhile, and goes again.
        assert (await only_job(rig))["state"] == "queued"
        refused.set()
        async with await request as response:
            assert (response.status, "X-Job-Id" in response.headers) == (status, False)
        assert (await get(rig, "/v1/jobs"))[1]["data"] == []


async def test_what_is_refused_after_its_id_was_sent_is_a_failed_job() -> None:
    go_on = asyncio.Event()

    refuse = refuses(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long", param="messages", after=go_on)

    async with router_rig(refuse, sync_timeout_s=0.05) as rig:
        _, body = await rig.chat_json()
        go_on.set()
        job_id = body["error"]["job_id"]
        found = await job_when(rig, job_id, lambda one: one["ended"] is not None)
        assert (found["state"], found["http_status"]) == ("failed", 400)
        assert found["error"]["param"] == "messages"


async def test_a_model_that_does_not_load_fails_the_jobs_that_waited_for_it(rig: Rig) -> None:
    rig.supervisor.acquire_reply = lambda _: Denied(ErrorCode.MODEL_LOAD_FAILED, "it is broken")
    await rig.publish(cold(MODEL), default=MODEL)
    async with rig.chat() as response:
        assert response.status == 503
        found = await job(rig, response.headers["X-Job-Id"])
    assert (found["state"], found["error"]["code"]) == ("failed", "model_load_failed")


async def test_a_stream_that_is_lost_keeps_what_there_was_of_it() -> None:
    async def lose(stream: FakeStream) -> None:
        await silent(stream)
        await stream.fail(ErrorCode.ENGINE_ERROR, "it broke")

    async with router_rig(lose) as rig:
        lines = await rig.chat_events()
        found = await job(rig, json.loads(lines[0])["id"])
        assert (found["state"], found["error"]["code"]) == ("failed", "engine_error")
        choice = found["result"]["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello", None)
        assert found["result"]["usage"] is None
        assert found["tokens"] == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_cancels_its_job(stream: bool) -> None:
    async with router_rig(silent) as rig:
        async with aiohttp.ClientSession() as leaving:
            request = asyncio.create_task(
                leaving.post(f"{rig.url}/v1/chat/completions", json=chat_body(stream=stream))
            )
            running = await only_job_that(rig, lambda found: found["tokens"] == 2)
            assert running["state"] == "running"
            request.cancel()
        found = await job_when(rig, running["id"], lambda one: one["ended"] is not None)
        assert (found["state"], found["error"]["code"]) == ("cancelled", "client_disconnected")
        assert found["result"]["choices"][0]["message"]["content"] == "Hello"
        await until(lambda: rig.worker.streams[0].cancelled)


async def only_job_that(rig: Rig, condition: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(90):
        while not condition(found := await only_job(rig)):
            await asyncio.sleep(0.01)
    return found


async def test_deleting_a_stream_under_way_ends_it_with_an_error_event() -> None:
    async with router_rig(silent) as rig, rig.chat(stream=True) as response:
        job_id = response.headers["X-Job-Id"]
        await only_job_that(rig, lambda found: found["tokens"] == 2)
        status, body = await delete(rig, job_id)
        check_shape(CancelledJob, body)
        assert (status, body["state"], body["deleted"]) == (200, "cancelled", False)
        assert body["result"]["choices"][0]["message"]["content"] == "Hello"
        lines = data_lines(await response.read())
        assert json.loads(lines[-1])["error"]["code"] == "request_cancelled"
        found = await job(rig, job_id)
        assert (found["state"], found["error"]["code"]) == ("cancelled", "request_cancelled")
        await until(lambda: rig.worker.streams[0].cancelled)
        # It has ended now, so that the next one removes it.
        status, body = await delete(rig, job_id)
        check_shape(DeletedJob, body)
        assert (status, body["deleted"]) == (200, True)
        assert (await get(rig, f"/v1/jobs/{job_id}"))[0] == 404


@pytest.mark.parametrize("script", [silent, accepted_only, nothing])
async def test_deleting_a_job_ends_the_request_that_waits_for_it(
    script: Callable[[FakeStream], Awaitable[None]],
) -> None:
    async with router_rig(script) as rig:
        request = asyncio.create_task(rig.chat_json())
        found = await only_job(rig)
        await rig.worker.stream()
        assert (await delete(rig, found["id"]))[1]["state"] == "cancelled"
        status, body = await request
        assert (status, body["error"]["code"]) == (409, "request_cancelled")
        await until(lambda: rig.worker.streams[0].cancelled)


async def test_all_prompts_of_a_completion_are_cancelled_together() -> None:
    async with router_rig(silent) as rig:
        request = asyncio.create_task(rig.post_json("/v1/completions", prompt=["a", "b", "c"]))
        found = await only_job_that(rig, lambda found: found["tokens"] == 6)
        await delete(rig, found["id"])
        assert (await request)[0] == 409
        await until(lambda: all(stream.cancelled for stream in rig.worker.streams))


async def test_a_job_that_waits_for_its_model_has_a_place_and_can_be_cancelled(rig: Rig) -> None:
    await rig.publish(cold(MODEL), default=MODEL)
    first = asyncio.create_task(rig.chat_json())
    await until(lambda: rig.router.queues.waiting(MODEL) == 1)
    second = asyncio.create_task(rig.chat_json(stream=True))
    await until(lambda: rig.router.queues.waiting(MODEL) == 2)
    _, page = await get(rig, "/v1/jobs")
    places = [(one["state"], one["queue_position"]) for one in page["data"]]
    assert places == [("queued", 2), ("queued", 1)]
    _, shown = await get(rig, "/admin/requests", **ADMIN)
    check_shape(RequestList, shown)
    assert [one["state"] for one in shown["data"]] == ["waiting", "waiting"]
    await delete(rig, page["data"][1]["id"])
    assert (await first)[0] == 409
    await delete(rig, page["data"][0]["id"])
    # Nothing of the stream had gone out.
    assert (await second)[0] == 409
    assert rig.router.queues.all_waiting == 0


async def test_a_job_in_the_workers_queue_says_so() -> None:
    go_on = asyncio.Event()

    async def queued(stream: FakeStream) -> None:
        await stream.send(Accepted(stream.request.stream_id, 7, queued=3))
        await go_on.wait()
        await stream.say("now")

    async with router_rig(queued) as rig:
        request = asyncio.create_task(rig.chat_json())
        found = await only_job_that(rig, lambda one: one["queue_position"] is not None)
        assert (found["state"], found["queue_position"], found["started"]) == ("queued", 3, None)
        go_on.set()
        found = await only_job_that(rig, lambda one: one["state"] == "running")
        assert (found["queue_position"], found["tokens"]) == (None, 1)
        await delete(rig, found["id"])
        assert (await request)[0] == 409


async def test_the_sync_timeout_shows_the_job_whose_result_comes_later() -> None:
    go_on = asyncio.Event()

    async with router_rig(plays("Hel", go_on, ends("lo", tokens=2)), sync_timeout_s=0.2) as rig:
        async with rig.chat() as response:
            body = await response.json()
            assert (response.status, body["error"]["code"]) == (504, "sync_timeout")
            job_id = response.headers["X-Job-Id"]
            # OpenAI's client libraries would send it twice more, beside the job that goes on.
            assert response.headers["X-Should-Retry"] == "false"
        assert body["error"]["job_id"] == job_id
        assert f"/v1/jobs/{job_id}" in body["error"]["message"]
        assert (await job(rig, job_id))["state"] == "running"
        assert rig.router.traffic.under_way == 1
        _, shown = await get(rig, "/admin/requests", **ADMIN)
        assert [one["detached"] for one in shown["data"]] == [True]
        go_on.set()
        found = await job_when(rig, job_id, lambda one: one["ended"] is not None)
        assert (found["state"], found["http_status"]) == ("completed", 200)
        assert found["result"]["choices"][0]["message"]["content"] == "Hello"
        assert found["timings"]["total_s"] >= 0.2
        await until(lambda: rig.router.traffic.under_way == 0)
        # The tokens that came later are counted, those of the prompt once.
        totals = rig.router.metrics.read().totals
        assert (totals.prompt_tokens, totals.completion_tokens, totals.requests) == (7, 2, 1)


async def test_a_job_that_continues_alone_can_be_cancelled() -> None:
    async with router_rig(silent, sync_timeout_s=0.05) as rig:
        status, body = await rig.chat_json()
        assert status == 504
        assert (await delete(rig, body["error"]["job_id"]))[1]["state"] == "cancelled"
        await until(lambda: rig.worker.streams[0].cancelled)
        await until(lambda: rig.router.traffic.under_way == 0)


async def test_a_stream_has_no_sync_timeout() -> None:
    async def slow(stream: FakeStream) -> None:
        await asyncio.sleep(0.2)
        await answer(stream)

    async with router_rig(slow, sync_timeout_s=0.05) as rig:
        assert (await rig.chat_events())[-1] == "[DONE]"


async def test_a_router_that_stops_marks_what_it_cuts_off_as_interrupted() -> None:
    async with router_rig(silent, sync_timeout_s=0.05) as rig:
        _, body = await rig.chat_json()
        job_id = body["error"]["job_id"]
        await job_when(rig, job_id, lambda one: one["tokens"] == 2)
        await rig.router.stop(grace_s=0.0)
        path = Path(rig.spec.jobs_path)
        with sqlite3.connect(path) as file:
            state, error, result = file.execute(
                "SELECT state, error, result FROM jobs WHERE id = ?", (job_id,)
            ).fetchone()
        file.close()
        assert (state, json.loads(error)["code"]) == ("interrupted", "shutting_down")
        assert json.loads(result)["choices"][0]["message"]["content"] == "Hello"


async def test_the_list_is_filtered_and_paged(rig: Rig) -> None:
    names = [(await rig.chat_json())[1]["id"] for _ in range(3)]
    names.append((await rig.post_json("/v1/completions", prompt="a"))[1]["id"])
    await rig.chat_json(model="no such model")
    names.reverse()
    _, page = await get(rig, "/v1/jobs?limit=3")
    assert [one["id"] for one in page["data"]] == names[:3]
    assert (page["first_id"], page["last_id"]) == (names[0], names[2])
    assert page["has_more"] is True
    assert "result" not in page["data"][0]
    _, page = await get(rig, f"/v1/jobs?limit=3&after={names[2]}")
    assert [one["id"] for one in page["data"]] == names[3:]
    assert page["has_more"] is False
    for query, count in (
        ("kind=completion", 1),
        ("kind=chat", 3),
        ("state=completed", 4),
        ("state=running", 0),
        (f"model={MODEL}", 4),
        (f"model=owner/{MODEL}", 4),
        ("model=other", 0),
        ("unknown=1", 4),
    ):
        _, page = await get(rig, f"/v1/jobs?{query}")
        assert len(page["data"]) == count, query


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=many", "limit"),
        ("limit=", "limit"),
        ("state=done", "state"),
        ("kind=embedding", "kind"),
        ("after=chatcmpl-none", "after"),
        ("after=%00%ff", "after"),
        ("model=", "model"),
    ],
)
async def test_a_wrong_query_is_a_400_that_names_it(rig: Rig, query: str, param: str) -> None:
    status, body = await get(rig, f"/v1/jobs?{query}")
    assert (status, body["error"]["param"]) == (400, param), body


@pytest.mark.parametrize("job_id", ["chatcmpl-none", "%00", "%ED%A0%80", "x" * 1000, "..%2f.."])
async def test_a_job_that_is_not_there_is_a_404(rig: Rig, job_id: str) -> None:
    for method in ("GET", "DELETE"):
        async with rig.http.request(
            method, URL(f"{rig.url}/v1/jobs/{job_id}", encoded=True)
        ) as response:
            assert response.status == 404
            assert (await response.json())["error"]["code"] == "not_found_error"


async def test_a_key_sees_its_own_jobs_alone() -> None:
    async with router_rig(silent, api_keys=("key-a", "key-b")) as rig:
        a, b = ({"Authorization": f"Bearer key-{which}"} for which in "ab")
        async with rig.http.post(
            f"{rig.url}/v1/chat/completions", json=chat_body(stream=True), headers=a
        ) as response:
            job_id = response.headers["X-Job-Id"]
            assert (await get(rig, f"/v1/jobs/{job_id}", **a))[0] == 200
            assert (await get(rig, f"/v1/jobs/{job_id}", **b))[0] == 404
            assert (await delete(rig, job_id, **b))[0] == 404
            assert (await get(rig, "/v1/jobs", **b))[1]["data"] == []
            assert (await get(rig, f"/v1/jobs?after={job_id}", **b))[0] == 400
            assert (await get(rig, "/v1/jobs"))[0] == 401
            assert len((await get(rig, "/v1/jobs", **a))[1]["data"]) == 1
            assert (await delete(rig, job_id, **a))[1]["state"] == "cancelled"


async def test_a_job_of_another_living_router_is_not_cancelled_from_here(rig: Rig) -> None:
    other = store.JobStore(Path(rig.spec.jobs_path), 3600, 1000, 2**30)
    other.start()
    other.put(JobRow("chatcmpl-there", "chat", MODEL, None, "running", True, 1.0, "r"))
    assert await other.get("chatcmpl-there", None) is not None
    status, body = await delete(rig, "chatcmpl-there")
    assert (status, body["error"]["code"]) == (409, "job_runs_elsewhere")
    assert (await job(rig, "chatcmpl-there"))["state"] == "running"
    other.close(5.0)


async def test_operators_see_and_cancel_the_requests_of_all() -> None:
    async with router_rig(silent) as rig:
        headers = {"X-Request-Id": "mine"}
        first, second = (
            asyncio.create_task(
                rig.http.post(
                    f"{rig.url}/v1/chat/completions", json=chat_body(stream=stream), headers=headers
                )
            )
            for stream in (True, False)
        )
        await until(lambda: len(rig.router.live.all) == 2)
        await until(lambda: all(live.tokens == 2 for live in rig.router.live.all))
        _, shown = await get(rig, "/admin/requests", **ADMIN)
        check_shape(RequestList, shown)
        assert {one["request_id"] for one in shown["data"]} == {"mine"}
        assert {one["state"] for one in shown["data"]} == {"running"}
        assert {one["client"] for one in shown["data"]} == {"127.0.0.1"}
        status, body = await rig.json("POST", "/admin/requests/mine/cancel", headers=ADMIN)
        assert status == 200
        assert [one["cancelled"] for one in body["data"]] == [True, True]
        assert (await second).status == 409
        assert "request_cancelled" in await (await first).text()
        await until(lambda: not rig.router.live.all)
        for name in ("mine", "none"):
            async with rig.http.post(
                f"{rig.url}/admin/requests/{name}/cancel", headers=ADMIN
            ) as response:
                assert response.status == 404
        assert (await get(rig, "/admin/requests"))[0] == 401


async def test_an_embedding_is_under_way_but_no_job(rig: Rig) -> None:
    rig.worker.task_script = lambda _: ()
    await rig.publish(
        *(replace(model, kind=ModelKind.EMBEDDING) for model in rig.supervisor.models),
        default=MODEL,
    )
    request = asyncio.create_task(rig.post_json("/v1/embeddings", model=MODEL, input="a"))
    await until(lambda: rig.worker.tasks)
    _, shown = await get(rig, "/admin/requests", **ADMIN)
    [found] = shown["data"]
    assert (found["kind"], found["state"]) == ("embedding", "running")
    assert (await get(rig, "/v1/jobs"))[1]["data"] == []
    async with rig.http.post(
        f"{rig.url}/admin/requests/{found['id']}/cancel", headers=ADMIN
    ) as response:
        assert response.status == 200
    assert (await request)[0] == 409
    await until(lambda: rig.worker.cancelled_tasks)
    rig.worker.task_script = lambda task: (
        Vectors(task.stream_id, (0,), 1, b"\0\0\0\0"),
        TaskFinished(task.stream_id, 1),
    )
    assert (await rig.post_json("/v1/embeddings", model=MODEL, input="a"))[0] == 200
    assert not rig.router.live.all


async def test_a_task_that_waits_for_its_second_model_is_shown_there(rig: Rig) -> None:
    rig.supervisor.acquire_reply = lambda question: (
        Denied(ErrorCode.MODEL_LOAD_FAILED, "no") if question.model_id == "big" else None
    )
    await rig.publish(
        cold("big", kind=ModelKind.EMBEDDING),
        cold("small", kind=ModelKind.EMBEDDING),
        routes=(Route("auto", ("big", "small")),),
    )
    request = asyncio.create_task(rig.post_json("/v1/embeddings", model="auto", input="a"))
    await until(lambda: rig.router.queues.waiting("small"))
    [found] = (await get(rig, "/admin/requests", **ADMIN))[1]["data"]
    assert (found["model"], found["state"]) == ("small", "waiting")
    request.cancel()


async def test_records_that_cannot_be_written_fail_no_request() -> None:
    async with router_rig(jobs_path="/dev/null/jobs.sqlite") as rig:
        assert (await rig.chat_json())[0] == 200
        assert (await rig.chat_events())[-1] == "[DONE]"
        status, body = await get(rig, "/v1/jobs")
        assert (status, body["error"]["code"]) == (503, "jobs_unavailable")
        await until(lambda: rig.router.jobs.failures > 0)


async def test_a_stream_that_ends_without_having_been_accepted_fails_at_once() -> None:
    async def rude(stream: FakeStream) -> None:
        await stream.finish("text")

    async with router_rig(rude) as rig:
        async with asyncio.timeout(90):
            status, body = await rig.chat_json()
        assert (status, body["error"]["code"]) == (500, "protocol_error")
        assert "had not accepted" in body["error"]["message"]


async def test_the_times_of_several_prompts_are_those_of_the_whole() -> None:
    """Two prompts, one after the other in the worker: 3 tokens in 1 s each."""
    queues = iter((0.0, 2.0))

    async def in_turn(stream: FakeStream) -> None:
        await stream.accept()
        await stream.finish("x", tokens=3, timings=Timings(next(queues), 0.5, 1.0))

    async with router_rig(in_turn) as rig:
        _, body = await rig.post_json("/v1/completions", prompt=["a", "b"])
        timings = body["timings"]
        assert (timings["queue_s"], timings["prefill_s"], timings["decode_s"]) == (0.0, 0.5, 3.0)
        assert timings["tokens_per_s"] == round(4 / 3.0, 2)
