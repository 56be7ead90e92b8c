"""POST /v1/responses through a real router: its answers, errors, and responses that are kept."""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import ResponseErrorEvent

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.protocol.messages.data import Delta, Refused, TokenLogprob, ToolCallPart, TopLogprob
from lmx.protocol.messages.tasks import Tokenize, Tokenized
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.router.http.api_family import OPENAI, RESPONSES
from lmx.router.http.bodies import limits
from lmx.router.http.errors import http_status
from lmx.router.inference.responses.stored import ItemList
from lmx.router.jobs import records
from lmx.router.jobs import store as file
from lmx.router.jobs.live import LiveRequest
from lmx.router.jobs.records import JobRow
from lmx.router.jobs.store import JobStore
from lmx.router.rendering.responses.sealing import sealed, sealing_key
from lmx.router.rendering.responses.state import ResponseObject, failed
from lmx.router.schema.requests.responses import conversation as conversation_form
from tests.support.clients.answer_check import check_shape
from tests.support.clients.codex_request import PATCH, codex_request
from tests.support.clients.sdk_types import extras_of
from tests.support.fakes.fake_peers import FakeStream, ends, fails, plays, until, until_cancelled
from tests.support.rigs.router_rig import MODEL, TEXTS, Rig, router_rig

PATH = "/v1/responses"
WHOLE = "".join(TEXTS)


async def post(rig: Rig, key: str | None = None, **fields: Any) -> tuple[int, Any]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    body = {"model": MODEL, "input": "hi", **fields}
    return await rig.json("POST", PATH, body=body, headers=headers)


async def ask(rig: Rig, method: str, path: str, key: str | None = None) -> tuple[int, Any]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    url = f"{rig.url}{PATH}/{path}"
    async with rig.http.request(method, url, headers=headers) as response:
        found = await response.json()
    if response.status == 200 and found.get("object") == "response" and "deleted" not in found:
        check_shape(ResponseObject, found)
    return response.status, found


async def events(rig: Rig, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": MODEL, "input": "hi", "stream": True, **fields}
    async with rig.http.post(f"{rig.url}{PATH}", json=body) as response:
        assert response.content_type == "text/event-stream", await response.text()
        return events_in(await response.read())


def events_in(raw: bytes) -> list[dict[str, Any]]:
    return [
        json.loads(block.partition("\ndata: ")[2])
        for block in raw.decode().split("\n\n")
        if block and not block.startswith(":")
    ]


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


async def test_an_answer_whole_and_as_a_stream(rig: Rig) -> None:
    status, whole = await post(rig, instructions="Be kind.", metadata={"a": "b"})
    assert status == 200 and text_of(whole) == WHOLE
    found = await events(rig, instructions="Be kind.", metadata={"a": "b"})
    sent = rig.worker.streams[-1].request
    assert sent.messages == (
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"},
    )  # fmt: skip
    last = found[-1]["response"]
    changing = ("id", "created_at", "completed_at", "output", "timings")
    assert {key: last[key] for key in last if key not in changing} == {
        key: whole[key] for key in whole if key not in changing
    }
    assert text_of(last) == WHOLE and whole["metadata"] == {"a": "b"}
    assert whole["usage"]["input_tokens_details"]["cached_tokens"] == 4


async def test_a_custom_tool_and_a_namespace() -> None:
    async def calls(stream: FakeStream) -> None:
        await stream.accept()
        for index, (name, arguments) in enumerate(
            (("sh", '{"input": "ls\\n"}'), ("files__read", '{"path": "a"}'))
        ):
            part = ToolCallPart(index, f"call_{index}", name)
            await stream.send_deltas(Delta(0, arguments, 1, kind=DeltaKind.TOOL_CALL, call=part))
        await stream.finish(reason=FinishReason.TOOL_CALLS, tokens=2)

    read = {"type": "function", "name": "read"}
    tools = [
        {"type": "custom", "name": "sh"},
        {"type": "namespace", "name": "files", "description": "", "tools": [read]},
        {"type": "web_search"},
    ]
    async with router_rig(calls) as rig:
        body = {"model": MODEL, "input": "hi", "tools": tools, "odd": 1}
        async with rig.http.post(f"{rig.url}{PATH}", json=body) as response:
            assert response.headers["X-Lmx-Ignored"] == "odd, tools.web_search"
            made = await response.json()
    custom, function = made["output"]
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "sh", "ls\n")
    assert (function["name"], function["namespace"]) == ("read", "files")
    assert made["tools"] == tools
    assert (made["temperature"], made["presence_penalty"]) == (0.7, 0)


