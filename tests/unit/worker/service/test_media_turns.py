"""Media are decoded before a prompt's turn, so that the prompts of others don't wait."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import BACKGROUND_PRIORITY, Generate, Preparing, Refused, Sampling
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.messages.specs import LogSpec, WorkerSpec
from lmx.protocol.states import MediaForm, MediaKind, ModelKind
from lmx.worker.media.decoder import MediaDecoder
from lmx.worker.media.values import MediaNeeds
from lmx.worker.scheduling.progress import InFlight, ProgressClock
from lmx.worker.service import open_requests as module
from lmx.worker.service.fair_thread import FairThread
from lmx.worker.service.generations import Generations
from lmx.worker.service.open_requests import _LARGE_BYTES, OpenRequest, OpenRequests
from tests.support.fakes.fake_peers import until

SPEC = WorkerSpec("0", "m", "/", "/", LogSpec("/"), "a:b", {}, 1, 8, 8)
DEADLINE_S = 20.0
PICTURE = MediaItem(MediaKind.IMAGE, MediaForm.PNG, "messages[0].content[0].image_url", 3, b"")
PICTURES = MediaNeeds(frozenset({MediaKind.IMAGE}))


class _Opened(OpenRequest):
    def release(self) -> None: ...

    def cancelled(self) -> None: ...

    def fail(self, code: ErrorCode, message: str) -> None:
        raise AssertionError(f"{code}: {message}")


class _Rig:
    """The table with its three threads; it notes what happens, in order."""

    def __init__(self, needs: MediaNeeds | None = PICTURES, spec: WorkerSpec = SPEC) -> None:
        self.prompts, self.media = FairThread("prompt"), FairThread("media")
        self.checks = FairThread("check")
        self.in_flight = InFlight(self.prompts.clock, limited=(self.media.clock, self.checks.clock))
        self.sent: list[Any] = []
        self.table = OpenRequests(
            spec,
            self.prompts,
            self.media,
            self.checks,
            cast(MediaDecoder, self),
            needs,
            self.in_flight,
            self._send,
            lambda: None,
        )
        self.events: list[str] = []
        self.ends: dict[str, asyncio.Future[Any]] = {}
        self._decodes: dict[str, Callable[[], int | None]] = {}
        self._numbers = itertools.count(1)

    def begin(
        self,
        name: str,
        decode: Callable[[], int | None] | None = None,
        prepare: Callable[[], Any] = lambda: None,
        priority: int = 0,
    ) -> OpenRequest:
        """Begin a request of an owner of the same name."""
        items = (PICTURE,) if decode is not None else ()
        request = Generate(
            next(self._numbers), name, Sampling(), 1, owner=name, media=items, priority=priority
        )
        opened = _Opened(b"router", request)
        if decode is not None:
            self._decodes[name] = decode

        def preparing() -> str:
            self.events.append(f"{name} is prepared")
            prepare()
            return name

        self.table.begin(
            opened,
            preparing,
            lambda future: self.ends.update({name: future}),
            [name.encode()],
            decodes=decode is not None,
        )
        return opened

    def decode(self, items: Any, blobs: Any, needs: MediaNeeds) -> tuple[Any, ...]:
        """Stand for the decoder."""
        assert (items, needs) == ((PICTURE,), PICTURES)
        name = blobs[0].decode()
        self.events.append(f"{name} decodes")
        return (SimpleNamespace(size_bytes=self._decodes[name]() or 0),)

    async def end(self, *names: str) -> None:
        """Wait for the ends of requests."""
        await until(lambda: all(name in self.ends for name in names))

    def _send(self, router: bytes, message: Any) -> bool:
        self.sent.append(message)
        return True


async def test_a_text_is_prepared_while_the_media_of_another_are_decoded() -> None:
    rig, free = _Rig(), threading.Event()
    rig.begin("picture", lambda: _wait(free))
    rig.begin("text")
    await rig.end("text")
    assert rig.events == ["picture decodes", "text is prepared"]
    assert rig.in_flight.count == 1 and "picture" not in rig.ends
    free.set()
    await rig.end("picture")
    assert rig.events[-1] == "picture is prepared"
    assert rig.ends["picture"].result() == "picture"
    assert rig.in_flight.count == 0
    # The router is told when the prompt is made, which can end the worker.
    assert rig.sent == [Preparing(2), Preparing(1)]


async def test_a_check_holds_up_no_prompt_and_is_no_hang() -> None:
    rig, free = _Rig(), threading.Event()
    checked: list[asyncio.Future[Any]] = []
    rig.table.review(rig.begin("checked"), lambda: _wait(free), checked.append)
    rig.begin("text")
    await rig.end("text", "checked")
    assert not checked
    assert rig.in_flight.count == 1
    assert rig.in_flight.stalled_for_s(time.monotonic() + 1000) == 0
    free.set()
    await until(lambda: checked)
    assert rig.in_flight.count == 0


async def test_owners_take_turns_at_the_decoder() -> None:
    rig, free = _Rig(), threading.Event()
    rig.begin("a", lambda: _wait(free))
    await until(lambda: rig.events)
    for name in ("b", "c"):
        rig.begin(name, lambda: None)
    free.set()
    await rig.end("a", "b", "c")
    assert [event for event in rig.events if "decodes" in event] == [
        "a decodes",
        "b decodes",
        "c decodes",
    ]


async def test_the_decoding_of_its_own_media_is_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A video may take longer than a request may wait, and somebody else has the turn then."""
    clock = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    rig, free = _Rig(spec=replace(SPEC, max_queue_s=300.0)), threading.Event()
    timers = _noted_timers(monkeypatch)

    def decode() -> None:
        clock[0] += 500.0

    rig.begin("slow", None, lambda: _wait(free))
    await until(lambda: rig.events)
    video = rig.begin("video", decode)
    await until(lambda: rig.prompts._waiting)
    assert (timers, video.decode_s) == ([300.0] * 3, 500.0)
    free.set()
    await rig.end("slow", "video")
    assert rig.events[-1] == "video is prepared"


