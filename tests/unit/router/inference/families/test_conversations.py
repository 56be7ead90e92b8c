"""/v1/conversations, by the official library's own calls and by hand, and `conversation` in
/v1/responses."""

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from typing import Any

import openai
import pytest
from openai.pagination import AsyncConversationCursorPage
from openai.types.conversations import (
    Conversation,
    ConversationDeletedResource,
    ConversationItem,
    ConversationItemList,
)
from openai.types.responses import Response
from pydantic import TypeAdapter

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.keys import ApiKey
from lmx.router.jobs import conversations, records
from lmx.router.jobs.conversations import ConversationRow, ItemPage, Room
from lmx.router.jobs.records import JobRow, JobState, ResponseRow
from lmx.router.jobs.store import JobStore, open_records
from tests.support.clients.sdk_types import checked, extras_of
from tests.support.fakes.fake_peers import ends, fails, plays, until
from tests.support.rigs.router_rig import MODEL, TEXTS, Rig, router_rig

ONE, OTHER = "sk-lmx-one-of-this-test", "sk-lmx-other-of-this-test"
KEYS = (ApiKey.of_secret(ONE, "one"), ApiKey.of_secret(OTHER, "other"))
WHOLE = "".join(TEXTS)
ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)
HELLO: Any = {"role": "user", "content": "hello"}
PNG = "data:image/png;base64,iVBORw0KGgo="
EVERY: Any = [
    HELLO,
    {"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": PNG},
    ]},
    {"role": "assistant", "content": "yes"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "and"}]},
    {"type": "reasoning", "id": "rs_of_the_client"},
    {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "2"},
    {"type": "custom_tool_call", "call_id": "call_2", "name": "g", "input": "ls"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": "a"},
    {"role": "developer", "content": "be kind"},
]  # fmt: skip


def sdk(rig: Rig, key: str | None = ONE) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{rig.url}/v1", api_key=key or "none", max_retries=0, timeout=90
    )


