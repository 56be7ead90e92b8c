"""Batches by the official library's own calls, held strictly to its types."""

import asyncio
import json
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import openai
import pytest
from openai.types import Batch
from openai.types.chat import ChatCompletion

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.control import Acquire, Denied, LoadPlan, PlanLoad
from lmx.protocol.messages.data import BACKGROUND_PRIORITY
from lmx.protocol.messages.keys import ApiKey, Keyring
from lmx.protocol.messages.specs import FilesSpec
from lmx.protocol.messages.tasks import Embed, TaskFinished, Vectors
from lmx.protocol.states import LoadOutcome, ModelKind, SlotState
from lmx.router import record_file
from lmx.router.files import batch_tables
from lmx.router.files.batch_tables import BatchRow, LineRow, Result
from lmx.router.files.blobs import BlobWriter
from lmx.router.files.store import FileStore, check_cancelling, input_name
from lmx.router.inference.batches import openai as openai_routes
from lmx.router.inference.batches import runner, validation
from lmx.router.inference.batches.lines import LineFault, parse_line
from lmx.router.inference.batches.output import finish
from lmx.router.inference.batches.runner import BatchRunner
from tests.support.clients.sdk_types import checked
from tests.support.fakes.fake_peers import FakeStream, cold, ready, until
from tests.support.references.document_blocks import blocks
from tests.support.rigs.rig import ROOT
from tests.support.rigs.router_rig import INSTANCE, MODEL, TEXTS, Rig, answer, router_rig

ONE, OTHER = "sk-lmx-one-of-this-test", "sk-lmx-other-of-this-test"
KEYS = (ApiKey.of_secret(ONE, "one"), ApiKey.of_secret(OTHER, "other"))
ENDED = ("completed", "failed", "expired", "cancelled")
CHAT: Final = "/v1/chat/completions"
DEEP: Final[Any] = json.loads("[" * 300 + "]" * 300)
"""It can be parsed, and not be written again."""


def sdk(rig: Rig, key: str = ONE) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key=key, max_retries=0, timeout=90)


def line(custom_id: str, text: Any = "hi", **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **fields}


def jsonl(*lines: Any) -> bytes:
    return b"".join(
        (one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines
    )


async def begun(client: openai.AsyncOpenAI, content: bytes, endpoint: Any = CHAT) -> Batch:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    raw = await client.batches.with_raw_response.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"a": "b"}
    )
    return checked(Batch, raw.text)


async def ended(client: openai.AsyncOpenAI, batch: Batch) -> Batch:
    async with asyncio.timeout(90):
        while batch.status not in ENDED:
            await asyncio.sleep(0.05)
            raw = await client.batches.with_raw_response.retrieve(batch.id)
            batch = checked(Batch, raw.text)
    return batch


