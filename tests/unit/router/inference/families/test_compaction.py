"""Conversations that are made shorter: /v1/responses/compact by the official library's own call,
`compaction_trigger` as Codex sends it, and what later requests read of both."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import (
    CompactedResponse,
    ResponseCompactionItem,
    ResponseStreamEvent,
)
from pydantic import TypeAdapter

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.data import Delta
from lmx.protocol.messages.keys import ApiKey
from lmx.protocol.states import DeltaKind, FinishReason, ToolChoice
from lmx.router.rendering.responses.sealing import compaction_key, sealed, sealing_key
from tests.support.clients.sdk_types import checked, extras_of
from tests.support.fakes.fake_peers import ends, fails, plays, ready
from tests.support.rigs.router_rig import INSTANCE, MODEL, Rig, router_rig

ONE, OTHER = "sk-lmx-one-of-this-test", "sk-lmx-other-of-this-test"
KEYS = (ApiKey.of_secret(ONE, "one"), ApiKey.of_secret(OTHER, "other"))
SUMMARY = "They look for a bug in a.py."
SAID: Any = [
    {"role": "developer", "content": "Be kind."},
    {"role": "user", "content": "Find the bug."},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "x = 1"},
    {"role": "assistant", "content": "It is in a.py."},
]
TOOLS: Any = [{"type": "function", "name": "read", "parameters": {"type": "object"}}]
TRIGGER: Any = {"type": "compaction_trigger"}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def sdk(rig: Rig, key: str = ONE) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key=key, max_retries=0, timeout=90)


def sent(rig: Rig) -> Any:
    return rig.worker.streams[-1].request


def read(rig: Rig) -> list[tuple[str, str]]:
    """What the model read at last."""
    return [(one["role"], one["content"]) for one in sent(rig).messages]


def item_of(made: Any) -> dict[str, Any]:
    (item,) = [one for one in made.output if one.type == "compaction"]
    raw = item.model_dump(mode="json", exclude_none=True)
    strict = ResponseCompactionItem.model_validate_json(json.dumps(raw), strict=True)
    assert not list(extras_of(strict)) and SUMMARY not in strict.encrypted_content
    found: dict[str, Any] = raw
    return found


async def test_the_library_s_own_call() -> None:
    script = plays(Delta(0, "Think.", 1, kind=DeltaKind.REASONING), f" {SUMMARY}\n", ends())
    async with router_rig(script, api_keys=KEYS) as rig, sdk(rig) as client:
        await rig.publish(ready(MODEL, INSTANCE, context_length=8000))
        raw = await client.responses.with_raw_response.compact(
            model=MODEL, input=SAID, instructions="You are Codex.",
            extra_body={"tools": TOOLS, "odd": 1},
        )  # fmt: skip
        assert raw.headers["X-Lmx-Ignored"] == "odd"
        made = json.loads(raw.text)
        user, item = made["output"]
        assert (user["type"], user["role"], user["status"]) == ("message", "user", "completed")
        assert user["content"] == [{"type": "input_text", "text": "Find the bug."}]
        # The library's type of the output knows no messages of the user, though its words do.
        whole = checked(CompactedResponse, json.dumps({**made, "output": [item]}))
        assert whole.usage.output_tokens == 3 and whole.object == "response.compaction"

        asked = sent(rig)
        assert [one["role"] for one in asked.messages] == [
            "system", "user", "assistant", "tool", "assistant", "user",
        ]  # fmt: skip
        assert "Write a summary" in asked.messages[-1]["content"]
        # The prompt begins as those of the conversation did, and nothing can be called.
        use = asked.tool_use
        assert use.known and use.described and use.choice is ToolChoice.NONE
        assert (asked.max_tokens, asked.truncate_prompt_tokens) == (2000, -1)
        assert (asked.thinking.enabled, asked.thinking.budget_tokens) == (False, 1000)

        # The output is the next input. What the summary stands for is not read any more.
        rig.worker.script = plays("Yes.", ends())
        await client.responses.create(
            model=MODEL, input=[*made["output"], {"role": "user", "content": "Go on."}]
        )
        ((role, content),) = read(rig)
        assert role == "user" and content.startswith("Find the bug.\n[Here the conversation was")
        assert f"\n{SUMMARY}\n" in content and content.endswith("\nGo on.")
        await client.responses.create(model=MODEL, input=[*SAID, item], instructions="Hello.")
        (system, kind), (role, content) = read(rig)
        assert (system, kind) == ("system", "Hello.\nBe kind.") and role == "user"

        # It is kept by no id.
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made["id"])


async def test_a_trigger_as_codex_sends_it() -> None:
    pieces = (SUMMARY[:9], SUMMARY[9:])
    async with router_rig(plays(*pieces, ends()), api_keys=KEYS) as rig, sdk(rig) as client:
        asked: Any = {"model": MODEL, "input": [*SAID, TRIGGER], "tools": TOOLS}
        stream = await client.responses.create(**asked, stream=True, store=False)
        events = [event async for event in stream]
        for event in events:
            strict = EVENT.validate_json(event.model_dump_json(exclude_unset=True), strict=True)
            assert {path.rpartition(".")[2] for path in extras_of(strict)} <= {
                "store", "frequency_penalty", "presence_penalty", "timings",
            }  # fmt: skip
        assert [event.type for event in events] == [
            "response.created", "response.in_progress", "response.output_item.added",
            "response.output_item.done", "response.completed",
        ]  # fmt: skip
        assert [event.sequence_number for event in events] == list(range(5))
        streamed = item_of(events[-1].response)
        assert events[3].item.to_dict() == streamed
        assert sent(rig).thinking.enabled is None and sent(rig).tool_use.known

        whole = await client.responses.create(**asked)
        assert whole.status == "completed" and len(whole.output) == 1
        kept = await client.responses.retrieve(whole.id)
        assert item_of(kept) == item_of(whole)

        # What is kept is continued with the summary in its place, and without the trigger.
        rig.worker.script = plays("Yes.", ends())
        later = await client.responses.create(
            model=MODEL, input="Go on.", previous_response_id=whole.id
        )
        (_, kind), (_, content) = read(rig)
        assert kind == "Be kind." and content.startswith("Find the bug.\n[Here")
        assert f"\n{SUMMARY}\n" in content and content.endswith("\nGo on.")
        items = [one async for one in client.responses.input_items.list(later.id, order="asc")]
        assert [one.type for one in items][-2:] == ["compaction", "message"]

        # The same for a conversation, which gets the item by its own id.
        place = await client.conversations.create(items=SAID)
        rig.worker.script = plays(*pieces, ends())
        await client.responses.create(model=MODEL, input=[TRIGGER], conversation=place.id)
        types = [one.type async for one in client.conversations.items.list(place.id, order="asc")]
        assert types[-2:] == ["message", "compaction"]
        rig.worker.script = plays("Yes.", ends())
        await client.responses.create(model=MODEL, input="Go on.", conversation=place.id)
        assert [role for role, _ in read(rig)] == ["system", "user"]
        made = await client.conversations.create(items=[item_of(whole)])  # type: ignore[list-item]
        await client.responses.create(model=MODEL, input="Go on.", conversation=made.id)
        assert SUMMARY in read(rig)[0][1]

        # Of two summaries the last one counts: it was written with the first one before it.
        other = sealed("LATER", compaction_key(sealing_key(rig.spec.admin_key), KEYS[0].owner))
        both: Any = [item_of(whole), {"type": "compaction_summary", "encrypted_content": other}]
        await client.responses.create(model=MODEL, input=both)
        assert SUMMARY not in read(rig)[0][1] and "LATER" in read(rig)[0][1]


async def test_a_compaction_of_another_is_refused() -> None:
    script = plays(SUMMARY, ends())
    async with (
        router_rig(script, api_keys=KEYS) as rig, sdk(rig) as client, sdk(rig, OTHER) as other,
    ):  # fmt: skip
        made = await client.responses.compact(model=MODEL, input="hi")
        item = item_of(made)
        token = item["encrypted_content"]
        stored = await client.conversations.create(items=[item])  # type: ignore[list-item]
        key = sealing_key(rig.spec.admin_key)
        foreign = sealed(SUMMARY, compaction_key(sealing_key("elsewhere"), KEYS[0].owner))
        thoughts = sealed(SUMMARY, key)
        for who, wrong in [
            (other, token), (client, token[:-8] + "AAAAAAAA"), (client, foreign),
            (client, thoughts), (client, "gAAAA"), (client, ""),
        ]:  # fmt: skip
            bad: Any = {**item, "encrypted_content": wrong}
            said: Any = [{"role": "user", "content": "hi"}, bad]
            for call, param in (
                (who.responses.create(model=MODEL, input=said), "input[1].encrypted_content"),
                (who.responses.compact(model=MODEL, input=said), "input[1].encrypted_content"),
                (who.conversations.create(items=[bad]), "items[0].encrypted_content"),
            ):
                with pytest.raises(openai.BadRequestError) as caught:
                    await call
                assert caught.value.param == param and caught.value.code == "invalid_value"
                assert "another key's" in caught.value.message
        # Thoughts are no summary, and a summary is no thought.
        said = [{"type": "reasoning", "summary": [], "encrypted_content": token}]
        raw = await client.responses.with_raw_response.create(
            model=MODEL, input=[{"role": "user", "content": "hi"}, *said]
        )
        assert raw.headers["X-Lmx-Ignored"] == "input.encrypted_content"
        assert stored.id

        items: Any
        for items, param in (
            ([TRIGGER, SAID[1]], "input[0].type"),
            ([{"type": "compaction"}], "input[0].encrypted_content"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(model=MODEL, input=items)
            assert caught.value.param == param
        with pytest.raises(openai.BadRequestError) as caught:
            await client.conversations.create(items=[TRIGGER])
        assert caught.value.param == "items[0].type"
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.compact(model=MODEL, input=[TRIGGER])
        assert caught.value.param == "input"


async def test_summaries_that_do_not_come() -> None:
    thought = Delta(0, "Thoughts alone.", 1, kind=DeltaKind.REASONING)
    async with router_rig(plays(thought, ends(" \n"))) as rig, sdk(rig) as client:
        with pytest.raises(openai.InternalServerError, match="wrote no summary") as caught:
            await client.responses.compact(model=MODEL, input="hi")
        assert caught.value.code == "engine_error"
        asked: Any = {"model": MODEL, "input": [SAID[1], TRIGGER]}
        events = [one async for one in await client.responses.create(**asked, stream=True)]
        assert [one.type for one in events][2:] == ["response.failed"]
        assert not events[-1].response.output
        # One that ends at lmx's own limit is whole; at the client's it is not.
        rig.worker.script = plays(ends(SUMMARY, reason=FinishReason.LENGTH))
        assert (await client.responses.create(**asked)).status == "completed"
        cut = await client.responses.create(**asked, max_output_tokens=7)
        assert cut.status == "incomplete" and item_of(cut) and sent(rig).max_tokens == 7
        assert item_of(await client.responses.compact(model=MODEL, input="hi"))
        # A worker that is lost is what it is everywhere.
        rig.worker.script = plays("They", fails(ErrorCode.WORKER_CRASHED, "gone"))
        with pytest.raises(openai.InternalServerError, match="gone"):
            await client.responses.compact(model=MODEL, input="hi")
        jobs = await rig.http.get(f"{rig.url}/v1/jobs")
        assert (await jobs.json())["data"][0]["state"] == "failed"


async def test_moderations_are_refused_in_words(rig: Rig) -> None:
    async with sdk(rig) as client:
        with pytest.raises(openai.NotFoundError, match="serves no classifier") as caught:
            await client.moderations.create(input="hello")
    assert caught.value.code == "not_found_error"
