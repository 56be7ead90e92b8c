"""Files that were made to do harm, and servers and names that mean no good, in requests: each gets
an answer that says so, while streams of the same model and of another one go on. What a decoder
may take, and a request whose worker ends."""

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import KillModel
from lmx.protocol.models.decode_limits import DecodeLimits
from lmx.protocol.states import MediaKind
from tests.support.fakes import fake_names
from tests.support.fakes.fake_names import Answers
from tests.support.fakes.media_files import sine, wav_file
from tests.support.fakes.media_pieces import flac_silence, jpeg_of_scans, png
from tests.support.faults.hostile_answers import (
    NOT_PUBLIC,
    NOT_TO_BE_ASKED,
    OTHER_SPELLINGS,
    bad_answers,
)
from tests.support.faults.hostile_media import HARMLESS, Hostile, hostile_media, picture
from tests.support.faults.hostile_server import (
    Answer,
    HostileServer,
    answer,
    hostile_server,
    redirect,
)
from tests.support.rigs.rig import Rig, Stream, ask, http, rig, scripted, wait_until, whole

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

REFUSALS = {400, 408, 413, 504}
MOST_BYTES = 300_000
AT_ONCE = 4
FEWEST_ADVANCES = 20
"""A stream that others hold up gets its text once they have ended. How long that takes says how
busy the machine is."""


MOST_ITEM_BYTES = 10 * 1024**2
LIMITS = {
    "allowed_networks": ["127.0.0.1"],
    "max_item_bytes": MOST_ITEM_BYTES,
    "connect_timeout_s": 3.0,
    "read_timeout_s": 4.0,
    "total_timeout_s": 10.0,
    "max_fetches": 64,
    "max_audio_s": 600,
}
NAMES: Answers = {
    "changes.test": [["127.0.0.1"], ["127.0.0.2"]],
    "changes-back.test": [["127.0.0.2"], ["127.0.0.1"]],
    "hops.test": [["127.0.0.1"], ["127.0.0.2"]],
    "two.test": [["127.0.0.2", "127.0.0.1"]],
    "keys.test": [["169.254.169.254"]],
    "inside.test": [["10.0.0.1", "192.168.1.1"]],
    "six.test": [["::1"]],
    "nobody.test": [[]],
    "silent.test": [None],
}
"""``changes`` and ``hops`` lead to another address at the second look-up."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it is noted which names were looked up."""
    return tmp_path_factory.mktemp("names")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Rig]:
    options = {"media": True, "step_s": 0.02}
    config = {
        "models": [
            scripted("seeing", options=options, media={"max_image_pixels": 20_000_000}),
            scripted("other", options=options),
        ],
        "media": LIMITS,
        "restart": {"backoff_base_s": 0.05, "backoff_max_s": 0.1, "max_failures": 20},
        # A test holds a worker up for seconds.
        "timing": {"stall_timeout_s": 60.0},
    }
    with rig(config, fake_names.variables(folder, NAMES)) as lmx:
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


def _body(kind: MediaKind, form: str, file: bytes, model: str = "seeing") -> bytes:
    return _asking(_part(kind, form, file), model)


def _asking(part: dict[str, object], model: str = "seeing") -> bytes:
    content = [{"type": "text", "text": "What is it?"}, part]
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    return json.dumps(body).encode()


def _at(url: str) -> bytes:
    return _asking({"type": "image_url", "image_url": {"url": url}})


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
    for process in server.running("lmx.worker.media.decoding.main"):
        with contextlib.suppress(psutil.Error):
            total_s += process.cpu_times().user
    return total_s


async def _until(condition: Callable[[], bool], deadline_s: float = 90.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.02)


@asynccontextmanager
async def _go_on(*streams: Stream) -> AsyncIterator[list[int]]:
    """Check that each of the streams gets text again and again within the block. Gives how often
    each has had more."""
    advances = [0] * len(streams)

    async def watch(place: int, stream: Stream) -> None:
        length = len(stream.text)
        while True:
            await asyncio.sleep(0.01)
            advances[place] += len(stream.text) > length
            length = len(stream.text)

    tasks = [asyncio.create_task(watch(*one)) for one in enumerate(streams)]
    try:
        yield advances
    finally:
        for task in tasks:
            task.cancel()
    assert min(advances) >= FEWEST_ADVANCES


@asynccontextmanager
async def _streams_go_on(session: aiohttp.ClientSession, server: Rig) -> AsyncIterator[None]:
    """Check that a stream of each model goes on during the block."""
    forever = {"tokens": 100_000}
    streams = [
        Stream(session, server.url, ask(model, forever, max_tokens=100_000))
        for model in ("seeing", "other")
    ]
    for stream in streams:
        await stream.has_text(50)
    async with _go_on(*streams):
        yield
    for stream in streams:
        assert not stream.errors and not stream.broken and not stream.done
        await stream.has_text(len(stream.text) + 50)
        await stream.hang_up()