async def lines_of(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    content = await client.files.content(file_id)
    return [json.loads(one) for one in content.content.splitlines()]


async def test_the_library_s_own_calls() -> None:
    async with router_rig(api_keys=KEYS) as rig, sdk(rig) as client, sdk(rig, OTHER) as stranger:
        refused = line("bad")
        refused["body"]["temperature"] = 99
        batch = await begun(client, jsonl(line("a"), b"", refused, line("b")))
        assert (batch.status, batch.metadata) == ("validating", {"a": "b"})
        # The batch has its input for itself.
        await until(lambda: rig.router.batches.unfinished == 0)
        done = await ended(client, batch)
        assert done.status == "completed"
        counts = done.request_counts
        assert counts is not None
        assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
        assert done.model == MODEL
        assert done.usage is not None
        assert done.usage.output_tokens == 2 * len(TEXTS)
        assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at  # type: ignore[operator]

        output = await lines_of(client, done.output_file_id)
        assert [one["custom_id"] for one in output] == ["a", "b"]
        for one in output:
            assert set(one) == {"id", "custom_id", "response", "error"}
            assert one["error"] is None
            response = one["response"]
            assert response["status_code"] == 200
            made = checked(ChatCompletion, json.dumps(response["body"]))
            assert made.choices[0].message.content == "".join(TEXTS)
        (fault,) = await lines_of(client, done.error_file_id)
        assert (fault["custom_id"], fault["response"]["status_code"]) == ("bad", 400)
        assert fault["response"]["body"]["error"]["param"] == "temperature"
        file = await client.files.retrieve(done.output_file_id or "")
        assert file.purpose == "batch_output"
        assert {one.request.priority for one in rig.worker.streams} == {BACKGROUND_PRIORITY}

        # Lines count to the usage of their key, and leave no jobs.
        _, body = await rig.json("GET", "/v1/usage", headers={"Authorization": f"Bearer {ONE}"})
        today = body["days"][-1]
        assert (today["requests"], today["errors"]) == (3, 1)
        assert (await rig.admin("GET", "/admin/metrics/json"))[0] == 200
        _, found = await rig.json("GET", "/v1/jobs", headers={"Authorization": f"Bearer {ONE}"})
        assert found["data"] == []

        # To another key none of it exists.
        for call in (stranger.batches.retrieve, stranger.batches.cancel):
            with pytest.raises(openai.NotFoundError, match="No batch found with id"):
                await call(batch.id)
        with pytest.raises(openai.NotFoundError, match="No such File object"):
            await stranger.batches.create(
                input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
            )
        assert [one async for one in stranger.batches.list()] == []
        second = await ended(client, await begun(client, jsonl(line("a"))))
        assert [one.id async for one in client.batches.list(limit=1)] == [second.id, batch.id]
        with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status"):
            await client.batches.cancel(batch.id)

        # Nor does it for anybody once the last key is revoked, and nobody needs one.
        rig.router.keys.put(Keyring.of(()))
        assert [one async for one in client.batches.list()] == []
        with pytest.raises(openai.NotFoundError, match="No batch found with id"):
            await client.batches.retrieve(batch.id)


async def test_a_line_continues_no_conversation() -> None:
    async with router_rig(api_keys=KEYS) as rig, sdk(rig) as client:
        kept = await client.conversations.create()
        body = {"model": MODEL, "input": "hi", "conversation": kept.id}
        path: Any = "/v1/responses"
        done = await ended(client, await begun(client, jsonl(line("a", url=path, body=body)), path))
        (fault,) = await lines_of(client, done.error_file_id)
        assert fault["response"]["status_code"] == 400
        assert fault["response"]["body"]["error"]["param"] == "conversation"


def test_a_line_that_is_no_json_is_not_held() -> None:
    faults = []
    for _ in range(2):
        with pytest.raises(LineFault) as caught:
            parse_line(b"no json", CHAT)
        faults.append(caught.value)
    assert faults[0] is not faults[1], "its traceback would grow, and hold every line"


@pytest.mark.parametrize(
    ("content", "faults"),
    [
        (b"", [("empty_file", None, None)]),
        (b"\n \n", [("empty_file", None, None)]),
        (
            jsonl(b"no json", b"[1]", line("a")),
            [("invalid_json_line", 1, None), ("invalid_json_line", 2, None)],
        ),
        (jsonl(line("a"), line("b"), line("a")), [("duplicate_custom_id", 3, "custom_id")]),
        (jsonl({**line("a"), "url": "/v1/embeddings"}), [("url_mismatch", 1, "url")]),
        (jsonl({**line("a"), "method": "GET"}), [("invalid_method", 1, "method")]),
        (jsonl({"custom_id": "a"}), [("missing_required_parameter", 1, "method")]),
        (jsonl(line("", "x")), [("invalid_value", 1, "custom_id")]),
        (jsonl({**line("a"), "body": {"model": "none"}}), [("model_not_found", 1, "body.model")]),
        (jsonl({**line("a"), "body": {"stream": True}}), [("invalid_value", 1, "body.stream")]),
        (jsonl({**line("a"), "body": 5}), [("invalid_type", 1, "body")]),
        (jsonl(line("a", DEEP)), [("invalid_value", 1, "body")]),
        (b"{}\n" * 50_001, None),
    ],
)
async def test_what_is_wrong_with_the_input(
    content: bytes, faults: list[tuple[str, int | None, str | None]] | None
) -> None:
    async with router_rig() as rig, sdk(rig) as client:
        batch = await ended(client, await begun(client, content))
        assert batch.status == "failed"
        assert batch.errors is not None
        found = [(one.code, one.line, one.param) for one in batch.errors.data or ()]
        if faults is None:
            assert len(found) == 100
        else:
            assert found == faults
        assert not rig.worker.streams
        assert batch.output_file_id is batch.error_file_id is None


async def test_more_lines_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MOST_LINES", 600)
    async with router_rig() as rig, sdk(rig) as client:
        content = jsonl(*(line(str(number)) for number in range(601)))
        batch = await ended(client, await begun(client, content))
        assert batch.errors is not None
        assert [one.code for one in batch.errors.data or ()] == ["too_many_tasks"]


async def test_what_a_batch_can_t_be_made_of() -> None:
    async with router_rig() as rig, sdk(rig) as client:
        file = await client.files.create(file=b"x", purpose="user_data")
        for fields, param in (
            ({"input_file_id": file.id}, "input_file_id"),
            ({"endpoint": "/v1/moderations"}, "endpoint"),
            ({"completion_window": "1h"}, "completion_window"),
            ({"metadata": {"a": 1}}, "metadata.a"),
        ):
            body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
            status, shown = await rig.post_json("/v1/batches", **{**body, **fields})
            assert (status, shown["error"]["param"]) == (400, param)
        for wanted in ("../x", "file-" + "0" * 24, "batch_1"):
            body = {"input_file_id": wanted, "endpoint": CHAT, "completion_window": "24h"}
            assert (await rig.post_json("/v1/batches", **body))[0] == 404


def held() -> tuple[Callable[[FakeStream], Any], list[FakeStream]]:
    """A script that accepts and waits, and the streams that wait."""
    waiting: list[FakeStream] = []

    async def script(stream: FakeStream) -> None:
        await stream.accept()
        waiting.append(stream)
        await until(lambda: stream.cancelled)

    return script, waiting


def texts(streams: Sequence[FakeStream]) -> list[str]:
    return [(stream.request.messages or ({},))[-1]["content"] for stream in streams]


def test_vectors_are_not_parsed_for_their_tokens() -> None:
    """Those of one line may be 40 MB, which would hold up everybody for a tenth of a second."""
    rest = b'"model":"\\"usage\\":{}","usage":{"prompt_tokens":7,"total_tokens":7}}'
    vectors = b'{"object":"list","data":[numbers],' + rest
    assert runner.tokens_of("/v1/embeddings", vectors) == (7, 0, 0, 0)
    chat = b'{"usage":{"prompt_tokens":7,"completion_tokens":3},"timings":{}}'
    assert runner.tokens_of(CHAT, chat) == (7, 0, 3, 0)


async def test_a_batch_of_vectors_stands_still_for_others_in_its_worker() -> None:
    """The worker is told so, and how long it may take then. A large answer is whole."""
    count, dimensions = 40, 1024
    part = struct.pack(f"<{dimensions}f", *([0.25] * dimensions)) * count

    def embeds(task: Any) -> Iterable[Any]:
        yield Vectors(task.stream_id, tuple(range(count)), dimensions, part)
        yield TaskFinished(task.stream_id, 11)

    async with router_rig() as rig, sdk(rig) as client:
        rig.worker.task_script = embeds
        model = ready(MODEL, INSTANCE, kind=ModelKind.EMBEDDING)
        await rig.publish(model, default=MODEL)
        asked = {"model": MODEL, "input": ["a"] * count}
        path = "/v1/embeddings"
        done = await ended(
            client, await begun(client, jsonl(line("a", url=path, body=asked)), endpoint=path)
        )
        (found,) = await lines_of(client, done.output_file_id)
        body = found["response"]["body"]
        assert [len(one["embedding"]) for one in body["data"]] == [dimensions] * count
        assert done.usage is not None
        assert (done.usage.input_tokens, done.usage.total_tokens) == (11, 11)
        assert (await rig.post_json(path, **asked))[0] == 200
        limits = [
            (task.background, task.deadline_s)
            for task in rig.worker.tasks
            if isinstance(task, Embed)
        ]
        assert limits == [(True, 86_400), (False, 600)]


async def test_a_person_comes_first() -> None:
    script, waiting = held()
    async with router_rig(script) as rig, sdk(rig) as client:
        # With a person's request under way no line begins.
        person = asyncio.create_task(rig.chat_json())
        await until(lambda: len(waiting) == 1)
        batch = await begun(client, jsonl(*(line(str(n)) for n in range(3))))
        await until(lambda: rig.router.batches.lines_left == 3)
        await asyncio.sleep(0.3)
        assert len(rig.worker.streams) == 1
        rig.worker.script = answer
        await waiting[0].finish("x")
        assert (await person)[0] == 200
        assert (await ended(client, batch)).status == "completed"


async def test_a_model_that_is_drained_keeps_no_other_waiting() -> None:
    async with router_rig(api_keys=KEYS[:1]) as rig, sdk(rig) as client:
        drained = cold("drained", SlotState.HELD, kind=ModelKind.CHAT)
        await rig.publish(ready(MODEL, INSTANCE), drained)
        # More of them than are known ahead.
        waiting = [line(f"waits {number}") for number in range(70)]
        for one in waiting:
            one["body"]["model"] = "drained"
        first = await begun(client, jsonl(*waiting, line("a")))
        await until(lambda: len(rig.worker.streams) == 1)
        second = await ended(client, await begun(client, jsonl(line("b"))))
        assert second.status == "completed"
        assert (await client.batches.retrieve(first.id)).status == "in_progress"
        await rig.publish(ready(MODEL, INSTANCE), ready("drained", INSTANCE))
        assert (await ended(client, first)).status == "completed"


async def test_a_drained_machine_begins_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    script, waiting = held()
    async with router_rig(script) as rig, sdk(rig) as client:
        batches, models = rig.router.batches, rig.supervisor.models
        begin_lines, looks = batches._begin_lines, 0

        async def begins() -> None:
            nonlocal looks
            await begin_lines()
            looks += bool(batches._batches)

        monkeypatch.setattr(batches, "_begin_lines", begins)
        # The second model would be loaded.
        views = (*models, cold("cold", kind=ModelKind.CHAT))
        await rig.publish(*views, default=MODEL, drained=True)
        other = line("b")
        other["body"]["model"] = "cold"
        found = [await begun(client, jsonl(one)) for one in (line("a"), other)]
        await until(lambda: len(batches._batches) == 2)
        looks = 0
        await until(lambda: looks >= 3)
        assert not any(one.running for one in batches._batches.values())
        assert not rig.asked(PlanLoad)
        rig.worker.script = answer
        await rig.publish(*models, ready("cold", INSTANCE), default=MODEL)
        assert [(await ended(client, one)).status for one in found] == ["completed"] * 2
        assert not waiting


async def test_a_batch_whose_last_line_ends_on_a_drained_machine_ends_there() -> None:
    script, waiting = held()
    async with router_rig(script) as rig, sdk(rig) as client:
        batch = await begun(client, jsonl(line("a")))
        await until(lambda: len(waiting) == 1)
        await rig.publish(*rig.supervisor.models, default=MODEL, drained=True)
        await waiting[0].finish("x")
        assert (await ended(client, batch)).status == "completed"


async def test_suspects_of_a_quarantined_model_keep_no_other_batch_waiting() -> None:
    script, waiting = held()
    async with router_rig(script, api_keys=KEYS[:1]) as rig, sdk(rig) as client:
        await rig.publish(ready("bad", INSTANCE, max_rows=4), cold(MODEL, SlotState.HELD))
        asked = [line(str(number)) for number in range(3)]
        for one in asked:
            one["body"]["model"] = "bad"
        first = await begun(client, jsonl(*asked, line("a")))
        await until(lambda: len(waiting) == 3)
        quarantined = cold("bad", SlotState.QUARANTINED, kind=ModelKind.CHAT)
        rig.worker.script = answer
        await rig.publish(ready(MODEL, INSTANCE), quarantined)
        for stream in waiting:
            await stream.fail(ErrorCode.WORKER_CRASHED, "no")
        second = await ended(client, await begun(client, jsonl(line("b"))))
        assert second.status == "completed"
        # So do the other lines of their own batch.
        await until(lambda: rig.router.batches.lines_left == 3)
        assert (await client.batches.retrieve(first.id)).status == "in_progress"
        await rig.publish(ready(MODEL, INSTANCE), ready("bad", INSTANCE))
        done = await ended(client, first)
        assert done.request_counts is not None
        assert (done.status, done.request_counts.completed) == ("completed", 4)


async def test_cancelling() -> None:
    script, waiting = held()
    async with router_rig(script) as rig, sdk(rig) as client:
        batch = await begun(client, jsonl(line("a"), line("b")))
        await until(lambda: bool(waiting))
        stopped = await client.batches.cancel(batch.id)
        assert stopped.status == "cancelling"
        with suppress(openai.ConflictError):  # It may have ended by now.
            assert (await client.batches.cancel(batch.id)).status in ("cancelling", "finalizing")
        done = await ended(client, batch)
        assert done.status == "cancelled"
        await until(lambda: waiting[0].cancelled)
        faults = await lines_of(client, done.error_file_id)
        assert [(one["custom_id"], one["error"]["code"]) for one in faults] == [
            ("a", "batch_cancelled"), ("b", "batch_cancelled"),
        ]  # fmt: skip


def unread(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let the records of batches be read only once the event is set."""
    go, really = asyncio.Event(), BatchRunner._read_records

    async def read(batches: BatchRunner) -> None:
        await go.wait()
        await really(batches)

    monkeypatch.setattr(BatchRunner, "_read_records", read)
    return go


@pytest.mark.parametrize("is_begun", [False, True], ids=["not begun", "begun"])
async def test_a_batch_is_cancelled_before_its_lines_are_known(
    is_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output has all of them all the same."""
    validating, cancelled, really = asyncio.Event(), asyncio.Event(), validation.validate

    async def validated(*given: Any) -> None:
        validating.set()
        await cancelled.wait()
        await really(*given)

    monkeypatch.setattr(runner, "validate", validated)
    go = unread(monkeypatch)
    async with router_rig() as rig, sdk(rig) as client:
        batch = await begun(client, jsonl(line("a"), line("b")))
        if is_begun:
            go.set()
            await validating.wait()
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        go.set()
        cancelled.set()
        done = await ended(client, batch)
        assert (done.status, done.in_progress_at) == ("cancelled", None)
        counts = done.request_counts
        assert counts is not None
        assert (counts.total, counts.completed, counts.failed) == (2, 0, 2)
        faults = await lines_of(client, done.error_file_id)
        assert [one["custom_id"] for one in faults] == ["a", "b"]
        wrong = await begun(client, b"no json\n")
        assert (await ended(client, wrong)).status == "failed"


async def test_an_input_that_can_t_be_read_puts_off_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def validated(*_: Any) -> None:
        raise OSError("the disk is broken")

    monkeypatch.setattr(runner, "validate", validated)
    monkeypatch.setattr(runner, "_DELAY_S", 0.01)
    go = unread(monkeypatch)
    async with router_rig() as rig, sdk(rig) as client:
        cancelled = await begun(client, jsonl(line("a")))
        await client.batches.cancel(cancelled.id)
        monkeypatch.setattr(openai_routes, "WINDOW_S", 0)
        late = await begun(client, jsonl(line("a")))
        go.set()
        assert (await ended(client, cancelled)).status == "cancelled"
        assert (await ended(client, late)).status == "expired"


async def test_a_cancel_is_judged_by_what_it_finds(tmp_path: Path) -> None:
    files = FileStore(tmp_path / "files.sqlite", FilesSpec(str(tmp_path / "files")))
    row = BatchRow("batch_1", None, "openai", CHAT, "file-1", "in_progress", 1, 2)
    files.start()
    try:
        await files.perform(lambda records: batch_tables.add(records, row, 1, 9, files.quota))
        # Of two at the same time, the second one too.
        for found in await asyncio.gather(*(files.cancel_batch(row.id) for _ in range(2))):
            assert found is not None and found.status == "cancelling"
            check_cancelling(found)
        await files.perform(
            lambda records: batch_tables.change(
                records, row.id, ("cancelling",), status="finalizing", end="completed"
            )
        )
        found = await files.cancel_batch(row.id)
        assert found is not None
        with pytest.raises(LmxError, match="a batch with status 'finalizing'"):
            check_cancelling(found)
        assert await files.cancel_batch("batch_2") is None
    finally:
        await asyncio.to_thread(files.close, 10.0)


async def test_somebody_comes_while_a_line_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    script, waiting = held()
    chosen, go, passed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def is_free(_: str) -> bool:
        chosen.set()
        await go.wait()
        return True

    async with router_rig(script) as rig, sdk(rig) as client:
        batches = rig.router.batches
        begin_lines = batches._begin_lines

        async def begins() -> None:
            await begin_lines()
            if go.is_set():
                passed.set()

        monkeypatch.setattr(batches, "_is_free", is_free)
        monkeypatch.setattr(batches, "_begin_lines", begins)
        batch = await begun(client, jsonl(line("a")))
        await chosen.wait()
        person = asyncio.create_task(rig.chat_json())
        await until(lambda: len(waiting) == 1)
        go.set()
        await passed.wait()
        assert not any(one.running for one in batches._batches.values())
        rig.worker.script = answer
        await waiting[0].finish("x")
        assert (await person)[0] == 200
        assert (await ended(client, batch)).status == "completed"


@pytest.mark.parametrize(
    ("code", "no_loads", "status"),
    [
        (ErrorCode.WORKER_LOST, None, None),
        (ErrorCode.QUEUE_TIMEOUT, None, None),
        (ErrorCode.INSUFFICIENT_DISK, None, None),
        (ErrorCode.INSUFFICIENT_MEMORY, "memory is short", None),
        # The model is loaded and memory is not short: the line itself is too large.
        (ErrorCode.INSUFFICIENT_MEMORY, None, 503),
        (ErrorCode.ENGINE_ERROR, None, 500),
    ],
)
async def test_a_line_that_could_not_be_answered(
    code: ErrorCode, no_loads: str | None, status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What passes is tried until it has; what may be the line's doing, once more and alone."""
    monkeypatch.setattr(runner, "_PAUSES_S", (0.01,))
    seen: list[str] = []

    async def script(stream: FakeStream) -> None:
        (text,) = texts([stream])
        seen.append(text)
        if text == "poison" and (status is not None or seen.count(text) < 3):
            await stream.accept()
            await stream.fail(code, "no")
            return
        await answer(stream)

    async with router_rig(script, api_keys=KEYS) as rig, sdk(rig) as client:
        model = ready(MODEL, INSTANCE, max_rows=4, created_s=1)
        await rig.publish(model, default=MODEL, no_loads=no_loads)
        batch = await begun(client, jsonl(line("a"), line("p", "poison"), line("b")))
        done = await ended(client, batch)
        assert done.request_counts is not None
        _, body = await rig.json("GET", "/v1/usage", headers={"Authorization": f"Bearer {ONE}"})
        assert bool(body["days"][-1]["errors"]) is (status is not None)
        if status is None:
            assert done.request_counts.completed == 3
            assert seen.count("poison") == 3
        else:
            (fault,) = await lines_of(client, done.error_file_id)
            assert (fault["custom_id"], fault["response"]["status_code"]) == ("p", status)
            assert seen.count("poison") == 2
        assert seen.count("hi") == 2


async def test_a_line_is_not_too_large_while_the_model_answers_another_owner_s() -> None:
    """Theirs may hold the memory: that a line is alone among its owner's tells nothing."""
    theirs_may_end = asyncio.Event()
    seen: list[str] = []

    async def script(stream: FakeStream) -> None:
        (text,) = texts([stream])
        seen.append(text)
        if text == "theirs":
            await theirs_may_end.wait()
        elif seen.count(text) < 3:
            await stream.accept()
            await stream.fail(ErrorCode.INSUFFICIENT_MEMORY, "no")
            return
        await answer(stream)

    rigged = router_rig(script, api_keys=KEYS)
    async with rigged as rig, sdk(rig) as client, sdk(rig, OTHER) as other:
        await rig.publish(ready(MODEL, INSTANCE, max_rows=4, created_s=1), default=MODEL)
        held_up = await begun(other, jsonl(line("t", "theirs")))
        await until(lambda: seen == ["theirs"])
        done = await ended(client, await begun(client, jsonl(line("o", "ours"))))
        assert (done.request_counts and done.request_counts.failed) == 0
        theirs_may_end.set()
        assert (await ended(other, held_up)).status == "completed"


async def test_another_router_resumes_where_one_has_ended(tmp_path: Path) -> None:
    """No line is lost and none is answered twice in the output, at whatever line it ended."""
    spec: dict[str, Any] = {
        "files": FilesSpec(str(tmp_path / "files")), "jobs_path": str(tmp_path / "jobs.sqlite"),
    }  # fmt: skip
    seen: list[str] = []
    stuck: list[FakeStream] = []
    numbers = [str(number) for number in range(30)]

    async def some(stream: FakeStream) -> None:
        if len(seen) >= 8 * (len(stuck) + 1):
            stuck.append(stream)
            await stream.accept()
            await until(lambda: stream.cancelled)
            return
        seen.extend(texts([stream]))
        await answer(stream)

    async with router_rig(some, **spec) as rig, sdk(rig) as client:
        batch = await begun(client, jsonl(*(line(number, number) for number in numbers)))
        await until(lambda: len(stuck) == 1)
    async with router_rig(some, **spec):
        await until(lambda: len(stuck) == 2)
    async with router_rig(**spec) as rig, sdk(rig) as client:
        done = await ended(client, batch)
        assert done.status == "completed"
        output = await lines_of(client, done.output_file_id)
        assert [one["custom_id"] for one in output] == numbers
        seen += texts(rig.worker.streams)
        assert sorted(seen) == sorted(numbers), "what was answered is not answered again"


async def test_a_key_that_is_revoked_ends_its_batches() -> None:
    script, waiting = held()
    async with router_rig(script, api_keys=KEYS) as rig, sdk(rig) as client:
        batch = await begun(client, jsonl(line("a"), line("b")))
        await until(lambda: bool(waiting))
        rig.router.keys.put(Keyring.of(KEYS[1:]))
        await until(lambda: waiting[0].cancelled)
        rig.router.keys.put(Keyring.of(KEYS))
        assert (await ended(client, batch)).status == "cancelled"


@pytest.mark.parametrize("window_s", [0, 1])
async def test_the_time_of_a_batch_is_over(window_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script, _ = held()
    monkeypatch.setattr(openai_routes, "WINDOW_S", window_s)
    async with router_rig(script) as rig, sdk(rig) as client:
        done = await ended(client, await begun(client, jsonl(line("a"))))
        assert done.status == "expired"
        (fault,) = await lines_of(client, done.error_file_id)
        assert fault["error"]["code"] == "batch_expired"
        assert done.request_counts is not None
        assert done.request_counts.failed == done.request_counts.total == 1


async def test_the_models_of_a_key_alone() -> None:
    keys = (replace(KEYS[0], models=("nothing-*",)),)
    async with router_rig(api_keys=keys) as rig, sdk(rig) as client:
        batch = await ended(client, await begun(client, jsonl(line("a"))))
        assert batch.errors is not None
        assert [one.code for one in batch.errors.data or ()] == ["model_not_found"]


async def test_the_input_may_be_deleted_while_it_is_read() -> None:
    script, waiting = held()
    async with router_rig(script) as rig, sdk(rig) as client:
        batch = await begun(client, jsonl(line("a"), line("b")))
        await until(lambda: bool(waiting))
        await client.files.delete(batch.input_file_id)
        await rig.router.files.sweep()
        rig.worker.script = answer
        await waiting[0].finish("x")
        done = await ended(client, batch)
        assert done.request_counts is not None and done.request_counts.completed == 2
        folder = Path(rig.spec.files.folder)
        assert {path.name for path in folder.iterdir()} == {done.output_file_id}


async def test_the_input_may_be_deleted_once_the_batch_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go = unread(monkeypatch)
    async with router_rig() as rig, sdk(rig) as client:
        batch = await begun(client, jsonl(line("a")))
        await client.files.delete(batch.input_file_id)
        await rig.router.files.sweep()
        go.set()
        assert (await ended(client, batch)).status == "completed"
        # One whose bytes are gone is refused, and leaves nothing.
        folder = Path(rig.spec.files.folder)
        kept = {path.name for path in folder.iterdir()}
        file = await client.files.create(file=b"x", purpose="batch")
        (folder / file.id).unlink()
        with pytest.raises(openai.NotFoundError, match="No such File object"):
            await client.batches.create(
                input_file_id=file.id, endpoint=CHAT, completion_window="24h"
            )
        assert {path.name for path in folder.iterdir()} == kept
        assert [one.id async for one in client.batches.list()] == [batch.id]


@pytest.mark.parametrize(
    ("tier", "shown", "priority"),
    [("flex", "flex", BACKGROUND_PRIORITY), ("auto", "default", 0), (None, None, 0)],
)
async def test_a_request_that_may_wait(tier: Any, shown: str | None, priority: int) -> None:
    named = {} if tier is None else {"service_tier": tier}
    async with router_rig() as rig, sdk(rig) as client:
        whole = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], **named
        )
        assert whole.service_tier == shown
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True, **named
        )
        assert {chunk.service_tier async for chunk in stream} == {shown}
        response = await client.responses.create(model=MODEL, input="hi", **named)
        assert response.service_tier == (shown or "default")
        text = await client.completions.create(model=MODEL, prompt="hi", extra_body=named)
        assert (text.model_extra or {}).get("service_tier") == shown
        assert [one.request.priority for one in rig.worker.streams] == [priority] * 4


@pytest.mark.parametrize("used", [MODEL, "adapter"])
async def test_a_model_that_somebody_uses_is_not_evicted_for_a_batch(
    used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = LoadPlan("cold", (), 10, LoadOutcome.EVICTS, "it would be", 20, 0, evicts=(MODEL,))
    monkeypatch.setattr(runner, "_PLAN_S", 0.5)
    async with router_rig() as rig, sdk(rig) as client:
        rig.supervisor.replies[PlanLoad] = plan
        adapter = ready("adapter", INSTANCE, base=MODEL)
        await rig.publish(ready(MODEL, INSTANCE, created_s=1), adapter, cold("cold"), default=MODEL)
        assert (await rig.chat_json(model=used))[0] == 200
        wanted = line("a")
        wanted["body"]["model"] = "cold"
        batch = await begun(client, jsonl(wanted))
        await until(lambda: len(rig.asked(PlanLoad)) >= 3)
        assert not rig.asked(Acquire)
        # Nobody has used it for a while.
        monkeypatch.setattr(runner, "_PERSONS_S", 0.0)
        await until(lambda: bool(rig.asked(Acquire)))
        await client.batches.cancel(batch.id)
        assert (await ended(client, batch)).status == "cancelled"


@pytest.mark.parametrize("code", [ErrorCode.MODEL_SOURCE_INVALID, None])
async def test_a_model_whose_load_cannot_be_planned_delays_no_other_batch(
    code: ErrorCode | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "COMMAND_DEADLINE_S", 3600.0)
    async with router_rig(api_keys=KEYS) as rig, sdk(rig) as client, sdk(rig, OTHER) as other:
        if code is not None:  # else the supervisor does not answer
            rig.supervisor.replies[PlanLoad] = Denied(code, "its repository is not there")
        await rig.publish(ready(MODEL, INSTANCE, created_s=1), cold("cold"), default=MODEL)
        wanted = line("a")
        wanted["body"]["model"] = "cold"
        stuck = await begun(client, jsonl(wanted))
        await until(lambda: bool(rig.asked(PlanLoad)))
        # Of the same key only where the model itself is the reason.
        later = await begun(other if code is None else client, jsonl(line("b")))
        done = await ended(other if code is None else client, later)
        assert done.status == "completed"
        assert not rig.asked(Acquire)
        await client.batches.cancel(stuck.id)
        assert (await ended(client, stuck)).status == "cancelled"


@pytest.mark.parametrize("number", [0, 1])
async def test_the_examples_of_the_page(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "batches.md").read_text()
    code = [one.text for one in blocks(page) if one.language == "python"][number]
    async with router_rig() as rig:
        code = code.replace("http://localhost:8000", rig.url).replace('"MODEL"', f'"{MODEL}"')
        await asyncio.to_thread(exec, compile(code, "docs/batches.md", "exec"), {})
    shown = capsys.readouterr().out
    assert shown.count("".join(TEXTS)) == (2, 1)[number], shown


async def test_lines_wait_while_their_key_has_no_room(tmp_path: Path) -> None:
    script, waiting = held()
    spec = FilesSpec(str(tmp_path / "files"), 50_000, 30_000, 100_000)
    async with router_rig(script, files=spec, api_keys=KEYS) as rig, sdk(rig) as client:
        batch = await begun(client, jsonl(line("a"), line("b")))
        await until(lambda: bool(waiting))
        await client.files.delete(batch.input_file_id)
        kept = await client.files.create(file=b"x" * 25_904, purpose="batch")
        with pytest.raises(openai.APIStatusError, match="max_key_bytes") as refused:
            await client.files.create(file=b"x", purpose="user_data")
        assert refused.value.status_code == 413
        with pytest.raises(openai.APIStatusError, match="max_key_bytes") as refused:
            await client.batches.create(
                input_file_id=kept.id, endpoint=CHAT, completion_window="24h"
            )
        assert (refused.value.status_code, refused.value.param) == (413, "input_file_id")
        batches = rig.router.batches
        await until(lambda: batches._full == {KEYS[0].owner})
        for task in [one for found in batches._batches.values() for one in found.running]:
            task.cancel()
        await until(lambda: all(one.cancelled for one in waiting))
        rig.worker.script = answer
        assert await batches._next_line() is None
        # Others have room.
        async with sdk(rig, OTHER) as other:
            done = await ended(other, await begun(other, jsonl(line("c"))))
            assert done.status == "completed"
        await client.files.delete(kept.id)
        done = await ended(client, batch)
        assert done.request_counts is not None and done.request_counts.completed == 2


NORMAL, FULL = 1, 2
"""Values of SQLite's `synchronous`."""


async def test_files_of_results_are_let_go_by_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    really = BlobWriter.__exit__

    def closed(writer: BlobWriter, *error: Any) -> None:
        threads.add(threading.current_thread())
        really(writer, *error)

    at_end = []
    really_end = batch_tables.end

    def end(records: sqlite3.Connection, *known: Any, **values: Any) -> bool:
        (synchronous,) = records.execute("PRAGMA synchronous").fetchone()
        at_end.append((source.exists(), synchronous))
        return really_end(records, *known, **values)

    monkeypatch.setattr(BlobWriter, "__exit__", closed)
    monkeypatch.setattr(batch_tables, "end", end)
    files = FileStore(tmp_path / "files.sqlite", FilesSpec(str(tmp_path / "files")))
    row = BatchRow("batch_1", None, "openai", CHAT, "file-1", "finalizing", 1, 2, end="cancelled")
    source = files.folder / input_name(row.id)
    source.parent.mkdir()
    source.touch()
    files.start()
    try:
        await files.perform(lambda records: batch_tables.add(records, row, 1, 9, files.quota))
        lines = [LineRow(1, "a", MODEL, b"", 0, 1)]
        await files.perform(lambda records: batch_tables.add_lines(records, row.id, lines))
        await finish(files, row)
        assert await files.perform(batch_tables.under_way) == []
        # A power cut can't take the end back once the input is gone.
        assert (at_end, source.exists()) == ([(True, FULL)], False)
        after = await files.perform(
            lambda records: records.execute("PRAGMA synchronous").fetchone()
        )
        assert after == (NORMAL,)
    finally:
        await asyncio.to_thread(files.close, 10.0)
    assert threads and threading.main_thread() not in threads


async def test_the_records_of_lines_give_their_space_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of them are written in one step.
    monkeypatch.setattr(record_file, "_STEP_DEADLINE_S", 90.0)
    path = tmp_path / "files.sqlite"
    files = FileStore(path, FilesSpec(str(tmp_path / "files")))
    row = BatchRow("batch_1", None, "openai", CHAT, "file-1", "in_progress", 1, 2, total=5_000)
    lines = [LineRow(number, str(number), MODEL, b"", 0, 1) for number in range(1, 5_001)]
    files.start()
    try:
        await files.perform(lambda records: batch_tables.add(records, row, 1, 9, files.quota))
        await files.perform(lambda records: batch_tables.add_lines(records, row.id, lines))
        for one in lines:
            files.put_result(row.id, one.number, Result(True, 200, "req", b"x" * 2_000))
            files.put_result(row.id, one.number, Result(False, 500, "req", b"another"))
        found = await files.perform(lambda records: batch_tables.get(records, row.id, None))
        assert found is not None
        assert (found.completed, found.failed, found.result_bytes) == (5_000, 0, 10_000_000)
        # What was written is not written again either.
        files.put_result(row.id, 1, Result(False, 500, "req", b"another"))
        assert found == await files.perform(lambda records: batch_tables.get(records, row.id, None))
        await files.forget_lines(row.id)
    finally:
        await asyncio.to_thread(files.close, 10.0)
    assert path.stat().st_size < 1_000_000


def test_large_results_are_read_and_removed_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_tables, "_READ_BYTES", 2_500)
    monkeypatch.setattr(batch_tables, "_FORGOTTEN_BYTES", 2_500)

    def left(after: int = 0) -> list[int]:
        return [one.number for one in batch_tables.done_lines(records, "batch_1", after, 32)]

    with closing(sqlite3.connect(":memory:", isolation_level=None)) as records:
        batch_tables.create(records)
        lines = [LineRow(number, str(number), MODEL, b"", 0, 1) for number in range(1, 8)]
        batch_tables.add_lines(records, "batch_1", lines)
        for number, size_bytes in enumerate((9_000, 1_000, 1_000, 1_000, 1_000), 1):
            body = b"x" * size_bytes
            values = ("batch_1", number, 1, 200, "req", body)
            records.execute("INSERT INTO results VALUES (?, ?, ?, ?, ?, ?)", values)
        # One that is larger than the limit comes alone; those without a result weigh nothing.
        assert (left(0), left(1), left(4), left(7)) == ([1], [2, 3, 4], [5, 6, 7], [])
        for first in (2, 4):
            assert batch_tables.forget_lines(records, "batch_1")
            assert left()[0] == first
        assert not batch_tables.forget_lines(records, "batch_1")
        assert left() == []
        assert records.execute("SELECT count(*) FROM results").fetchone() == (0,)
