"""Tasks in a worker: taken, cut, computed in turns, cancelled, refused."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import (
    BACKGROUND_PRIORITY,
    Cancel,
    Generate,
    Outputs,
    Preparing,
    Pulse,
    Refused,
    Sampling,
    Structure,
)
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.messages.specs import LogSpec, WorkerSpec
from lmx.protocol.messages.tasks import (
    Detokenize,
    Detokenized,
    Embed,
    Task,
    TaskFinished,
    TaskReply,
    Vectors,
)
from lmx.protocol.states import MediaForm, MediaKind, MemoryPressure, ModelKind, StructureKind
from lmx.worker.engine.interfaces import Engine
from lmx.worker.engine.values import TaskPlan
from lmx.worker.media.decoder import MediaDecoder
from lmx.worker.media.values import Media, MediaNeeds
from lmx.worker.scheduling.batch import BatchLimits
from lmx.worker.scheduling.progress import InFlight
from lmx.worker.scheduling.thread import EngineThread
from lmx.worker.service import open_requests
from lmx.worker.service.admission import IdleClock, LifetimeCounts, Power
from lmx.worker.service.fair_thread import FairThread
from lmx.worker.service.serving import Serving
from tests.support.fakes.fake_peers import until
from tests.support.fakes.scripted_engine import ScriptedEngine

ROUTER, OTHER = b"router", b"other"


class Vectorizer:
    """An input's text says what happens: "slow" computes until it is told, "wrong" can't be
    planned, "broken" breaks in the plan, "raises" in the computation, "huge" for want of memory."""

    def __init__(self) -> None:
        self.computed: list[tuple[int, int]] = []
        self.go_on = asyncio.Event()

    def plan(self, task: Task, media: Sequence[Media] = ()) -> TaskPlan | TaskReply:
        if isinstance(task, Detokenize):
            return Detokenized(task.stream_id, "text")
        assert isinstance(task, Embed)
        if "wrong" in task.texts:
            raise RequestError(ErrorCode.INVALID_VALUE, "no", param="input[0]")
        if "broken" in task.texts:
            raise ZeroDivisionError
        pieces = [
            partial(self._compute, task.stream_id, index, text)
            for index, text in enumerate(task.texts)
        ]
        return TaskPlan(7 * len(pieces), pieces)

    def _compute(self, stream_id: int, index: int, text: str) -> Vectors:
        self.computed.append((stream_id, index))
        end_s = time.monotonic() + 60
        while text == "slow" and not self.go_on.is_set() and time.monotonic() < end_s:
            time.sleep(0.001)
        if text == "raises":
            raise ZeroDivisionError
        if text == "huge":
            raise RuntimeError("std::bad_alloc")
        return Vectors(stream_id, (index,), 1, b"1234")


class Rig:
    """All that a worker has around its tasks."""

    def __init__(self, max_queue: int, writes: bool, max_queue_s: float, max_rows: int) -> None:
        spec = WorkerSpec(
            instance="i", model_id="m", model_path="/m", run_dir="/r", log=LogSpec("/l"),
            engine="", engine_options={}, memory_limit_bytes=0, max_rows=max_rows,
            max_queue=max_queue, max_queue_s=max_queue_s,
            kind=ModelKind.CHAT if writes else ModelKind.EMBEDDING,
        )  # fmt: skip
        self.sent: list[tuple[bytes, Any]] = []
        self.preparing: list[int] = []
        self.decoded: list[bytes] = []
        self.picture_bytes = 0
        self.may_decode = threading.Event()
        self.may_decode.set()
        self.outputs: list[Outputs] = []
        self.idle = 0
        self.engine = Vectorizer()
        self.scripted: Any = ScriptedEngine({})
        self.loaded_with: Serving | None = None
        self.spec = spec
        self.prompts, self.media = FairThread("prompt"), FairThread("media")
        self.checks = FairThread("check")
        self.counts, self.idle_clock = LifetimeCounts(), IdleClock()
        self.gone: set[bytes] = set()
        loop = asyncio.get_running_loop()
        facts = replace(self.scripted.facts, media=MediaNeeds(frozenset({MediaKind.IMAGE})))
        engine = Engine(facts, self.scripted, self.engine, self.scripted if writes else None)
        self.thread = EngineThread(lambda _: engine, BatchLimits(max_rows, 300.0), self, loop)
        clocks = (self.prompts.clock, self.thread.clock)
        self.in_flight = InFlight(*clocks, limited=(self.media.clock, self.checks.clock))

    def send(self, router: bytes, message: Any) -> bool:
        if router in self.gone:
            return False
        if isinstance(message, Preparing):
            self.preparing.append(message.stream_id)
        elif isinstance(message, Outputs):
            self.outputs.append(message)
        else:
            self.sent.append((router, message))
        return True

    @property
    def serving(self) -> Serving:
        assert self.loaded_with is not None
        return self.loaded_with

    def became_idle(self) -> None:
        self.idle += 1

    def loaded(self, engine: Engine, load_s: float) -> None:
        self.loaded_with = Serving(
            self.spec, engine, self.prompts, self.media, self.checks,
            cast(MediaDecoder, self), self.thread, self.in_flight, self.counts, self.idle_clock,
            Power(), self.send, self.became_idle,
        )  # fmt: skip

    def load_advanced(self, phase: Any, fraction: float | None, detail: str) -> None: ...

    def load_failed(self, error: Exception) -> None:
        raise error

    def decode(self, items: Any, blobs: Any, needs: Any) -> tuple[Any, ...]:
        """Stand for the decoder."""
        self.decoded.append(bytes(blobs[0]))
        assert self.may_decode.wait(180)
        return (SimpleNamespace(size_bytes=self.picture_bytes),)

    def engine_broke(self, error: Exception) -> None:
        raise error

    def embed(self, stream_id: int, *texts: str, router: bytes = ROUTER, **fields: Any) -> None:
        values: dict[str, Any] = {"deadline_s": 30.0, "texts": texts, **fields}
        self.serving.receive(router, Embed(stream_id, f"r{stream_id}", **values))

    def to(self, stream_id: int) -> list[Any]:
        return [message for _, message in self.sent if message.stream_id == stream_id]

    async def end_of(self, stream_id: int) -> Any:
        """Wait for the last word of a task."""
        await until(lambda: any(not isinstance(m, Vectors) for m in self.to(stream_id)))
        return self.to(stream_id)[-1]


Start = Callable[..., Any]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    rigs: list[Rig] = []

    async def begin(
        max_queue: int = 10, writes: bool = True, max_queue_s: float = 300.0, max_rows: int = 1
    ) -> Rig:
        rig = Rig(max_queue, writes, max_queue_s, max_rows)
        rigs.append(rig)
        rig.thread.start()
        await until(lambda: rig.loaded_with)
        return rig

    yield begin
    for rig in rigs:
        rig.engine.go_on.set()
        assert rig.thread.stop(5.0)


async def test_pieces_are_sent_as_they_come_and_then_the_end(start: Start) -> None:
    rig = await start()
    rig.embed(1, "a", "b")
    assert await rig.end_of(1) == TaskFinished(1, 14)
    assert rig.to(1)[:-1] == [Vectors(1, (0,), 1, b"1234"), Vectors(1, (1,), 1, b"1234")]
    assert rig.in_flight.count == 0
    await until(lambda: rig.idle)


async def test_what_needs_no_computing_is_answered_at_once(start: Start) -> None:
    rig = await start()
    rig.serving.receive(ROUTER, Detokenize(1, "r", 30.0, (1,)))
    assert await rig.end_of(1) == Detokenized(1, "text")
    assert rig.engine.computed == []


async def test_tasks_take_turns(start: Start) -> None:
    rig = await start()
    rig.embed(1, "slow", *["a"] * 5)
    await until(lambda: rig.engine.computed)
    rig.embed(2, "b", "b")
    await until(lambda: rig.thread.clock.in_flight == 2)
    rig.engine.go_on.set()
    await rig.end_of(1)
    assert rig.engine.computed[:4] == [(1, 0), (2, 0), (1, 1), (2, 1)]


async def test_tasks_of_the_background_stand_still_for_others(start: Start) -> None:
    """Also between two pieces of the others, and if all are of one owner."""
    rig = await start()
    rig.embed(1, "slow", "a", background=True)
    await until(lambda: rig.engine.computed)
    rig.embed(2, "a", "a", background=True)
    rig.embed(3, *["b"] * 20)
    await until(lambda: rig.thread.clock.in_flight == 3)
    rig.engine.go_on.set()
    for stream_id in (1, 2, 3):
        assert isinstance(await rig.end_of(stream_id), TaskFinished)
    assert rig.engine.computed[:21] == [(1, 0), *((3, index) for index in range(20))]
    # Nothing holds them when the others have gone in whatever way.
    rig.engine.go_on.clear()
    rig.embed(4, "slow", "b")
    await until(lambda: (4, 0) in rig.engine.computed)
    rig.embed(5, "a", background=True)
    await until(lambda: rig.thread.clock.in_flight == 2)
    rig.serving.receive(ROUTER, Cancel(4))
    rig.engine.go_on.set()
    assert isinstance(await rig.end_of(5), TaskFinished)


def prompts_held(rig: Any) -> tuple[list[str], threading.Event]:
    """Let each prompt wait on its thread for the event; return those that were seen too."""
    goes_on = threading.Event()
    seen: list[str] = []

    def encode(source: Any) -> Any:
        seen.append(source.text)
        goes_on.wait(90)
        # Not a bug of the engine: to log the traceback of each takes a busy machine seconds.
        raise RequestError(ErrorCode.INVALID_VALUE, "no", param="prompt")

    rig.scripted.encode = encode
    return seen, goes_on


async def test_what_is_of_the_background_is_prepared_last(start: Start) -> None:
    """A person may have the same key as a batch, or none, as it has."""
    rig = await start(writes=True)
    seen, goes_on = prompts_held(rig)
    for number in (1, 2, 3, 4):
        priority = 0 if number == 4 else BACKGROUND_PRIORITY
        request = Generate(
            number, "r", Sampling(), 8, prompt=str(number), priority=priority, owner="one"
        )
        rig.serving.receive(ROUTER, request)
    await until(lambda: seen)
    goes_on.set()
    await rig.end_of(3)
    assert seen == ["1", "4", "2", "3"]


async def test_a_cancelled_task_ends_with_its_piece(start: Start) -> None:
    rig = await start()
    rig.embed(1, "slow", "a", "a")
    await until(lambda: rig.engine.computed)
    rig.serving.receive(ROUTER, Cancel(1))
    rig.engine.go_on.set()
    await until(lambda: rig.in_flight.count == 0)
    await until(lambda: rig.idle)
    assert rig.engine.computed == [(1, 0)]
    assert rig.to(1) == []


async def test_a_cancelled_task_that_waits_is_never_computed(start: Start) -> None:
    rig = await start()
    rig.embed(1, "slow")
    await until(lambda: rig.engine.computed)
    rig.embed(2, "a")
    await until(lambda: rig.thread.clock.in_flight == 2)
    rig.serving.receive(ROUTER, Cancel(2))
    rig.engine.go_on.set()
    await until(lambda: rig.in_flight.count == 0 and rig.idle)
    assert rig.engine.computed == [(1, 0)]


async def test_a_router_that_has_gone_takes_its_tasks_with_it(start: Start) -> None:
    rig = await start()
    rig.embed(1, "slow", "a")
    rig.embed(1, "slow", "a", router=OTHER)
    await until(lambda: rig.engine.computed)
    rig.gone.add(OTHER)
    rig.serving.open.pulse()
    assert rig.sent == [(ROUTER, Pulse("i", 1))]
    rig.sent.clear()
    rig.engine.go_on.set()
    assert isinstance(await rig.end_of(1), TaskFinished)
    assert {router for router, _ in rig.sent} == {ROUTER}
    assert rig.engine.computed == [(1, 0), (1, 1)]


async def test_a_deadline_ends_a_task(start: Start) -> None:
    rig = await start()
    rig.embed(1, "slow", "a", deadline_s=0.05)
    end = await rig.end_of(1)
    assert isinstance(end, Refused)
    assert end.code is ErrorCode.DEADLINE_EXCEEDED
    rig.engine.go_on.set()
    await until(lambda: rig.in_flight.count == 0)
    assert rig.to(1) == [end]


async def test_a_full_queue_refuses(start: Start) -> None:
    rig = await start(max_queue=1)
    for stream_id in (1, 2, 3):
        rig.embed(stream_id, "slow")
    (refused,) = rig.to(3)
    assert (refused.code, refused.retry_after_s) == (ErrorCode.QUEUE_FULL, 1.0)
    rig.engine.go_on.set()
    for stream_id in (1, 2):
        assert isinstance(await rig.end_of(stream_id), TaskFinished)


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("wrong", ErrorCode.INVALID_VALUE, "input[0]"),
        ("broken", ErrorCode.ENGINE_ERROR, None),
        ("raises", ErrorCode.ENGINE_ERROR, None),
        ("huge", ErrorCode.INSUFFICIENT_MEMORY, None),
    ],
)
async def test_a_failure_concerns_its_task_alone(
    start: Start, text: str, code: ErrorCode, param: str | None
) -> None:
    rig = await start()
    rig.embed(1, text)
    rig.embed(2, "a")
    end = await rig.end_of(1)
    assert isinstance(end, Refused)
    assert (end.code, end.param) == (code, param)
    assert isinstance(await rig.end_of(2), TaskFinished)


async def test_the_end_of_a_worker_ends_its_tasks(start: Start) -> None:
    rig = await start()
    rig.embed(1, "slow")
    rig.embed(2, "a")
    await until(lambda: rig.engine.computed)
    rig.serving.open.fail_all(ErrorCode.MODEL_UNLOADED, "bye")
    assert [message.code for _, message in rig.sent] == [ErrorCode.MODEL_UNLOADED] * 2


async def test_routers_with_tasks_get_a_pulse(start: Start) -> None:
    rig = await start()
    rig.embed(1, "slow")
    rig.embed(2, "a")
    rig.serving.open.pulse()
    assert rig.sent == [(ROUTER, Pulse("i", 2))]


async def test_a_number_in_use_is_not_taken_again(start: Start) -> None:
    rig = await start()
    rig.embed(1, "slow")
    rig.embed(1, "a")
    rig.engine.go_on.set()
    await rig.end_of(1)
    assert rig.engine.computed == [(1, 0)]


async def test_tasks_say_how_long_the_model_is_to_stay_but_for_refused_ones(start: Start) -> None:
    rig = await start()
    last_use = rig.idle_clock
    rig.embed(1, "a", keep_alive_s=5.0)
    await rig.end_of(1)
    assert last_use.keep_alive_s == 5
    rig.embed(2, "wrong", keep_alive_s=6.0)
    await rig.end_of(2)
    assert last_use.keep_alive_s == 5
    # One that has no say in it leaves it, but is use all the same.
    since_s = time.monotonic()
    rig.serving.receive(ROUTER, Detokenize(3, "r", 30.0, (1,)))
    await rig.end_of(3)
    assert last_use.keep_alive_s == 5
    now = time.monotonic()
    assert last_use.idle_for_s(0, now) <= now - since_s
    rig.embed(4, "slow", keep_alive_s=0.0)
    await until(lambda: len(rig.engine.computed) == 2)
    rig.serving.receive(ROUTER, Cancel(4))
    assert last_use.keep_alive_s == 0
    assert last_use.idle_for_s(rig.in_flight.count, time.monotonic()) == 0


async def test_a_prompt_for_which_there_is_no_memory_gets_an_error(start: Start) -> None:
    rig = await start()

    def encode(_: Any) -> Any:
        raise MemoryError

    rig.scripted.encode = encode
    rig.serving.receive(ROUTER, Generate(1, "r", Sampling(), 8, prompt="x"))
    refused = await rig.end_of(1)
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.INSUFFICIENT_MEMORY


async def test_a_request_is_announced_before_it_is_prepared_and_no_sooner(start: Start) -> None:
    """What hangs the prompt thread is known by it, and so is what only waits behind it."""
    rig = await start()
    goes_on = threading.Event()
    seen: list[tuple[str, list[int]]] = []

    def encode(source: Any) -> Any:
        seen.append((source.text, list(rig.preparing)))
        goes_on.wait(90)
        raise ZeroDivisionError

    rig.scripted.encode = encode
    for number in (1, 2, 3):
        request = Generate(number, "r", Sampling(), 8, prompt=str(number))
        rig.serving.receive(ROUTER, request)
    await until(lambda: seen)
    assert (seen, rig.preparing) == ([("1", [1])], [1])
    rig.serving.receive(ROUTER, Cancel(2))
    goes_on.set()
    await rig.end_of(3)
    assert seen == [("1", [1]), ("3", [1, 3])]
    rig.embed(4, "a")
    await until(lambda: rig.preparing == [1, 3, 4])


async def test_a_task_has_its_time_from_its_turn_on(start: Start) -> None:
    """The prompts of others take nothing of it."""
    rig = await start()
    seen, goes_on = prompts_held(rig)
    rig.serving.receive(ROUTER, Generate(1, "r", Sampling(), 8, prompt="x"))
    await until(lambda: seen)
    rig.embed(2, "slow", deadline_s=0.05)
    await asyncio.sleep(0.3)  # several times its deadline
    assert rig.to(2) == []
    goes_on.set()
    end = await rig.end_of(2)
    assert isinstance(end, Refused) and end.code is ErrorCode.DEADLINE_EXCEEDED


PICTURE = MediaItem(MediaKind.IMAGE, MediaForm.PNG, "messages[0].content[0].image_url", 1, b"")
DISTINCT = '{"type": "array", "items": {"type": "integer"}, "uniqueItems": true}'


def seeing(number: int, content: str, **fields: Any) -> Generate:
    values: dict[str, Any] = {
        "messages": ({"role": "user", "content": content},), "media": (PICTURE,), **fields
    }  # fmt: skip
    return Generate(number, "r", Sampling(), 8, owner=f"o{number % 3}", **values)


async def test_whoever_waits_too_long_for_the_prompt_or_the_decoder_gets_an_error(
    start: Start,
) -> None:
    """And not called lost by its router, in whichever line it stands."""
    rig = await start(max_queue_s=0.2)
    seen, goes_on = prompts_held(rig)
    rig.serving.receive(ROUTER, Generate(1, "r", Sampling(), 8, prompt="x"))
    await until(lambda: seen)
    rig.serving.receive(ROUTER, Generate(2, "r", Sampling(), 8, prompt="y"))
    rig.embed(3, "a")
    # The first picture is decoded, and waits like the others.
    for number in (4, 5):
        rig.serving.receive(ROUTER, seeing(number, "z"), [b"p"])
    for number in (2, 3, 4, 5):
        end = await rig.end_of(number)
        assert isinstance(end, Refused) and end.code is ErrorCode.QUEUE_TIMEOUT, number
    assert (rig.to(1), rig.preparing) == ([], [1])
    goes_on.set()
    end = await rig.end_of(1)
    assert isinstance(end, Refused) and end.code is ErrorCode.INVALID_VALUE
    await until(lambda: rig.in_flight.count == 0)


async def test_whatever_holds_the_media_thread_lets_it_go(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request comes to its end, also one that is made once more and needs the thread for
    that, while nothing more may be decoded."""
    monkeypatch.setattr(open_requests, "_MAX_HELD_BYTES", 100)
    rig = await start(max_queue=30)
    rig.picture_bytes = 60
    structure = Structure(StructureKind.JSON_SCHEMA, DISTINCT, "response_format")
    checked = json.dumps({"pieces": ["[1,", " 1]"], "again": ["[1,", " 2]"]})
    numbers = range(1, 16)
    for number in numbers:
        again = number % 3 == 1
        content = f"{checked} " + " " * number if again else json.dumps({"tokens": 2})
        fields: dict[str, Any] = {"structure": structure, "whole": True} if again else {}
        rig.serving.receive(ROUTER, seeing(number, content, **fields), [b"%d" % number])
        if number % 5 == 0:
            rig.serving.receive(ROUTER, Cancel(number))
    await until(lambda: rig.in_flight.count == 0)
    finished = {end.stream_id for one in rig.outputs for end in one.finished}
    assert finished == {number for number in numbers if number % 5}
    assert rig.decoded.count(b"1") == 2, "it was made once more"
    assert not rig.media._pauses