# What becomes of each file is tested without HTTP; here it is what becomes of the others meanwhile.
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
async def test_streams_continue_while_hostile_files_are_refused(server: Rig, every: int) -> None:
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
        async with _streams_go_on(session, server):
            await asyncio.gather(*(send(*one) for one in sent))
        honest = _body(MediaKind.IMAGE, "png", picture("png"))
        assert (await _post(session, server.url, honest))[0] == 200
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
        async with _go_on(same, other) as advances:
            used_s = _decoding_s(server)
            slow = asyncio.create_task(_post(session, server.url, body))
            await _until(lambda: _decoding_s(server) > used_s + 0.2)
            for _ in range(3):
                status, answer = await whole(session, server.url, "seeing", {"tokens": 3})
                assert status == 200, answer
            used_s = _decoding_s(server)
            await _until(lambda: _decoding_s(server) > used_s + 0.2)
            await _until(lambda: min(advances) >= FEWEST_ADVANCES)
            # Whoever leaves does not wait for it either.
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
        for stream in (same, other):
            assert not stream.errors
            await stream.hang_up()


REDIRECTS: dict[str, str] = {
    "loop": "/loop", "there": "/back", "back": "/there",
    **{f"step-{step}": f"/step-{step + 1}" for step in range(7)},
    "nowhere": "",
}  # fmt: skip
CONTENT: dict[str, Answer] = {
    "svg": answer(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "Content-Type: image/png"),
    "html": answer(b"<!DOCTYPE html><title>x</title>", "Content-Type: image/jpeg"),
    "json": answer(b'{"image": true}', "Content-Type: image/png"),
    "pdf": answer(b"%PDF-1.7 ", "Content-Type: image/png"),
    "sound": answer(wav_file(sine(440, 0.1, 16_000), 16_000), "Content-Type: image/png"),
    "half": answer(picture("png")[:90], "Content-Type: image/png"),
    "empty": answer(b"", "Content-Type: image/png"),
}
"""What is no picture, by whatever type it is called."""

STATUSES = {
    ErrorCode.MEDIA_NOT_FETCHED: 400,
    ErrorCode.MEDIA_TOO_LARGE: 413,
    ErrorCode.MEDIA_TIMEOUT: 504,
}


def _cases(good: HostileServer) -> dict[str, tuple[str, set[int]]]:
    """Return the URLs of hostile servers by name, each with the statuses that may follow."""
    for name, where in REDIRECTS.items():
        good.answers[f"/{name}"] = redirect(where)
    cases = {name: (f"{good.url}/{name}", {400}) for name in ("loop", "there", "step-0", "nowhere")}
    for place, url in enumerate((*NOT_PUBLIC, *OTHER_SPELLINGS, *NOT_TO_BE_ASKED)):
        good.answers[f"/to-{place}"] = redirect(url)
        cases[f"a redirect to {url}"] = (f"{good.url}/to-{place}", {400})
        cases[url] = (url, {400})
    for name, content in CONTENT.items():
        good.answers[f"/{name}"] = content
        cases[name] = (f"{good.url}/{name}", {400})
    for place, (name, (said, code)) in enumerate(bad_answers(MOST_ITEM_BYTES).items()):
        good.answers[f"/bad-{place}"] = said
        cases[name] = (f"{good.url}/bad-{place}", {STATUSES[code]})
    for name in ("changes-back", "keys", "inside", "six", "nobody"):
        cases[name] = (f"http://{name}.test:{good.port}/good", {400})
    cases["silent"] = (f"http://silent.test:{good.port}/good", {504})
    good.answers["/hop"] = redirect(f"http://hops.test:{good.port}/good")
    cases["a name that has moved"] = (f"http://hops.test:{good.port}/hop", {400})
    return cases


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has one loopback address")
async def test_streams_continue_while_hostile_servers_and_names_are_refused(
    server: Rig, folder: Path
) -> None:
    places = asyncio.Semaphore(2 * AT_ONCE)
    answers: dict[str, tuple[int, str]] = {}

    async def send(name: str, url: str) -> None:
        async with places:
            answers[name] = await _post(session, server.url, _at(url))

    honest = answer(picture("png"), "Content-Type: text/html")
    async with http() as session, hostile_server() as good, _neighbour(good.port) as bad:
        good.answers["/good"] = bad.answers["/good"] = bad.answers["/"] = honest
        cases = _cases(good)
        async with _streams_go_on(session, server):
            await asyncio.gather(*(send(name, url) for name, (url, _) in cases.items()))
        surprises = {
            name: answers[name]
            for name, (_, ends) in cases.items()
            if answers[name][0] not in ends
            or answers[name][1] != "messages[0].content[1].image_url"
        }
        assert len(answers) == len(cases) and not surprises
        # The address that was checked is the one that is connected to: of each name the first,
        # though a second look-up would give one that may not be asked.
        for name in ("changes", "two"):
            url = f"http://{name}.test:{good.port}/good"
            assert await _post(session, server.url, _at(url)) == (200, "")
        asked = fake_names.looked_up(folder)
        assert asked.count("changes.test") == 1 and asked.count("hops.test") == 2
        assert bad.requests == [], "nobody was led there"


