"""GET /admin/requests: where the time of requests went, what they wait for, and what they asked."""

import asyncio
import json
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import Acquired
from lmx.protocol.messages.data import Accepted, Reread, Timings, Usage
from lmx.protocol.messages.snapshot import ModelView, Snapshot
from lmx.protocol.messages.tasks import TaskFinished, Vectors
from lmx.protocol.states import LoadPhase, ModelKind, RereadReason, SlotState, WorkerState
from lmx.router.http.bodies import capture
from lmx.router.http.bodies.capture import REDACTED, redacted
from lmx.router.http.outcome import Outcome, RequestContext
from lmx.router.jobs.live import LiveRequest, LiveRequests, LiveState, RequestKind
from lmx.router.jobs.phases import (
    Phase,
    Times,
    phases_of,
    waits_for_model,
    waits_for_worker,
)
from lmx.router.operators.jobs import CapturedRequest, RequestList
from lmx.router.operators.live.feed import LiveFeed
from lmx.router.operators.live.requests import RequestsTopic
from lmx.router.supervisor.directory import Directory
from lmx.router.workers.phased_timeout import PhasedTimeout
from lmx.router.workers.waits import Waits
from tests.support.clients.answer_check import check_shape
from tests.support.fakes.fake_peers import FakeStream, cold, ready, until
from tests.support.rigs.router_rig import INSTANCE, MODEL, Rig, answer, router_rig

USAGE = Usage(prompt_tokens=100, completion_tokens=3, cached_tokens=60)
TIMINGS = Timings(queue_s=1.5, prefill_s=0.5, decode_s=2.0)


def turn(begun_s: float | None) -> PhasedTimeout:
    made = PhasedTimeout()
    made.begun_s = begun_s
    return made


def spent(shown: Any) -> dict[str, float]:
    return {name.removesuffix("_s"): took for name, took in shown.items() if took is not None}


@pytest.mark.parametrize(
    ("waits", "times", "measured", "phases", "phase"),
    [
        (Waits(), Times(9.0), Outcome(), {}, None),
        (Waits(loading_since_s=2.0), Times(9.0), Outcome(), {"load": 7.0}, Phase.LOAD),
        (
            Waits(load_s=2.0, turn=turn(None), sent_s=4.0),
            Times(9.0), Outcome(), {"load": 2.0, "queue": 5.0}, Phase.QUEUE,
        ),
        (
            Waits(turn=turn(5.0), sent_s=4.0),
            Times(9.0), Outcome(), {"load": 0.0, "queue": 1.0, "render": 4.0}, Phase.RENDER,
        ),
        (
            Waits(turn=turn(5.0), sent_s=4.0, accepted_s=6.0),
            Times(9.0, has_row=True),
            Outcome(), {"load": 0.0, "queue": 1.0, "render": 1.0, "prefill": 3.0}, Phase.PREFILL,
        ),
        (
            Waits(turn=turn(5.0), sent_s=4.0, accepted_s=6.0),
            Times(9.0),
            Outcome(), {"load": 0.0, "queue": 4.0, "render": 1.0}, Phase.QUEUE,
        ),
        (
            Waits(turn=turn(5.0), sent_s=4.0, accepted_s=6.0),
            Times(9.0, 7.0, has_row=True),
            Outcome(),
            {"load": 0.0, "queue": 1.0, "render": 1.0, "prefill": 1.0, "decode": 2.0},
            Phase.DECODE,
        ),
        # What the worker has measured counts, once it is there.
        (
            Waits(load_s=3.0, turn=turn(5.0), sent_s=4.0, accepted_s=6.0),
            Times(9.0, 7.0, has_row=True),
            Outcome(queue_s=1.4, prefill_s=0.6, decode_s=2.5),
            {"load": 3.0, "queue": 0.4, "render": 1.0, "prefill": 0.6, "decode": 2.5},
            Phase.DECODE,
        ),
        (
            Waits(turn=turn(5.0), sent_s=4.0),
            Times(9.0, is_task=True),
            Outcome(), {"load": 0.0, "queue": 1.0, "prefill": 4.0}, Phase.PREFILL,
        ),
    ],
)  # fmt: skip
def test_phases(
    waits: Waits, times: Times, measured: Outcome, phases: dict[str, float], phase: Phase | None
) -> None:
    shown, current = phases_of(waits, times, measured)
    assert spent(shown) == pytest.approx(phases)
    assert current is phase