async def test_a_response_that_is_cut_or_fails() -> None:
    async with router_rig(plays(ends("Hel", reason=FinishReason.LENGTH))) as rig:
        status, made = await post(rig)
        found = await events(rig)
    assert status == 200 and made["status"] == made["output"][0]["status"] == "incomplete"
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}
    assert found[-1]["type"] == "response.incomplete"

    async with router_rig(plays("Hel", fails(ErrorCode.ENGINE_ERROR, "broken"))) as rig:
        found = await events(rig)
        assert found[-1]["type"] == "response.failed"
        failed = found[-1]["response"]
        assert failed["error"]["type"] == "engine_error" and text_of(failed) == "Hel"
        status, kept = await ask(rig, "GET", failed["id"])
        assert (status, kept["status"], kept["error"]) == (200, "failed", failed["error"])
        assert text_of(kept) == "Hel"
        status, refused = await post(rig)
        assert (status, refused["error"]["code"]) == (500, "engine_error")


def test_an_error_before_a_response_is_the_library_s_event() -> None:
    for error in (LmxError(ErrorCode.QUEUE_FULL, "why"), RequestError(
        ErrorCode.INVALID_VALUE, "why", param="input"
    )):  # fmt: skip
        data = RESPONSES.error_event(error, None).decode().partition("\ndata: ")[2]
        made = ResponseErrorEvent.model_validate_json(data, strict=True)
        assert not set(extras_of(made))


async def test_errors_are_openai_s() -> None:
    async with router_rig(lambda stream: stream.refuse(ErrorCode.QUEUE_FULL, "full")) as rig:
        for stream in (False, True):
            status, refused = await post(rig, stream=stream)
            assert (status, refused["error"]["code"]) == (429, "queue_full")
        for fields, wanted in (
            ({"model": "none"}, (404, "model_not_found", "model")),
            ({"input": 1}, (400, "invalid_type", "input")),
            ({"previous_response_id": "x"},
             (400, "previous_response_not_found", "previous_response_id")),
            ({"tools": [{"type": "web_search", "x": 10**30}]}, (400, "invalid_value", "tools")),
            ({"input": [{"id": "msg_x"}]}, (404, "not_found_error", "input[0].id")),
        ):  # fmt: skip
            status, refused = await post(rig, **fields)
            assert (status, refused["error"]["code"], refused["error"]["param"]) == wanted
        for method, path in (
            ("GET", "resp_x"), ("DELETE", "resp_" + "0" * 24), ("POST", "resp_x/cancel"),
            ("GET", "resp_x/input_items"),
        ):  # fmt: skip
            status, refused = await ask(rig, method, path)
            assert (status, refused["error"]["code"]) == (404, "not_found_error"), path


@pytest.mark.parametrize("code", ErrorCode)
def test_each_error_has_openai_s_form(code: ErrorCode) -> None:
    error = LmxError(code, "why", param="input")
    assert RESPONSES.error_body(error) == OPENAI.error_body(error)
    only = json.loads(RESPONSES.error_event(error, None).partition(b"\ndata: ")[2])
    assert only == {
        "type": "error", "code": code.value, "message": "why", "param": "input",
        "sequence_number": 0,
    }  # fmt: skip
    shown = failed(error)["error"]
    is_cancelled = code is ErrorCode.REQUEST_CANCELLED
    assert failed(error)["status"] == ("cancelled" if is_cancelled else "failed")
    status = http_status(code)
    kind = (
        "rate_limit_exceeded"
        if status == 429
        else ("invalid_prompt" if status < 500 and not is_cancelled else "server_error")
    )
    assert shown == {"code": kind, "message": "why", "type": code.value}


