"""A second API family, made here of a writer and an entry in the table of routes alone, streams
through the real relay in its own words: its events, its errors, its pings."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest
from aiohttp import web

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.control import Acquired
from lmx.protocol.messages.data import ChoiceEnded, Delta
from lmx.protocol.states import DeltaKind, ModelKind, SlotState
from lmx.router.http.access import own_request
from lmx.router.http.api_family import ApiFamily
from lmx.router.http.bodies.json_body import read_object
from lmx.router.http.endpoint import Access, Endpoint
from lmx.router.http.outcome import CONTEXT
from lmx.router.inference import answering
from lmx.router.inference.model_choice import models_of_kind
from lmx.router.jobs.live import RequestKind
from lmx.router.rendering.answer_format import Beginning, Ending, Generated
from lmx.router.rendering.envelope import Identity
from lmx.router.schema.requests.chat import ChatRequest, parse_chat
from lmx.router.server import app
from lmx.router.server.routes import ROUTES
from lmx.router.services import SERVICES
from tests.support.fakes.fake_peers import FakeStream, cold, ends, fails, plays, until
from tests.support.rigs.router_rig import MODEL, TEXTS, Rig, answer, chat_body, router_rig

PATH = "/toy/messages"


def event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


class ToyFamily(ApiFamily):
    """Errors and pings that are none of OpenAI's."""

    ping = event("ping")

    def error_body(self, error: LmxError, *_: object) -> dict[str, Any]:
        return {"type": "error", "error": {"type": error.code.value, "message": error.message}}

    def error_event(self, error: LmxError, request_id: str | None) -> bytes:
        return event("error", error=self.error_body(error)["error"])


class ToyWriter:
    """Named events, one block for each kind of text, and no mark after the last one."""

    def __init__(self, identity: Identity, beginning: Beginning) -> None:
        self._identity = identity
        self._beginning = beginning
        self._block: DeltaKind | None = None

    def first(self) -> bytes:
        usage = {"input_tokens": self._beginning.prompt_tokens}
        return event("message_start", model=self._identity.model_id, usage=usage)

    def deltas(self, deltas: Sequence[Delta]) -> bytes:
        return b"".join(map(self._delta, deltas))

    def _delta(self, delta: Delta) -> bytes:
        begin = b""
        if delta.kind is not self._block:
            begin = self._stop() + event("block_start", kind=delta.kind.value)
            self._block = delta.kind
        return begin + event("block_delta", text=delta.text)

    def ends(self, ended: Sequence[ChoiceEnded]) -> Iterator[bytes]:
        yield self._stop() + event("message_delta", stop_reason=ended[0].reason.value)

    def last(self, ending: Ending) -> bytes:
        return event("message_stop", output_tokens=ending.finished.usage.completion_tokens)

    def failed(self, error: LmxError, request_id: str | None) -> bytes:
        return ENTRY.family.error_event(error, request_id)

    def _stop(self) -> bytes:
        return b"" if self._block is None else event("block_stop")


class ToyAnswer:
    choices = 1
    retained_logprobs = None

    def writer(self, identity: Identity, beginning: Beginning) -> ToyWriter:
        return ToyWriter(identity, beginning)

    def complete_answer(self, made: Generated) -> dict[str, Any]:
        text = "".join(made.choices[0].content)
        return {"type": "message", "text": text, "ended": 0 in made.ends}


async def messages(request: web.Request) -> web.StreamResponse:
    services = request.app[SERVICES]
    chat, generate, _ = parse_chat(await read_object(request, 1_000_000))
    stream = bool(chat.stream)
    models = await models_of_kind(request, chat.model, ModelKind.CHAT, stream=stream)
    generate = own_request(generate, request[CONTEXT])
    plan = answering.Plan(
        models,
        lambda chosen, waits: services.dispatcher.generate(chosen, generate, waits),
        ToyAnswer(),
        RequestKind.CHAT,
        "msg-",
    )
    return await answering.answer(request, plan, stream=stream)


ENTRY = Endpoint(
    "POST", PATH, messages, Access.INFERENCE, "Toy", "Answer", request=ChatRequest,
    answer=dict[str, Any], streams=True, family=ToyFamily(),
)  # fmt: skip


@contextlib.asynccontextmanager
async def toy_rig(
    script: Callable[[FakeStream], Any] = answer, **fields: Any
) -> AsyncIterator[Rig]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "ROUTES", (*ROUTES, ENTRY))
        async with router_rig(script, **fields) as rig:
            yield rig