def test_a_generation_says_how_long_its_media_were_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "lmx.worker.service.generations.prepare", lambda *_, **rest: given.append(rest)
    )
    generations: Any = object.__new__(Generations)
    generations._generator = generations._facts = generations._spec = ()
    generations._sequence_ids = itertools.count()
    opened = SimpleNamespace(media=(), decode_s=40.0, request=(), run_id=1)
    generations._prepare(opened, 1000.0)
    assert given == [{"decode_s": 40.0, "is_retry": False}]


async def test_the_decoded_media_of_one_request_wait_at_most() -> None:
    rig, free = _Rig(), threading.Event()
    rig.begin("slow", None, lambda: _wait(free))
    await until(lambda: rig.events)
    for name in ("first", "second", "third"):
        rig.begin(name, lambda: None)
    await until(lambda: "first decodes" in rig.events)
    # The next one would begin at once.
    await asyncio.sleep(0.05)
    assert rig.events == ["slow is prepared", "first decodes"]
    free.set()
    await rig.end("slow", "first", "second", "third")
    assert rig.in_flight.count == 0


async def test_large_media_are_alone_until_their_prompt_is_made() -> None:
    """A processor makes copies of them: the next ones come when they are gone."""
    rig, free = _Rig(), threading.Event()
    rig.begin("large", lambda: _LARGE_BYTES, lambda: _wait(free))
    rig.begin("next", lambda: 0)
    await until(lambda: "large is prepared" in rig.events)
    # The next one would be decoded at once.
    await asyncio.sleep(0.05)
    assert rig.events == ["large decodes", "large is prepared"]
    free.set()
    await rig.end("large", "next")
    # One that is cancelled while it waits, or that fails, keeps nobody waiting.
    free.clear()
    rig.begin("slow", None, lambda: _wait(free))
    await until(lambda: "slow is prepared" in rig.events)
    gone = rig.begin("gone", lambda: _LARGE_BYTES)
    await until(lambda: "gone decodes" in rig.events)
    rig.table.cancel(b"router", gone.request.stream_id)
    free.set()
    rig.begin("last", lambda: _LARGE_BYTES, lambda: 1 / 0)
    await rig.end("gone", "last")
    assert isinstance(rig.ends["last"].exception(), ZeroDivisionError)
    await until(lambda: not rig.media._pauses)