async def test_a_conversation_that_is_kept(rig: Rig) -> None:
    _, first = await post(rig, instructions="Be kind.")
    status, second = await post(rig, input=[{"role": "user", "content": "more"}],
                                previous_response_id=first["id"])  # fmt: skip
    assert status == 200 and second["previous_response_id"] == first["id"]
    conversation = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": WHOLE},
        {"role": "user", "content": "more"},
    ]
    assert rig.worker.streams[-1].request.messages == tuple(conversation)
    assert (await ask(rig, "GET", first["id"]))[1] == first
    status, listed = await ask(rig, "GET", f"{second['id']}/input_items?order=asc&limit=2")
    check_shape(ItemList, listed)
    assert [item["role"] for item in listed["data"]] == ["user", "assistant"]
    assert listed["has_more"] and listed["data"][1] == first["output"][0]
    after = f"{second['id']}/input_items?order=asc&after={listed['last_id']}"
    rest = await ask(rig, "GET", after)
    assert [item["content"][0]["text"] for item in rest[1]["data"]] == ["more"]
    newest = (await ask(rig, "GET", f"{second['id']}/input_items"))[1]["data"]
    assert [item["role"] for item in newest] == ["user", "assistant", "user"]
    assert newest[0] == rest[1]["data"][0]
    # An item by its id alone, as some clients send it.
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    await post(rig, input=[conversation[0], reference, conversation[2]], store=False)
    assert rig.worker.streams[-1].request.messages == tuple(conversation)
    assert (await ask(rig, "DELETE", first["id"]))[0] == 200
    assert (await ask(rig, "GET", first["id"]))[0] == 404
    # What went on with it can still be shown, but not be gone on with.
    assert (await ask(rig, "GET", second["id"]))[0] == 200
    left = (await ask(rig, "GET", f"{second['id']}/input_items"))[1]["data"]
    assert [item["content"][0]["text"] for item in left] == ["more"]
    status, refused = await post(rig, previous_response_id=second["id"])
    assert (status, refused["error"]["code"]) == (400, "previous_response_not_found")


async def test_what_a_few_bytes_of_a_request_stand_for_is_limited_as_a_request_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with router_rig(body_limit_bytes=20_000) as rig:
        _, made = await post(rig)
        reference = {"id": made["output"][0]["id"]}
        assert (await post(rig, input=[reference] * 20, store=False))[0] == 200
        status, refused = await post(rig, input=[reference] * 200, background=True)
        assert (status, refused["error"]["param"]) == (413, "input")
        key = sealing_key(rig.spec.admin_key)
        monkeypatch.setattr(conversation_form, "_MOST_THOUGHTS", 1_000)
        thought = {"type": "reasoning", "summary": [], "encrypted_content": sealed("a" * 400, key)}
        asked = {"role": "user", "content": "hi"}
        assert (await post(rig, input=[asked, thought, thought, asked]))[0] == 200
        status, refused = await post(rig, input=[asked, thought, thought, thought, asked])
        assert (status, refused["error"]["code"]) == (413, "request_too_large")


