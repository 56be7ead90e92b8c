"""Files that were made to do harm, sent as requests: each gets an answer that says so, while
streams of the same model and of another one go on."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import aiohttp
import psutil
import pytest
from hostile_media import HARMLESS, Hostile, hostile_media, picture
from media_pieces import jpeg_of_scans
from rig import Rig, Stream, ask, http, rig, scripted, whole

from lmx.protocol.states import MediaKind

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

REFUSALS = {400, 408, 413, 504}
MOST_BYTES = 300_000
AT_ONCE = 4
LONGEST_GAP_S = 5.0
"""It is seconds, because the machine of the tests may be busy with others."""


@pytest.fixture(scope="module")
def server() -> Iterator[Rig]:
    seeing = scripted("seeing", options={"media": True, "step_s": 0.02})
    config = {"models": [seeing, scripted("other", options={"step_s": 0.02})]}
    with rig(config) as lmx:
        for model in ("seeing", "other"):
            lmx.wait_state(model, "ready")
        yield lmx


def _part(kind: MediaKind, form: str, file: bytes) -> dict[str, object]:
    data = base64.b64encode(file).decode()
    match kind:
        case MediaKind.IMAGE:
            return {"type": "image_url", "image_url": {"url": f"data:image/{form};base64,{data}"}}
        case MediaKind.AUDIO:
            return {"type": "input_audio", "input_audio": {"data": data, "format": form}}
        case MediaKind.VIDEO:
            return {"type": "video_url", "video_url": {"url": f"data:video/{form};base64,{data}"}}


def _body(kind: MediaKind, form: str, file: bytes) -> bytes:
    content = [{"type": "text", "text": "What is it?"}, _part(kind, form, file)]
    body = {"model": "seeing", "messages": [{"role": "user", "content": content}]}
    return json.dumps(body).encode()


async def _post(session: aiohttp.ClientSession, url: str, body: bytes) -> tuple[int, str]:
    headers = {"Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=200)
    async with session.post(
        f"{url}/chat/completions", data=body, headers=headers, timeout=timeout
    ) as response:
        answer = await response.json()
        return response.status, (answer.get("error") or {}).get("param") or ""


def _decoding_s(server: Rig) -> float:
    """Return how long the workers' decoders have computed."""
    total_s = 0.0
    for process in server.processes():
        with contextlib.suppress(psutil.Error):
            if "lmx.worker.media.decoding.main" in process.cmdline():
                total_s += process.cpu_times().user
    return total_s


async def _until(condition: Callable[[], bool], deadline_s: float = 20.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.02)


@asynccontextmanager
async def _watched(*streams: Stream) -> AsyncIterator[list[float]]:
    """Measure the longest time in which one of the streams got no text."""

    async def watch(stream: Stream) -> None:
        length, since_s = len(stream.text), time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            if len(stream.text) > length:
                length, since_s = len(stream.text), now
            longest[0] = max(longest[0], now - since_s)

    longest = [0.0]
    tasks = [asyncio.create_task(watch(stream)) for stream in streams]
    try:
        yield longest
    finally:
        for task in tasks:
            task.cancel()


# What becomes of each file is tested without HTTP; here it is what becomes of the others meanwhile.
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
async def test_streams_go_on_while_hostile_files_are_refused(server: Rig, every: int) -> None:
    # The router believes nobody what a file is: such a one is a good file.
    rows = [(row, row.make()) for row in hostile_media() if "that is called" not in row.name]
    sent = [(row, _body(row.kind, row.form, file)) for row, file in rows if len(file) < MOST_BYTES]
    sent = sent[::every]
    assert len(sent) >= 200 // every
    assert {row.kind for row, _ in sent} == set(MediaKind)
    places = asyncio.Semaphore(AT_ONCE)
    answers: dict[str, tuple[int, str]] = {}

    async def send(row: Hostile, body: bytes) -> None:
        async with places:
            answers[row.name] = await _post(session, server.url, body)

    async with http() as session:
        forever = {"tokens": 100_000}
        same = Stream(session, server.url, ask("seeing", forever, max_tokens=100_000))
        other = Stream(session, server.url, ask("other", forever, max_tokens=100_000))
        for stream in (same, other):
            await stream.has_text(50)
        async with _watched(same, other) as longest:
            await asyncio.gather(*(send(*one) for one in sent))
        for stream in (same, other):
            assert not stream.errors and not stream.broken and not stream.done
            await stream.has_text(len(stream.text) + 50)
            await stream.hang_up()
        honest = _body(MediaKind.IMAGE, "png", picture("png"))
        assert (await _post(session, server.url, honest))[0] == 200
    print(f"\n{len(sent)} files, longest gap {longest[0]:.3f} s")
    assert longest[0] < LONGEST_GAP_S
    ends = {row.name: row.ends for row, _ in sent}
    surprises = {
        name: answer
        for name, answer in answers.items()
        if not (
            (answer[0] in REFUSALS and answer[1].startswith("messages[0].content[1]"))
            or (answer[0] == HARMLESS and HARMLESS in ends[name])
        )
    }
    assert len(answers) == len(sent) and not surprises


async def test_a_new_text_does_not_wait_for_a_file_that_takes_long(server: Rig) -> None:
    """Nor do the streams that run, of the same model and of another one."""
    body = _body(MediaKind.IMAGE, "jpeg", jpeg_of_scans(1500, 4000))
    async with http() as session:
        forever = {"tokens": 100_000}
        same = Stream(session, server.url, ask("seeing", forever, max_tokens=100_000))
        other = Stream(session, server.url, ask("other", forever, max_tokens=100_000))
        for stream in (same, other):
            await stream.has_text(50)
        async with _watched(same, other) as longest:
            used_s = _decoding_s(server)
            slow = asyncio.create_task(_post(session, server.url, body))
            await _until(lambda: _decoding_s(server) > used_s + 0.2)
            for _ in range(3):
                status, answer = await whole(session, server.url, "seeing", {"tokens": 3})
                assert status == 200, answer
            used_s = _decoding_s(server)
            await _until(lambda: _decoding_s(server) > used_s + 0.2)
            # Whoever leaves does not wait for it either.
            for stream in (same, other):
                await stream.has_text(len(stream.text) + 100)
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
        for stream in (same, other):
            assert not stream.errors
            await stream.hang_up()
    print(f"\nlongest gap {longest[0]:.3f} s")
    assert longest[0] < LONGEST_GAP_S