async def test_media_that_cant_be_decoded_end_their_request_alone() -> None:
    rig = _Rig()

    def decode() -> None:
        raise RequestError(ErrorCode.INVALID_MEDIA, "no picture", param="p")

    rig.begin("bad", decode)
    rig.begin("good", lambda: None)
    await rig.end("bad", "good")
    assert isinstance(rig.ends["bad"].exception(), RequestError)
    assert "bad is prepared" not in rig.events and rig.ends["good"].result() == "good"
    assert rig.in_flight.count == 0


async def test_what_is_cancelled_is_not_decoded_and_not_prepared() -> None:
    rig, free = _Rig(), threading.Event()
    working = rig.begin("working", lambda: _wait(free))
    waiting = rig.begin("waiting", lambda: None)
    await until(lambda: rig.events)
    for opened in (working, waiting):
        rig.table.cancel(b"router", opened.request.stream_id)
    free.set()
    await rig.end("working", "waiting")
    assert rig.events == ["working decodes"]
    rig.begin("next", lambda: None)
    await rig.end("next")


@pytest.mark.parametrize("kind", [ModelKind.CHAT, ModelKind.TRANSCRIPTION])
async def test_nothing_is_decoded_while_what_is_decoded_takes_all_the_room(
    kind: ModelKind,
) -> None:
    """Hundreds of requests may wait, and each picture takes hundreds of megabytes. The room is
    what is reserved for decoding."""
    rig = _Rig(spec=replace(SPEC, kind=kind, decode=replace(SPEC.decode, memory_bytes=100)))
    held = [rig.begin(name) for name in ("one", "other")]
    await rig.end("one", "other")
    for opened in held:
        rig.table.hold(opened, 60)
    rig.events.clear()
    rig.begin("picture", lambda: None)
    rig.begin("text")
    await rig.end("text")
    assert rig.events == ["text is prepared"]
    rig.table.forget(held[0])
    await rig.end("picture")
    rig.table.forget(held[1])
    assert rig.table._held_bytes == 0