async def test_what_requests_continue_is_read_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with router_rig(api_keys=("one", "two")) as rig:
        (_, made), (_, other) = await post(rig, "one"), await post(rig, "two")
        released, reading = asyncio.Event(), 0
        turns = rig.router.jobs.turns

        async def slow(response_id: str, *args: Any) -> Any:
            nonlocal reading
            if response_id == made["id"]:
                reading += 1
                await released.wait()
            return await turns(response_id, *args)

        monkeypatch.setattr(rig.router.jobs, "turns", slow)
        many = [
            asyncio.create_task(post(rig, "one", previous_response_id=made["id"], store=False))
            for _ in range(20)
        ]
        await until(lambda: reading == 4 and rig.router.traffic.under_way == 20)
        assert (await post(rig, "two", previous_response_id=other["id"]))[0] == 200
        assert reading == 4
        released.set()
        async with asyncio.timeout(90):
            assert {status for status, _ in await asyncio.gather(*many)} == {200}


async def test_what_nobody_reads_is_not_kept() -> None:
    item = {"role": "user", "content": [{"type": "input_text", "text": "hi", "junk": [[]]}]}
    async with router_rig() as rig:
        _, made = await post(rig, input=[{**item, "junk": [[]] * 10_000, "huge": 10**30}])
        (shown,) = (await ask(rig, "GET", f"{made['id']}/input_items"))[1]["data"]
        assert {"junk", "huge"}.isdisjoint(shown)
        assert shown["content"] == [{"type": "input_text", "text": "hi"}]