async def test_media_are_decoded_while_earlier_answers_are_written(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the model has seen takes no memory any more, however long its answer is."""
    monkeypatch.setattr(open_requests, "_MAX_HELD_BYTES", 100)
    rig = await start(max_rows=8)
    rig.picture_bytes = 120
    long = json.dumps({"tokens": 3000, "step_s": 0.02})
    for number in range(1, 6):
        rig.serving.receive(ROUTER, seeing(number, long), [b"%d" % number])
    await until(lambda: len(rig.decoded) == 5)
    await until(lambda: rig.thread.rows == 5 and not rig.media._pauses)
    assert not any(one.finished for one in rig.outputs)
    for number in range(1, 6):
        rig.serving.receive(ROUTER, Cancel(number))
    await until(lambda: rig.in_flight.count == 0)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_waits_for_its_media_takes_one_place(start: Start, cancelled: bool) -> None:
    rig = await start(max_rows=8)
    endless = json.dumps({"tokens": 4000, "step_s": 0.02})
    for number in (1, 2):
        rig.serving.receive(
            ROUTER, replace(seeing(number, endless), max_tokens=4000), [b"%d" % number]
        )
    await until(lambda: {one.stream_id for out in rig.outputs for one in out.deltas} == {1, 2})
    rig.may_decode.clear()
    rig.thread.set_memory_pressure(MemoryPressure.HARD)
    await until(lambda: rig.thread.preempted_total)
    rig.thread.set_memory_pressure(MemoryPressure.NONE)
    await until(lambda: len(rig.decoded) == 3)
    assert rig.in_flight.count == 2
    if cancelled:
        rig.serving.receive(ROUTER, Cancel(2))
        await until(lambda: rig.thread.clock.in_flight == 1)
        assert rig.in_flight.count == 2, "its media are still decoded"
    rig.may_decode.set()
    await until(lambda: not rig.media.clock.in_flight and not rig.prompts.clock.in_flight)
    assert rig.in_flight.count == (1 if cancelled else 2)
    for number in (1, 2):
        rig.serving.receive(ROUTER, Cancel(number))
    await until(lambda: rig.thread.clock.in_flight == 0)
    assert rig.in_flight.count == 0


@pytest.mark.parametrize("spoiled", [False, True])
async def test_what_was_preempted_gets_its_media_again(start: Start, spoiled: bool) -> None:
    rig = await start(max_rows=8)
    rig.picture_bytes = 120
    pieces = [f"{number} " for number in range(200)]
    asked = json.dumps({"pieces": pieces, "step_s": 0.005})
    for number in (1, 2):
        rig.serving.receive(
            ROUTER, replace(seeing(number, asked), max_tokens=300), [b"%d" % number]
        )
    await until(lambda: {one.stream_id for out in rig.outputs for one in out.deltas} == {1, 2})
    if spoiled:
        rig.picture_bytes = 121
    rig.thread.set_memory_pressure(MemoryPressure.HARD)
    await until(lambda: rig.thread.preempted_total)
    rig.thread.set_memory_pressure(MemoryPressure.NONE)
    await until(lambda: rig.in_flight.count == 0)
    assert sorted(rig.decoded) == [b"1", b"2", b"2"]
    texts = {
        number: "".join(
            one.text for out in rig.outputs for one in out.deltas if one.stream_id == number
        )
        for number in (1, 2)
    }
    failed = [one.code for out in rig.outputs for one in out.failed]
    assert texts[1] == "".join(pieces)
    assert failed == ([ErrorCode.ENGINE_ERROR] if spoiled else [])
    assert spoiled or texts[2] == "".join(pieces)
    assert not rig.media._pauses


async def test_owners_take_turns_on_the_prompt_thread(start: Start) -> None:
    """Somebody whose prompts take long keeps others waiting for one of them, not for all."""
    rig = await start()
    seen, goes_on = prompts_held(rig)
    for number, owner in enumerate("aaaaab", start=1):
        prompt = f"{owner}{number}"
        rig.serving.receive(
            ROUTER, Generate(number, "r", Sampling(), 8, prompt=prompt, owner=owner)
        )
    await until(lambda: seen)
    goes_on.set()
    await rig.end_of(5)
    assert seen == ["a1", "b6", "a2", "a3", "a4", "a5"]


async def test_a_model_that_does_not_write_says_what_it_does(start: Start) -> None:
    rig = await start(writes=False)
    rig.serving.receive(ROUTER, Generate(1, "r", Sampling(), 8, prompt="x"))
    refused = await rig.end_of(1)
    assert isinstance(refused, Refused)
    assert (refused.code, refused.param) == (ErrorCode.UNSUPPORTED_VALUE, "model")
    assert "/v1/embeddings" in refused.message


async def test_generations_and_tasks_of_an_owner_take_the_same_places(start: Start) -> None:
    """Else somebody could fill the queue by asking for both."""
    rig = await start(max_queue=17)
    _, goes_on = prompts_held(rig)
    for number in range(1, 18):
        if number % 2:
            request = Generate(number, "r", Sampling(), 8, prompt="x", owner="o")
            rig.serving.receive(ROUTER, request)
        else:
            rig.embed(number, "a", owner="o")
    # Two of eighteen places are kept for others.
    assert [m.stream_id for _, m in rig.sent if isinstance(m, Refused)] == [17]
    rig.embed(18, "a", owner="other")
    goes_on.set()
    assert isinstance(await rig.end_of(18), TaskFinished)