async def ask(rig: Rig, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    url = f"{rig.url}/v1/{path}"
    async with rig.http.request(method, url, json=body, headers=headers) as response:
        return response.status, await response.json()


async def texts(client: openai.AsyncOpenAI, conversation: str) -> list[tuple[str, str]]:
    """Role and text of all messages, the oldest first."""
    found: list[tuple[str, str]] = []
    async for item in client.conversations.items.list(conversation, order="asc"):
        assert item.type == "message"
        found.append((item.role, "".join(part.text for part in item.content)))  # type: ignore[union-attr]
    return found


async def test_the_library_s_own_calls() -> None:
    async with router_rig(api_keys=KEYS) as rig, sdk(rig) as client, sdk(rig, OTHER) as stranger:
        before_s = int(time.time())
        kept = client.conversations.with_raw_response
        raw = await kept.create(items=EVERY, metadata={"topic": "demo"})
        made = checked(Conversation, raw.text)
        assert made.metadata == {"topic": "demo"} and before_s <= made.created_at <= time.time()
        assert checked(Conversation, (await kept.retrieve(made.id)).text) == made
        changed = checked(Conversation, (await kept.update(made.id, metadata={"a": "b"})).text)
        assert changed.metadata == {"a": "b"} and changed.id == made.id
        assert (await client.conversations.update(made.id, metadata=None)).metadata == {}

        items = client.conversations.items
        added = checked(
            ConversationItemList,
            (await items.with_raw_response.create(made.id, items=[HELLO, HELLO])).text,
        )
        assert [item.type for item in added.data] == ["message"] * 2 and not added.has_more
        assert (added.first_id, added.last_id) == (added.data[0].id, added.data[1].id)

        # Pages, both ways: each item once, and strictly of the library's type.
        newest = await items.list(made.id, limit=5)
        assert isinstance(newest, AsyncConversationCursorPage) and newest.has_more
        down = [item.id or "" async for item in items.list(made.id, limit=5)]
        up = [item.id or "" async for item in items.list(made.id, limit=5, order="asc")]
        assert down == up[::-1] and len(set(up)) == len(EVERY) + 2
        for item_id, sent in zip(up, [*EVERY, HELLO, HELLO], strict=True):
            one = await items.with_raw_response.retrieve(item_id, conversation_id=made.id)
            item = ITEM.validate_json(one.text, strict=True)
            assert not list(extras_of(item)) and item.type == sent.get("type", "message")
            assert item.id == item_id != sent.get("id")

        gone = await items.with_raw_response.delete(up[0], conversation_id=made.id)
        assert checked(Conversation, gone.text).id == made.id
        assert [item.id async for item in items.list(made.id, order="asc")] == up[1:]
        with pytest.raises(openai.NotFoundError, match=f"Item with id '{up[0]}' not found in"):
            await items.retrieve(up[0], conversation_id=made.id)

        # Another key sees none of it, and changes none.
        for call in (
            stranger.conversations.retrieve(made.id),
            stranger.conversations.update(made.id, metadata={}),
            stranger.conversations.delete(made.id),
            stranger.conversations.items.create(made.id, items=[HELLO]),
            stranger.conversations.items.list(made.id),
            stranger.conversations.items.retrieve(up[1], conversation_id=made.id),
            stranger.conversations.items.delete(up[1], conversation_id=made.id),
            stranger.responses.create(model=MODEL, input="hi", conversation=made.id),
        ):
            with pytest.raises(openai.NotFoundError) as refused:
                await call
            assert f"Conversation with id '{made.id}' not found." in str(refused.value)
        deleted = checked(ConversationDeletedResource, (await kept.delete(made.id)).text)
        assert deleted.deleted and deleted.id == made.id
        with pytest.raises(openai.NotFoundError):
            await items.list(made.id)


async def test_responses_continue_a_conversation_and_add_to_it() -> None:
    async with router_rig() as rig, sdk(rig, None) as client:
        made = await client.conversations.create(items=[{"role": "system", "content": "Be kind."}])
        raw = await client.responses.with_raw_response.create(
            model=MODEL, input="one", conversation=made.id
        )
        answer = Response.model_validate_json(raw.text)
        assert answer.conversation is not None and answer.conversation.id == made.id
        said = [("system", "Be kind."), ("user", "one"), ("assistant", WHOLE)]
        assert await texts(client, made.id) == said

        # Streamed, and by the object.
        stream = await client.responses.create(
            model=MODEL, input="two", conversation={"id": made.id}, stream=True
        )
        async for _ in stream:
            pass
        sent = rig.worker.streams[-1].request.messages or ()
        assert [(one["role"], one["content"]) for one in sent] == [*said, ("user", "two")]
        said += [("user", "two"), ("assistant", WHOLE)]
        assert await texts(client, made.id) == said

        # In the background.
        begun = await client.responses.create(
            model=MODEL, input="three", conversation=made.id, background=True
        )
        async with asyncio.timeout(90):
            while (await client.responses.retrieve(begun.id)).status != "completed":
                await asyncio.sleep(0.01)
        said += [("user", "three"), ("assistant", WHOLE)]
        assert await texts(client, made.id) == said

        # What is not stored, and what fails, adds nothing; neither does a count of tokens.
        await client.responses.create(model=MODEL, input="no", conversation=made.id, store=False)
        sent = rig.worker.streams[-1].request.messages or ()
        assert sent[-1]["content"] == "no" and len(sent) == len(said) + 1
        rig.worker.script = plays(fails(ErrorCode.INTERNAL, "broken"))
        with pytest.raises(openai.InternalServerError):
            await client.responses.create(model=MODEL, input="no", conversation=made.id)
        rig.worker.script = plays(*TEXTS, ends())
        assert await texts(client, made.id) == said

        # Its items have the ids that the response gave them, and `previous_response_id` says where
        # the rest is.
        last = (await client.conversations.items.list(made.id)).data[0]
        assert last.id == (await client.responses.retrieve(begun.id)).output[0].id
        with pytest.raises(openai.BadRequestError, match=f"conversation: {made.id}"):
            await client.responses.create(model=MODEL, input="x", previous_response_id=begun.id)

        # One that is deleted meanwhile gets nothing, and is not there again.
        held = asyncio.Event()
        rig.worker.script = plays(held, *TEXTS, ends())
        count = len(rig.worker.streams)
        late = asyncio.create_task(
            client.responses.create(model=MODEL, input="late", conversation=made.id)
        )
        await until(lambda: len(rig.worker.streams) > count)
        await client.conversations.delete(made.id)
        held.set()
        assert (await late).status == "completed"
        assert (await ask(rig, "GET", f"conversations/{made.id}"))[0] == 404
        with closing(sqlite3.connect(rig.spec.jobs_path)) as file:
            assert file.execute("SELECT count(*) FROM conversation_items").fetchone() == (0,)


async def test_bad_inputs() -> None:
    async with router_rig(body_limit_bytes=100_000) as rig:
        _, made = await ask(rig, "POST", "conversations", {})
        path = f"conversations/{made['id']}"
        response = {"model": MODEL, "input": "hi"}
        exclusive = {"conversation": made["id"], "previous_response_id": "resp_1"}
        unknown = {"conversation": "conv_" + "0" * 24}
        for method, where, body, status, param in [
            ("POST", "conversations", {"items": [HELLO] * 21}, 400, "items"),
            ("POST", "conversations", {"items": "hello"}, 400, "items"),
            ("POST", "conversations", {"items": [{"role": "x"}]}, 400, "items[0].role"),
            ("POST", "conversations", {"items": [{"type": "web_search_call"}]}, 400,
                "items[0].type"),
            ("POST", "conversations", {"items": [{"id": "msg_1"}]}, 404, "items[0].id"),
            ("POST", "conversations", {"metadata": {"a": 1}}, 400, "metadata.a"),
            ("POST", "conversations", {"metadata": {str(n): "" for n in range(17)}}, 400,
                "metadata"),
            ("POST", path, {}, 400, "metadata"),
            ("POST", f"{path}/items", {}, 400, "items"),
            ("POST", f"{path}/items", {"items": []}, 400, "items"),
            ("GET", f"{path}/items?limit=101", None, 400, "limit"),
            ("GET", f"{path}/items?limit=0", None, 400, "limit"),
            ("GET", f"{path}/items?order=up", None, 400, "order"),
            ("GET", f"{path}/items?after=msg_1", None, 400, "after"),
            ("GET", f"{path}/items/msg_1", None, 404, None),
            ("DELETE", f"{path}/items/msg_1", None, 404, None),
            ("GET", "conversations/..%2Fjobs", None, 404, None),
            ("POST", "responses", {**response, **exclusive}, 400, "conversation"),
            ("POST", "responses", {**response, **unknown}, 404, "conversation"),
            ("POST", "responses", {**response, "conversation": "x"}, 404, "conversation"),
            ("POST", "responses", {**response, "conversation": 1}, 400, "conversation"),
        ]:  # fmt: skip
            found = await ask(rig, method, where, body)
            assert (found[0], found[1]["error"]["param"]) == (status, param), (where, body, found)
        # A conversation has as much room as a request.
        large = {"items": [{"role": "user", "content": "x" * 60_000}]}
        assert (await ask(rig, "POST", f"{path}/items", large))[0] == 200
        status, refused = await ask(rig, "POST", f"{path}/items", large)
        assert (status, refused["error"]["param"]) == (413, "items")
        assert (await ask(rig, "POST", "responses", {**response, "conversation": made["id"]}))[
            0
        ] == 200


def test_items_are_added_once_with_the_end_of_the_job(tmp_path: Any) -> None:
    path = tmp_path / "jobs.sqlite"
    row = ConversationRow("conv_" + "a" * 24, "one", b"{}", 1)
    said = (("msg_1", b'{"id": "msg_1"}'),)
    made = json.dumps([{"id": "msg_2"}]).encode()
    begun = ResponseRow(b"[]", b"{}", conversation=row.id, added=said)
    ended = ResponseRow(b"[]", b"{}", output=made, conversation=row.id, added=said)

    def job(state: JobState, response: ResponseRow, owner: str = "one") -> dict[str, JobRow | None]:
        values = ("resp_1", "chat", MODEL, owner, state.value, False, 1.0, "req")
        return {"resp_1": JobRow(*values, response=response)}

    def ids() -> list[str]:
        with closing(open_records(path)) as file:
            found = conversations.page(file, row.id, ItemPage(10, False, None))
            assert found is not None
            return [item_id for item_id, _ in found[0]]

    with closing(open_records(path)) as file:
        conversations.add(file, row, [])
        records.write(file, job(JobState.QUEUED, begun))
        records.write(file, job(JobState.RUNNING, begun))
        records.write(file, job(JobState.COMPLETED, ended, owner="other"))
        records.write(file, job(JobState.FAILED, ended))
        records.write(file, job(JobState.CANCELLED, ended))
        records.write(file, job(JobState.INTERRUPTED, ended))
        assert ids() == []
        # A transaction that ends halfway, as of a router that is killed, leaves neither.
        file.execute(
            "CREATE TEMP TRIGGER broken BEFORE INSERT ON main.conversation_items "
            "WHEN NEW.id = 'msg_2' BEGIN SELECT RAISE(FAIL, 'the disk is full'); END"
        )
        with pytest.raises(sqlite3.Error):
            records.write(file, job(JobState.COMPLETED, ended))
        found = records.get(file, "resp_1", "one")
        assert ids() == [] and found is not None and found.state == JobState.INTERRUPTED
        file.execute("DROP TRIGGER broken")
        for _ in range(3):
            records.write(file, job(JobState.COMPLETED, ended))
        assert ids() == ["msg_1", "msg_2"]
        assert conversations.whole(file, row.id, "one", Room(2, 10_000)) is not None
        with pytest.raises(OverflowError):
            conversations.whole(file, row.id, "one", Room(1, 10_000))


async def test_who_takes_most_loses_what_was_used_longest_ago(tmp_path: Any) -> None:
    store = JobStore(tmp_path / "jobs.sqlite", 100.0, 100, 41_000)
    store.start()

    async def add(number: int, owner: str) -> str:
        row = ConversationRow(f"conv_{number:024}", owner, b"{}", number)
        item = [("msg_1", b"x" * 9_000)]
        await store.perform(lambda records: conversations.add(records, row, item))
        return row.id

    try:
        few = await add(0, "few")
        many = [await add(number, "many") for number in range(1, 8)]
        left = [
            one
            for one in [few, *many]
            for owner in ("few", "many")
            if await store.perform(
                lambda records, one=one, owner=owner: conversations.get(records, one, owner)  # type: ignore[misc]
            )
        ]
        assert left == [few, *many[-3:]]
        # The items went with them, and the room of the job records is their own.
        with closing(open_records(tmp_path / "jobs.sqlite")) as file:
            assert file.execute("SELECT count(*) FROM conversation_items").fetchone() == (4,)
    finally:
        await asyncio.to_thread(store.close, 10.0)