@asynccontextmanager
async def _neighbour(port: int) -> AsyncIterator[HostileServer]:
    """A server on the same port of an address that may not be asked."""
    async with hostile_server("127.0.0.2", port) as bad:
        yield bad


async def test_the_decoder_has_the_limits_of_the_configuration_and_its_memory_is_reported(
    server: Rig,
) -> None:
    """A key of the model goes before that of all."""
    large = _body(MediaKind.IMAGE, "png", png(6000, 4000))
    long = flac_silence(700, 8000)
    async with http() as session:
        seen = await _post(session, server.url, large)
        assert seen == (413, "messages[0].content[1].image_url")
        heard = await _post(session, server.url, _body(MediaKind.AUDIO, "flac", long))
        assert heard == (413, "messages[0].content[1].input_audio")
        other = _body(MediaKind.IMAGE, "png", png(6000, 4000), "other")
        assert (await _post(session, server.url, other))[0] == 200
    decoder_bytes = await asyncio.to_thread(
        wait_until, lambda: server.worker("other")["decoder_bytes"], "the decoder is told"
    )
    assert 10 << 20 < decoder_bytes < DecodeLimits().process_bytes
    print(f"\nafter one image the decoder has {decoder_bytes >> 20} MiB")


async def _ask(
    session: aiohttp.ClientSession, server: Rig, directive: object, part: dict[str, object] | None
) -> tuple[int, str]:
    """Ask with a directive of the scripted engine, behind a turn with a part. Return the status,
    and the answer or the code of the error."""
    turns = [{"role": "user", "content": [part]}] if part else []
    turns.append({"role": "user", "content": json.dumps(directive)})
    body = {"model": "seeing", "messages": turns}
    async with session.post(f"{server.url}/chat/completions", json=body) as response:
        reported = await response.json()
        if "error" in reported:
            return response.status, reported["error"]["code"]
        return response.status, reported["choices"][0]["message"]["content"]


async def _held(server: Rig, count: int) -> None:
    """Wait until the worker has so many requests."""

    def holds() -> bool:
        line = server.worker("seeing")
        return bool(line["requests_active"] + line["requests_queued"] >= count)

    await asyncio.to_thread(wait_until, holds, f"the worker has {count} requests")


async def _until_idle(server: Rig) -> None:
    """Wait until the worker has no request."""

    def idle() -> bool:
        line = server.worker("seeing")
        return bool(line["requests_active"] + line["requests_queued"] == 0)

    await asyncio.to_thread(wait_until, idle, "the worker is idle")


async def test_an_image_whose_worker_ends_is_sent_again_unless_the_worker_had_begun(
    server: Rig,
) -> None:
    """A request that its worker had not begun with goes to the next worker, with its image, while
    it waits for its turn and while it is decoded. One that its worker had begun with gets the
    reason, and when its client sends it again, an answer."""
    image = _part(MediaKind.IMAGE, "png", picture("png"))
    slow = _part(MediaKind.IMAGE, "jpeg", jpeg_of_scans(120, 2000))
    quickly, answer_of_it = {"tokens": 3}, (200, "word " * 3)
    async with http() as session:
        # What is reported of earlier requests is a beat old.
        await _until_idle(server)
        # A text is begun with at once: the image behind it waits.
        line = await asyncio.to_thread(server.wait_state, "seeing", "ready")
        begun = asyncio.create_task(_ask(session, server, {"encode_s": 60}, None))
        await _held(server, 1)
        waiting = asyncio.create_task(_ask(session, server, quickly, image))
        await _held(server, 2)
        os.kill(line["pid"], signal.SIGKILL)
        assert await waiting == answer_of_it
        assert await begun == (500, "worker_crashed")
        decoding = asyncio.create_task(_ask(session, server, quickly, slow))
        await _held(server, 1)
        await asyncio.to_thread(server.ask, KillModel("seeing"))
        assert await decoding == answer_of_it
        await asyncio.to_thread(server.wait_state, "seeing", "ready")
        assert await _ask(session, server, {"crash_at": 0}, image) == (500, "worker_crashed")
        assert await _ask(session, server, quickly, image) == answer_of_it