async def test_a_conversation_holds_as_much_as_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many requests within the limits are stored; together they are held to the same limits before
    they are parsed."""
    async with router_rig(api_keys=("one", "two")) as rig:
        previous: Any = None
        parts = [{"type": "input_text", "text": f"{n} {'x' * 40}"} for n in range(250)]
        for _ in range(5):
            _, made = await post(rig, "one", input=[{"role": "user", "content": parts}],
                                 previous_response_id=previous)  # fmt: skip
            previous = made["id"]
        # Each turn has 1,512 values and 16 KB.
        for name, limit in (("MAX_VALUES", 5_000), ("MAX_VALUES", 150_000)):
            monkeypatch.setattr(limits, name, limit)
            for status, found in (
                await ask(rig, "GET", f"{previous}/input_items", "one"),
                await post(rig, "one", previous_response_id=previous),
            ):
                if limit == 5_000:
                    assert (status, found["error"]["code"]) == (413, "request_too_large")
                    assert previous in found["error"]["message"]
                else:
                    assert status == 200, found
        # How large a conversation is, its owner alone is told.
        object.__setattr__(rig.spec, "body_limit_bytes", 40_000)
        assert (await ask(rig, "GET", f"{previous}/input_items", "one"))[0] == 413
        assert (await ask(rig, "GET", f"{previous}/input_items", "two"))[0] == 404


async def test_logprobs_are_shown_and_not_gone_on_with() -> None:
    entry = TokenLogprob(b"hi", -1.0, 1, (TopLogprob(b"hi", -1.0, 1),))

    async with router_rig(plays(Delta(0, "hi", 1, logprobs=(entry,)), ends())) as rig:
        _, made = await post(rig, top_logprobs=1)
        assert made["output"][0]["content"][0]["logprobs"]
        assert (await ask(rig, "GET", made["id"]))[1] == made
        _, second = await post(rig, previous_response_id=made["id"])
        listed = (await ask(rig, "GET", f"{second['id']}/input_items"))[1]["data"]
        assert [part["logprobs"] for part in listed[1]["content"]] == [[]]


async def test_a_response_that_ends_late_is_deleted_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with router_rig(plays("secret", until_cancelled)) as rig:
        body = {"model": MODEL, "input": "hi", "stream": True}
        async with rig.http.post(f"{rig.url}{PATH}", json=body) as response:
            await response.content.readuntil(b"secret")
            (live,) = rig.router.live.all
            # As a write to a client that reads nothing, which delays the end.
            monkeypatch.setattr(LiveRequest, "cancel", lambda _: None)
            assert (await ask(rig, "DELETE", live.id))[1]["deleted"] is True
            assert rig.router.live.get(live.id) is live, "it has not ended"
            for _ in range(2):
                assert (await ask(rig, "GET", live.id))[0] == 404
                async with rig.http.get(f"{rig.url}/v1/jobs/{live.id}") as job:
                    assert job.status == 404
                monkeypatch.undo()
                live.cancel()
                await until(lambda: rig.router.live.get(live.id) is None)


async def test_a_response_that_is_not_kept(rig: Rig) -> None:
    _, made = await post(rig, store=False)
    assert made["store"] is False
    assert (await ask(rig, "GET", made["id"]))[0] == 404
    assert (await post(rig, previous_response_id=made["id"]))[0] == 400


async def test_a_response_belongs_to_its_key() -> None:
    async with router_rig(api_keys=("one", "two")) as rig:
        _, made = await post(rig, "one")
        assert (await ask(rig, "GET", made["id"], "one"))[0] == 200
        for method, path in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/cancel"),
            ("GET", "/input_items"),
        ):
            assert (await ask(rig, method, made["id"] + path, "two"))[0] == 404
        assert (await post(rig, "two", previous_response_id=made["id"]))[0] == 400
        reference = {"type": "item_reference", "id": made["output"][0]["id"]}
        assert (await post(rig, "two", input=[reference]))[0] == 404
        assert (await ask(rig, "GET", made["id"]))[0] == 401


async def test_a_response_outlives_its_router(rig: Rig) -> None:
    _, made = await post(rig)
    assert (await ask(rig, "GET", made["id"]))[0] == 200
    with closing(file.open_records(Path(rig.spec.jobs_path))) as connection:
        stored = records.response(connection, made["id"], None)
        assert stored is not None and json.loads(stored.job.result or b"") == made
        (turn,) = records.turns(connection, made["id"], None, 9, 1_000)
        assert json.loads(turn.output or b"") == made["output"]
        with pytest.raises(OverflowError):
            records.turns(connection, made["id"], None, 9, 100)
        # What another release lets go takes its input along.
        connection.execute("DELETE FROM jobs")
        assert connection.execute("SELECT count(*) FROM responses").fetchone() == (0,)


async def status_when(rig: Rig, response_id: str, wanted: str) -> Any:
    async with asyncio.timeout(90):
        while (found := (await ask(rig, "GET", response_id))[1])["status"] != wanted:
            await asyncio.sleep(0.01)
    return found


async def test_a_response_in_the_background() -> None:
    go_on = asyncio.Event()

    async with router_rig(plays("Hel", go_on, ends("lo"))) as rig:
        status, begun = await post(rig, background=True)
        # Whoever has the id finds the job, even if the router ends now.
        with closing(sqlite3.connect(rig.spec.jobs_path)) as file:
            written = file.execute("SELECT state FROM jobs WHERE id = ?", (begun["id"],))
            assert written.fetchone() is not None
        assert (status, begun["status"], begun["output"]) == (200, "queued", [])
        check_shape(ResponseObject, begun)
        await status_when(rig, begun["id"], "in_progress")
        status, refused = await post(rig, previous_response_id=begun["id"])
        assert (status, refused["error"]["param"]) == (400, "previous_response_id")
        go_on.set()
        ended = await status_when(rig, begun["id"], "completed")
        assert text_of(ended) == "Hello" and ended["background"] is True
        status, same = await ask(rig, "POST", f"{begun['id']}/cancel")
        assert (status, same) == (200, ended)


async def test_a_response_that_is_whole_before_its_id_is_out_begins_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    get = JobStore.get

    async def get_late(store: JobStore, job_id: str, owner: str | None) -> JobRow | None:
        async with asyncio.timeout(90):
            while (row := await get(store, job_id, owner)) is None or row.ended_s is None:
                await asyncio.sleep(0.01)
        return row

    monkeypatch.setattr(JobStore, "get", get_late)
    async with router_rig() as rig:
        status, begun = await post(rig, background=True)
        assert (status, begun["status"], begun["output"]) == (200, "queued", [])
        assert text_of((await ask(rig, "GET", begun["id"]))[1])


async def read_events(rig: Rig, path: str) -> list[dict[str, Any]]:
    async with rig.http.get(f"{rig.url}{PATH}/{path}") as response:
        assert response.content_type == "text/event-stream", await response.text()
        return events_in(await response.read())


async def test_a_stream_in_the_background_can_be_left_and_followed_again() -> None:
    go_on = asyncio.Event()

    body = {"model": MODEL, "input": "hi", "stream": True, "background": True}
    async with router_rig(plays("Hel", go_on, "lo ", ends("you"))) as rig:
        async with rig.http.post(f"{rig.url}{PATH}", json=body) as response:
            seen = b""
            while b"Hel" not in seen or not seen.endswith(b"\n\n"):
                seen += await response.content.readany()
        first = events_in(seen)
        response_id, last = first[0]["response"]["id"], first[-1]["sequence_number"]
        query = f"{response_id}?stream=true&starting_after={last}"
        follower = asyncio.create_task(read_events(rig, query))
        await status_when(rig, response_id, "in_progress")
        go_on.set()
        rest = await follower
        assert [event["sequence_number"] for event in first + rest] == list(
            range(len(first) + len(rest))
        )
        assert text_of(rest[-1]["response"]) == "Hello you"
        usage = rest[-1]["response"]["usage"]
        await until(lambda: not rig.router.live.all)
        totals = rig.router.metrics.read().totals
        assert (totals.prompt_tokens, totals.completion_tokens) == (
            usage["input_tokens"], usage["output_tokens"]
        )  # fmt: skip
        whole = await read_events(rig, f"{response_id}?stream=true")
        assert whole == first + rest
        assert (await ask(rig, "GET", response_id))[1] == whole[-1]["response"]
        _, plain = await post(rig)
        refused = await ask(rig, "GET", f"{plain['id']}?stream=true")
        assert (refused[0], refused[1]["error"]["param"]) == (400, "stream")


async def test_a_stream_in_the_background_that_is_refused_or_cancelled() -> None:
    async with router_rig(lambda stream: stream.refuse(ErrorCode.QUEUE_FULL, "full")) as rig:
        (event,) = await events(rig, background=True)
        assert (event["type"], event["code"]) == ("error", "queue_full")

    async with router_rig(plays("Hel", until_cancelled)) as rig:
        stream = asyncio.create_task(events(rig, background=True))
        await until(lambda: any(live.tokens for live in rig.router.live.all))
        (live,) = rig.router.live.all
        assert (await ask(rig, "POST", f"{live.id}/cancel"))[1]["status"] == "cancelled"
        last = (await stream)[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "cancelled"
        assert last["response"]["error"]["type"] == "request_cancelled"


async def test_a_response_whose_answer_could_not_be_kept_is_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for what can't be written is bounded: the record says how it ended."""
    put = JobStore.put

    def put_without_a_result(store: JobStore, row: JobRow) -> None:
        row.result = None
        put(store, row)

    monkeypatch.setattr(JobStore, "put", put_without_a_result)
    _, made = await post(rig)
    status, kept = await ask(rig, "GET", made["id"])
    assert (status, kept["status"], text_of(kept)) == (200, "completed", WHOLE)


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_a_response_in_the_background_is_cancelled(method: str) -> None:
    async with router_rig(plays("Hel", until_cancelled)) as rig:
        _, begun = await post(rig, background=True)
        await status_when(rig, begun["id"], "in_progress")
        if method == "POST":
            status, cancelled = await ask(rig, "POST", f"{begun['id']}/cancel")
            assert (status, cancelled["status"]) == (200, "cancelled")
            assert (await ask(rig, "GET", begun["id"]))[1] == cancelled
        else:
            assert (await ask(rig, "DELETE", begun["id"]))[0] == 200
            assert (await ask(rig, "GET", begun["id"]))[0] == 404
        await until(lambda: rig.worker.streams[-1].cancelled)