LOADING = replace(
    ready("alpha", "0000000a"), worker=WorkerState.LOADING, phase=LoadPhase.WEIGHTS, fraction=0.4
)
DRAINED = replace(ready("beta", "0000000b"), worker=WorkerState.DRAINING)


@pytest.mark.parametrize(
    ("models", "no_loads", "reason", "text", "evicting"),
    [
        ([], None, "load", "alpha is about to be loaded", []),
        ([LOADING], None, "load", "alpha is loading: weights 40%", []),
        ([cold("alpha", SlotState.FETCHING)], None, "download", "alpha is being fetched", []),
        (
            [cold("alpha", SlotState.QUEUED, position=2), DRAINED],
            None, "memory", "alpha waits for memory, 2nd in line; unloading beta", ["beta"],
        ),
        (
            [cold("alpha", SlotState.QUEUED), ready("beta", "0000000b")],
            "The machine is short of memory.",
            "memory", "alpha waits for memory; The machine is short of memory.", [],
        ),
        (
            [replace(ready("alpha", "0000000a"), worker=WorkerState.DRAINING)],
            None, "restart", "alpha ends what it does, and is loaded again", [],
        ),
        (
            [cold("alpha", SlotState.BACKOFF)],
            None, "backoff", "alpha failed, and is loaded again soon", [],
        ),
    ],
)  # fmt: skip
def test_what_a_request_waits_for_whose_model_is_not_ready(
    models: list[ModelView], no_loads: str | None, reason: str, text: str, evicting: list[str]
) -> None:
    directory = Directory.of(Snapshot("e", 1, None, tuple(models), no_loads=no_loads))
    shown = waits_for_model("alpha", 3, directory)
    assert shown == {
        "reason": reason, "model": "alpha", "position": 3, "evicting": evicting, "text": text
    }  # fmt: skip


def test_what_a_request_waits_for_in_its_worker() -> None:
    row = waits_for_worker("alpha", Phase.QUEUE, 2, accepted=True)
    assert row is not None
    assert (row["reason"], row["position"]) == ("row", 2)
    assert row["text"] == "alpha has no free row, 2nd in line when it came"
    first = waits_for_worker("alpha", Phase.QUEUE, None, accepted=False)
    assert first is not None
    assert first["reason"] == "turn"
    assert waits_for_worker("alpha", Phase.PREFILL, None, accepted=True) is None


async def requests(rig: Rig, path: str = "/admin/requests?ended=500") -> Any:
    status, shown = await rig.admin("GET", path)
    assert status == 200, shown
    check_shape(RequestList, shown)
    return shown