async def stream_of(rig: Rig, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream by name; a comment is an event without one."""
    async with rig.http.post(f"{rig.url}{PATH}", json=chat_body(stream=True, **fields)) as response:
        assert response.status == 200
        raw = (await response.read()).decode()
    found = []
    for block in raw.removesuffix("\n\n").split("\n\n"):
        if block.startswith(":"):
            found.append(("", {"comment": block}))
            continue
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def test_a_stream_is_in_the_family_s_events() -> None:
    think_first = plays(Delta(0, "hm", 1, kind=DeltaKind.REASONING), "hel", ends("lo", tokens=3))

    async with toy_rig(think_first) as rig:
        found = await stream_of(rig)
        openai = await rig.chat_events()
    names = [name for name, _ in found]
    begin = ["message_start", "block_start", "block_delta", "block_stop", "block_start"]
    assert names == [*begin, "block_delta", "block_delta", "block_stop", "message_delta",
                     "message_stop"]  # fmt: skip
    assert found[0][1]["model"] == MODEL
    assert found[-1][1]["output_tokens"] == 3
    assert openai[-1] == "[DONE]", "the other family is as it was"


async def test_a_whole_answer_is_the_family_s_and_so_is_its_job() -> None:
    async with toy_rig() as rig:
        status, whole = await rig.post_json(PATH, **chat_body())
        jobs = (await (await rig.http.get(f"{rig.url}/v1/jobs")).json())["data"]
        job = await (await rig.http.get(f"{rig.url}/v1/jobs/{jobs[0]['id']}")).json()
    assert (status, whole) == (200, {"type": "message", "text": "".join(TEXTS), "ended": True})
    assert job["id"].startswith("msg-")
    assert job["result"] == whole


async def test_errors_before_a_stream_are_the_family_s() -> None:
    async with toy_rig(api_keys=("secret",)) as rig:
        status, refused = await rig.post_json(PATH, **chat_body())
        assert (status, refused["type"]) == (401, "error")
        _, other = await rig.post_json("/v1/chat/completions", **chat_body())
        assert set(other) == {"error"}
    async with toy_rig(lambda stream: stream.refuse(ErrorCode.QUEUE_FULL, "full")) as rig:
        status, refused = await rig.post_json(PATH, **chat_body(stream=True))
        assert status == 429
        assert refused == {"type": "error", "error": {"type": "queue_full", "message": "full"}}
        status, refused = await rig.post_json(PATH, messages=[])
        assert (status, refused["type"]) == (400, "error")


async def test_an_error_in_a_stream_is_the_family_s_event() -> None:
    async with toy_rig(plays("hel", fails(ErrorCode.ENGINE_ERROR, "broken"))) as rig:
        found = await stream_of(rig)
    error = {"type": "engine_error", "message": "broken"}
    assert found[-1] == ("error", {"type": "error", "error": error})
    assert not {"message_delta", "message_stop"} & {name for name, _ in found}


async def test_pings_are_the_family_s_while_it_waits_and_while_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answering, "QUIET_S", 0.01)
    monkeypatch.setattr(answering, "INTERVAL_S", 0.01)

    async def slow(stream: FakeStream) -> None:
        await stream.accept()
        await stream.say("hel")
        await asyncio.sleep(0.3)
        await stream.finish("lo", tokens=2)

    async with toy_rig(slow, ping_interval_s=0.05) as rig:
        rig.add_worker("0000000b", slow)
        await rig.publish(cold("big", SlotState.QUEUED, position=2))
        reading = asyncio.create_task(stream_of(rig, model="big"))
        await until(lambda: rig.supervisor.acquires)
        await asyncio.sleep(0.3)
        await rig.supervisor.reply(0, Acquired("big", "0000000b"))
        names = [name for name, _ in await reading]
    start, last = names.index("message_start"), names.index("message_stop")
    assert names[0] == "", "how the load goes is a comment, which every client skips"
    assert names[1:start] == ["ping"] * (start - 1) and start > 1
    assert "ping" in names[start:last]


async def test_a_router_that_hangs_says_so_in_the_family_s_words() -> None:
    hold = plays("hel")

    body = chat_body(stream=True)
    async with toy_rig(hold) as rig, rig.http.post(f"{rig.url}{PATH}", json=body) as response:
        async with asyncio.timeout(90):
            await response.content.readuntil(b"event: block_delta\n")
            await until(lambda: rig.router.hang_notice.send() == 1)
            raw = await response.content.readuntil(b"router_hung")
    assert b"event: error\n" in raw