async def test_a_response_in_the_background_that_is_refused() -> None:
    async with router_rig(lambda stream: stream.refuse(ErrorCode.QUEUE_FULL, "full")) as rig:
        status, begun = await post(rig, background=True)
        assert status == 200
        failed = await status_when(rig, begun["id"], "failed")
    assert failed["error"] == {
        "code": "rate_limit_exceeded", "message": "full", "type": "queue_full",
    }  # fmt: skip


async def test_the_tokens_of_an_input() -> None:
    def count(task: Tokenize) -> Iterator[Tokenized]:
        yield Tokenized(task.stream_id, (5, 6), 256)

    async with router_rig() as rig:
        rig.worker.task_script = count
        status, counted = await rig.post_json(
            f"{PATH}/input_tokens", model=MODEL, input="hi", instructions="Be kind."
        )
    assert status == 200
    assert counted == {"object": "response.input_tokens", "input_tokens": 2}


async def test_a_worker_s_refusal_to_count_names_the_input() -> None:
    def refuse(task: Tokenize) -> Iterator[Refused]:
        yield Refused(task.stream_id, ErrorCode.INVALID_VALUE, "no", "messages")

    async with router_rig() as rig:
        rig.worker.task_script = refuse
        status, body = await rig.post_json(f"{PATH}/input_tokens", model=MODEL, input="hi")
    assert (status, body["error"]["param"]) == (400, "input")