async def only_live(rig: Rig, condition: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(90):
        while True:
            live = (await requests(rig))["data"]
            if len(live) == 1 and condition(live[0]):
                return live[0]
            await asyncio.sleep(0.01)


async def test_a_generation_from_its_line_to_its_end() -> None:
    goes_on = asyncio.Event()

    async def script(stream: FakeStream) -> None:
        await goes_on.wait()
        goes_on.clear()
        await stream.prepare()
        await goes_on.wait()
        goes_on.clear()
        await stream.send(Accepted(stream.request.stream_id, 100, queued=2))
        await goes_on.wait()
        await stream.say("a")
        await stream.finish("b", usage=USAGE, timings=TIMINGS)

    async with router_rig(script) as rig:
        request = asyncio.create_task(rig.chat_json())
        found = await only_live(rig, lambda one: one["phase"] == "queue")
        assert (found["family"], found["waits_for"]["reason"]) == ("chat", "turn")
        goes_on.set()
        await only_live(rig, lambda one: one["phase"] == "render" and one["waits_for"] is None)
        goes_on.set()
        found = await only_live(rig, lambda one: one["waits_for"] is not None)
        assert (found["state"], found["waits_for"]["reason"]) == ("queued", "row")
        assert (found["http_status"], found["ended"]) == (None, None)
        goes_on.set()
        assert (await request)[0] == 200
        shown = await requests(rig)
        assert shown["data"] == []
        [ended] = shown["ended"]
        assert ended["id"] == found["id"]
        assert (ended["state"], ended["http_status"], ended["error"]) == ("completed", 200, None)
        assert (ended["prompt_tokens"], ended["cached_tokens"], ended["tokens"]) == (100, 60, 3)
        phases = ended["phases"]
        assert (phases["prefill_s"], phases["decode_s"], phases["load_s"]) == (0.5, 2.0, 0.0)
        assert phases["queue_s"] == pytest.approx(1.5 - phases["render_s"])
        assert ended["ended"] >= ended["created"]
        assert 0 < ended["ttft_s"] <= ended["age_s"] + 0.001
        assert (await requests(rig, "/admin/requests"))["ended"] == []
        for wrong in ("-1", "501", "many"):
            assert (await rig.admin("GET", f"/admin/requests?ended={wrong}"))[0] == 400


@pytest.mark.parametrize("texts", [False, True], ids=["", "texts"])
async def test_why_a_prompt_was_read_again_is_shown_to_operators_alone(texts: bool) -> None:
    read = Reread(RereadReason.DIFFERS, 41, 90)
    if texts:
        read = replace(read, before="It is ", was="Monday", now="Tuesday")

    async def script(stream: FakeStream) -> None:
        assert stream.request.show_reread is texts
        await stream.accept()
        await stream.finish("b", usage=USAGE, timings=TIMINGS, reread=read)

    async with router_rig(script, show_rereads=texts) as rig:
        with capture_logs() as logged:
            status, answered = await rig.chat_json()
        assert status == 200
        assert "Monday" not in str(answered) and "reread" not in str(answered)
        [ended] = (await requests(rig))["ended"]
        assert ended["reread"] == {
            "cached_tokens": 60,
            "expected_tokens": 90,
            "reason": "differs",
            "position": 41,
            "before": "It is " if texts else None,
            "was": "Monday" if texts else None,
            "now": "Tuesday" if texts else None,
        }
        assert "Monday" not in str(logged)
        assert "differs" in [line.get("reread") for line in logged]


async def test_requests_that_end_badly_are_listed_with_their_error() -> None:
    async def script(stream: FakeStream) -> None:
        if stream.request.max_tokens == 1:
            await stream.refuse(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long")
        else:
            await stream.accept()
            await stream.say("a")

    async with router_rig(script) as rig:
        assert (await rig.chat_json(max_tokens=1))[0] == 400
        request = asyncio.create_task(rig.chat_json())
        found = await only_live(rig, lambda one: one["tokens"] == 1)
        await rig.admin("POST", f"/admin/requests/{found['id']}/cancel")
        assert (await request)[0] == 409
        leaves = asyncio.create_task(rig.chat_json())
        await only_live(rig, lambda one: one["tokens"] == 1)
        leaves.cancel()
        await until(lambda: rig.router.live.ended_total == 3)
        ends = (await requests(rig))["ended"]
        assert [(one["state"], one["http_status"], one["error"]) for one in ends] == [
            ("cancelled", 499, "client_disconnected"),
            ("cancelled", 409, "request_cancelled"),
            ("failed", 400, "context_length_exceeded"),
        ]
        assert ends[2]["error_message"] == "too long"
        assert [one["tokens"] for one in ends] == [1, 1, 0]


async def test_an_embedding_that_waits_for_its_model_is_listed_with_its_times() -> None:
    async with router_rig() as rig:
        rig.worker.task_script = lambda task: (
            Vectors(task.stream_id, (0,), 1, b"\0\0\0\0"),
            TaskFinished(task.stream_id, 5),
        )
        model = replace(rig.supervisor.models[0], kind=ModelKind.EMBEDDING)
        await rig.publish(cold(MODEL, SlotState.QUEUED, kind=ModelKind.EMBEDDING))
        asked = [
            asyncio.create_task(rig.post_json("/v1/embeddings", model=MODEL, input="a"))
            for _ in range(2)
        ]
        await until(lambda: rig.router.queues.waiting(MODEL) == 2)
        live = (await requests(rig))["data"]
        assert [one["waits_for"]["position"] for one in live] == [1, 2]
        assert {one["phase"] for one in live} == {"load"}
        await rig.publish(model)
        await rig.supervisor.reply(0, Acquired(MODEL, INSTANCE))
        assert [(await one)[0] for one in asked] == [200, 200]
        for ended in (await requests(rig))["ended"]:
            assert (ended["family"], ended["prompt_tokens"]) == ("embeddings", 5)
            assert ended["phases"]["load_s"] > 0


MANY = 5000


class Listed:
    """Requests that wait for a model, as many as are wanted."""

    def __init__(self, count: int) -> None:
        self.queue = [float(number) for number in range(count)]
        self.requests = LiveRequests(
            self.position, lambda: Directory.of(Snapshot("e", 1, None, ()))
        )
        self.under_way = ExitStack()
        self.lives = [self.begin(f"r{number}", float(number)) for number in range(count)]

    def position(self, _: str, arrived_s: float) -> int:
        return 1 + bisect_left(self.queue, arrived_s)

    def begin(self, name: str, arrived_s: float) -> LiveRequest:
        context = RequestContext(f"q-{name}", time.monotonic(), key="laptop")
        live = LiveRequest(name, context, RequestKind.CHAT, "chat", "10.0.0.1", "alpha")
        live.waits.arrived_s, live.waits.loading_since_s = arrived_s, time.monotonic()
        self.under_way.enter_context(self.requests.under_way(live))
        return live


def message(text: bytes) -> Any:
    """The data of the one event, which must be of the topic."""
    kind, data = text.decode().removesuffix("\n\n").split("\n")
    assert kind == "event: requests"
    return json.loads(data.removeprefix("data: "))


async def test_of_many_requests_those_that_changed_are_sent_alone() -> None:
    listed = Listed(MANY)
    topic = RequestsTopic(listed.requests)
    began_s = time.process_time()
    first = message(await topic.look())
    first_s = time.process_time() - began_s
    assert (first["whole"], len(first["live"])) == (False, MANY)
    again_s = []
    for _ in range(3):
        began_s = time.process_time()
        assert await topic.look() == b""
        again_s.append(time.process_time() - began_s)
    assert min(again_s) < first_s / 2, "nothing is encoded again"
    listed.lives[7].prompt_tokens = 3
    news = message(await topic.look())
    assert [one["id"] for one in news["live"]] == ["r7"]
    assert not news["whole"]
    # The next one in line gets its model: of those far behind nobody is sent for that.
    listed.queue.pop(0)
    listed.lives[0].state = LiveState.RUNNING
    assert 0 < len(message(await topic.look())["live"]) < MANY / 10
    listed.under_way.close()
    news = message(await topic.look())
    assert (news["whole"], news["live"], len(news["ended"])) == (True, [], 500)
    assert [one["id"] for one in news["ended"][:2]] == ["r0", "r1"], "the newest first"
    assert message(topic.whole()) | {"at_s": 0} == news | {"at_s": 0}


async def test_a_request_that_another_machine_is_asked_for_is_listed_no_more() -> None:
    listed = Listed(2)
    topic = RequestsTopic(listed.requests)
    with listed.under_way:
        assert len(message(await topic.look())["live"]) == 2
        with ExitStack() as asked:
            listed.under_way, own = asked, listed.under_way
            forwarded = listed.begin("fwd-1", 2.0)
            assert [one["id"] for one in message(await topic.look())["live"]] == ["fwd-1"]
            forwarded.goes_elsewhere = True
            listed.under_way = own
        news = message(await topic.look())
        assert news["whole"], "who reads would keep it otherwise"
        assert [one["id"] for one in news["live"]] == ["r0", "r1"]
        assert await topic.look() == b""


async def test_the_tokens_of_a_request_that_a_peer_computes_are_sent_as_they_come() -> None:
    listed = Listed(0)
    topic = RequestsTopic(listed.requests)
    made = 1
    forwarded = listed.begin("fwd-1", 0.0)
    forwarded.machine, forwarded.state = "b", LiveState.RUNNING
    forwarded.outcome = lambda: Outcome(completion_tokens=made)
    with listed.under_way:
        await topic.look()
        made = 5
        [shown] = message(await topic.look())["live"]
        assert shown["tokens"] == 5
        assert await topic.look() == b""


async def test_a_late_reader_knows_how_old_a_request_is_that_has_not_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = Listed(1)
    topic = RequestsTopic(listed.requests)
    feed = LiveFeed(lambda: [topic])
    with listed.under_way, feed.reading() as first:
        assert message(await first.next_events(90))["live"]
        for passed_s in (60.0, 120.0):
            now_s, here_s = time.time() + 60, time.monotonic() + 60
            monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
            monkeypatch.setattr(time, "monotonic", lambda here_s=here_s: here_s)
            whole = message(feed.after(None))
            [shown] = whole["live"]
            known_s = shown["created"] + shown["age_s"]
            assert whole["at_s"] - known_s == pytest.approx(passed_s, abs=30)
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("body", "clean"),
    [
        ({"model": "a", "n": 1, "stop": None}, {"model": "a", "n": 1, "stop": None}),
        (
            {"url": "data:image/png;base64,AAAA", "text": "data: yes, it is"},
            {"url": "[image/png, 4 characters]", "text": "data: yes, it is"},
        ),
        (
            {"input_audio": {"data": "QUJD", "format": "wav"}, "images": ["QUJDRA=="]},
            {"input_audio": {"data": "[base64, 4 characters]", "format": "wav"},
             "images": ["[base64, 8 characters]"]},
        ),
        ({"anywhere": "QUJD" * 300}, {"anywhere": "[base64, 1200 characters]"}),
        ({"text": "a word " * 300}, {"text": "a word " * 300}),
        (
            {"tools": [{"headers": {"Authorization": "Bearer k"}, "api_key": "k"}],
             "max_tokens": 5, "properties": {"password": {"type": "string"}}},
            {"tools": [{"headers": {"Authorization": REDACTED}, "api_key": REDACTED}],
             "max_tokens": 5, "properties": {"password": {"type": "string"}}},
        ),
        ({"api_keys": ["sk-1"], "secret": None}, {"api_keys": REDACTED, "secret": None}),
    ],
)  # fmt: skip
def test_redaction(body: dict[str, Any], clean: dict[str, Any]) -> None:
    made = redacted(body)
    assert made is not None
    assert json.loads(made) == clean


def test_what_is_too_large_is_not_captured() -> None:
    assert redacted({"messages": [{"n": n} for n in range(20_000)]}) is None
    assert redacted({"text": "a word " * 200_000}) is None
    assert redacted({"n": 10**30}) is None
    deep: list[Any] = []
    for _ in range(1000):
        deep = [deep]
    assert redacted({"deep": deep}) is None


async def test_captures_are_off_by_default_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with router_rig() as rig:
        assert (await rig.chat_json())[0] == 200
        [ended] = (await requests(rig))["ended"]
        assert ended["captured"] is False
        status, refused = await rig.admin("GET", f"/admin/requests/{ended['id']}/capture")
        assert status == 404
        assert "server.capture_requests" in refused["error"]["message"]
    async with router_rig(answer, capture_requests=2) as rig:
        for name in ("first", "second", "third"):
            assert (await rig.chat_json(user=name, api_key="secret"))[0] == 200
        ids = [one["id"] for one in (await requests(rig))["ended"]]
        status, found = await rig.admin("GET", f"/admin/requests/{ids[0]}/capture")
        assert status == 200
        check_shape(CapturedRequest, found)
        assert (found["path"], found["body"]["user"]) == ("/v1/chat/completions", "third")
        assert found["body"]["api_key"] == REDACTED
        assert (await rig.admin("GET", f"/admin/requests/{ids[1]}/capture"))[0] == 200
        assert (await rig.admin("GET", f"/admin/requests/{ids[2]}/capture"))[0] == 404
        async with rig.http.get(f"{rig.url}/admin/requests/{ids[0]}/capture") as response:
            assert response.status == 401
        monkeypatch.setattr(capture, "_MOST_BYTES", 10)
        assert (await rig.chat_json())[0] == 200
        [newest, *_] = (await requests(rig))["ended"]
        assert (await rig.admin("GET", f"/admin/requests/{newest['id']}/capture"))[0] == 404