async def test_pictures_of_the_background_keep_nobody_elses_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may wait with what they hold for as long as others have something to do."""
    monkeypatch.setattr(module, "_MAX_HELD_BYTES", 100)
    rig = _Rig()
    held = rig.begin("held", priority=BACKGROUND_PRIORITY)
    await rig.end("held")
    rig.table.hold(held, 120)
    rig.begin("later", lambda: None, priority=BACKGROUND_PRIORITY)
    rig.begin("picture", lambda: None)
    await rig.end("picture")
    assert "later" not in rig.ends
    rig.table.forget(held)
    await rig.end("later")


async def test_no_owner_and_no_background_takes_all_room_for_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_FILE_BYTES", 1000)
    rig = _Rig()
    numbers = itertools.count(1)

    def admitted(size_bytes: int, owner: str, priority: int = 0) -> bool:
        blobs = [bytes(size_bytes)]
        asked = Generate(
            next(numbers), "r", Sampling(), 8, media=(PICTURE,), owner=owner, priority=priority
        )
        if rig.table.admits(b"router", asked, blobs, 0):
            opened = _Opened(b"router", asked)
            rig.table.begin(opened, lambda: None, lambda _: None, blobs, decodes=False)
            return True
        return False

    assert admitted(450, "a", BACKGROUND_PRIORITY)
    assert not admitted(100, "b", BACKGROUND_PRIORITY)
    assert admitted(500, "c")
    assert not admitted(10, "c")
    assert admitted(10, "d")


async def test_the_media_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_FILE_BYTES", 10)
    rig = _Rig()

    def submit(size_bytes: int, stream_id: int) -> OpenRequest | None:
        sizes, blobs = ([size_bytes], [bytes(size_bytes)]) if size_bytes else ([], [])
        items = tuple(replace(PICTURE, size_bytes=size) for size in sizes)
        asked = Generate(stream_id, "r", Sampling(), 8, media=items)
        if not rig.table.admits(b"router", asked, blobs, 0):
            return None
        opened = _Opened(b"router", asked)
        rig.table.begin(opened, lambda: None, lambda _: None, blobs, decodes=False)
        return opened

    first = submit(6, 7)
    assert first is not None
    assert submit(5, 8) is None
    refusals = [one for one in rig.sent if isinstance(one, Refused)]
    assert [(one.stream_id, one.code) for one in refusals] == [(8, ErrorCode.QUEUE_FULL)]
    # Text has nothing that could be too much.
    assert submit(0, 9) is not None
    rig.table.forget(first)
    assert (first.blobs, rig.table._file_bytes) == ((), 0)
    assert submit(5, 8) is not None


def test_what_has_a_deadline_of_its_own_counts_and_does_not_stall() -> None:
    """A worker whose decoder takes its time does not hang."""
    own, limited = ProgressClock(), ProgressClock()
    in_flight = InFlight(own, limited=(limited,))
    limited.begin(1.0)
    assert (in_flight.count, in_flight.stalled_for_s(100.0)) == (1, 0.0)
    own.begin(90.0)
    assert (in_flight.count, in_flight.stalled_for_s(100.0)) == (2, 10.0)


async def test_media_are_decoded_only_for_a_model_that_takes_them() -> None:
    for needs in (None, MediaNeeds(frozenset({MediaKind.AUDIO}))):
        rig = _Rig(needs)
        rig.begin("picture", lambda: None)
        await rig.end("picture")
        error = rig.ends["picture"].exception()
        assert isinstance(error, RequestError) and "no images" in error.message
        assert error.param == PICTURE.param and not rig.events
    rig = _Rig()
    opened = rig.begin("picture", lambda: 7)
    await rig.end("picture")
    assert len(opened.media) == 1


def _noted_timers(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list to which each later timer of this loop adds its delay, above 100 s."""
    loop, delays = asyncio.get_running_loop(), list[float]()
    call_later = loop.call_later

    def noted(delay: float, *rest: Any) -> asyncio.TimerHandle:
        if abs(delay) > 100:
            delays.append(delay)
        return call_later(delay, *rest)

    monkeypatch.setattr(loop, "call_later", noted)
    return delays


def _wait(free: threading.Event) -> None:
    began_s = time.monotonic()
    assert free.wait(DEADLINE_S), f"after {time.monotonic() - began_s:.0f} s"


@pytest.mark.parametrize("fails", [1, 2])
async def test_media_that_were_decoded_before_are_tried_twice(fails: int) -> None:
    """Under load a file may take longer than it may, in the middle of an answer."""
    results: list[Any] = [RequestError(ErrorCode.MEDIA_TIMEOUT, "slow")] * fails + ["media"]
    restored: list[Any] = []
    failed: list[ErrorCode] = []

    def turn(opened: Any, work: Any, done: Any, *, decodes: bool, expires: bool) -> None:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if isinstance(result := results.pop(0), Exception):
            future.set_exception(result)
        else:
            future.set_result(SimpleNamespace(size_bytes=1))
        done(future)

    generations: Any = object.__new__(Generations)
    generations._open = SimpleNamespace(
        queue=turn,
        report_if_idle=lambda: None,
        hold=lambda *_: None,
        note_restoring=lambda *_: None,
    )
    generations._thread = SimpleNamespace(restore_media=lambda *given: restored.append(given))
    generations.fail = lambda opened, code, message: failed.append(code)
    request = SimpleNamespace(request_id="r", media=())
    generations._restore_media(SimpleNamespace(gone=False, request=request, run_id=1))
    assert (len(restored), failed) == ((1, []) if fails == 1 else (0, [ErrorCode.MEDIA_TIMEOUT]))