async def test_a_request_of_codex() -> None:
    async def patches(stream: FakeStream) -> None:
        await stream.accept()
        part = ToolCallPart(0, "call_3", "apply_patch")
        arguments = json.dumps({"input": PATCH})
        await stream.send_deltas(
            Delta(0, "Again.", 1, kind=DeltaKind.REASONING),
            Delta(0, arguments[:30], 1, kind=DeltaKind.TOOL_CALL, call=part),
            Delta(0, arguments[30:], 1, kind=DeltaKind.TOOL_CALL, call=ToolCallPart(0)),
        )
        await stream.finish(reason=FinishReason.TOOL_CALLS, tokens=2)

    body = codex_request(MODEL, "And y.")
    assert len(json.dumps(body)) > 45_000 and len(body["tools"]) == 13
    assert {tool["type"] for tool in body["tools"]} == {"function", "custom", "web_search"}
    async with router_rig(patches) as rig:
        async with rig.http.post(f"{rig.url}{PATH}", json=body) as response:
            assert response.status == 200, await response.text()
            assert response.headers["X-Lmx-Ignored"].split(", ") == [
                "client_metadata", "tools.web_search", "input.encrypted_content",
                "input.web_search_call",
            ]  # fmt: skip
            found = events_in(await response.read())
        sent = rig.worker.streams[-1].request
        # The next turn: all that came is sent back, with the token of the thoughts alone.
        thoughts, call = found[-1]["response"]["output"]
        body["input"] += [
            {**thoughts, "summary": [], "content": None},
            call,
            {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done."},
        ]
        async with rig.http.post(f"{rig.url}{PATH}", json=body) as response:
            assert response.status == 200
            await response.read()
        after = rig.worker.streams[-1].request.messages
    assert call["type"] == "custom_tool_call" and call["input"] == PATCH
    assert sent.messages is not None and after is not None
    assert [message["role"] for message in sent.messages] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "user",
    ]  # fmt: skip
    assert sent.messages[2]["reasoning_content"] == "Look first."
    assert sent.tool_use is not None and len(sent.tool_use.tools) == 12
    # Nothing of what was there changes: the prefix cache has all of it.
    assert after[: len(sent.messages)] == sent.messages
    assert after[-2]["reasoning_content"] == "Again."
    assert json.loads(after[-2]["tool_calls"][0]["function"]["arguments"]) == {"input": PATCH}
