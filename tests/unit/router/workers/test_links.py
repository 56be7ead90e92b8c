"""What the router does when peers and clients leave, fall silent, stall, or come late."""

import asyncio
import contextlib
import json
import socket
import time
from pathlib import Path

import aiohttp
import pytest
import structlog
import zmq.asyncio

from lmx.protocol.messages.control import Acquired, RouterHello, WorkerExited
from lmx.protocol.messages.data import Delta, Outputs, Pulse
from lmx.protocol.messages.snapshot import GetSnapshot
from lmx.protocol.states import ExitCause
from lmx.protocol.wire.codec import encode
from lmx.router.server.process import Router
from lmx.router.workers import link
from lmx.router.workers.link import WorkerLink
from lmx.router.workers.stream import CREDIT_DELTAS
from tests.support.fakes.fake_peers import (
    FakeStream,
    FakeSupervisor,
    cold,
    ends,
    plays,
    ready,
    until,
)
from tests.support.rigs.router_rig import (
    INSTANCE,
    MODEL,
    Rig,
    answer,
    chat_body,
    joined_text,
    router_rig,
)

LOADED = "0000000b"


accept_only = plays()


async def never_answer(stream: FakeStream) -> None:
    """Neither accepted nor refused: still queued, as far as the router knows."""


begin = plays("so far")


def read_to_end(reader: socket.socket) -> bytes:
    reader.settimeout(30)
    rest = b""
    with reader, contextlib.suppress(ConnectionResetError):
        while data := reader.recv(65536):
            rest = rest[-100:] + data
    return rest


# Clients that leave.


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [never_answer, accept_only, begin])
async def test_a_client_that_leaves_cancels_its_generation(stream: bool, script: object) -> None:
    async with router_rig(script) as rig:  # type: ignore[arg-type]
        request = asyncio.create_task(rig.chat_json(stream=stream))
        fake = await rig.worker.stream()
        assert not fake.cancelled
        request.cancel()
        await until(lambda: fake.cancelled)
        assert rig.router.workers.open_streams == 0
        await until(lambda: rig.router.traffic.under_way == 0)


async def test_what_is_too_large_for_a_worker_cuts_nobody_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker drops the connection from which it gets more."""
    monkeypatch.setattr(link, "MAX_MESSAGE_BYTES", 5_000)
    go_on = asyncio.Event()
    async with router_rig(plays("so far", go_on, ends("."))) as rig:
        other = asyncio.create_task(rig.chat_events())
        await rig.worker.stream()
        status, refused = await rig.chat_json(messages=[{"role": "user", "content": "x" * 5_000}])
        assert (status, refused["error"]["code"]) == (413, "request_too_large")
        go_on.set()
        assert joined_text(await other) == "so far."
        assert len(rig.worker.streams) == 1
        assert rig.router.workers.open_streams == 0


async def test_a_stream_that_ended_well_is_not_cancelled(rig: Rig) -> None:
    await rig.chat_json()
    await rig.chat_events()
    await rig.chat_json()
    assert not any(stream.cancelled for stream in rig.worker.streams)


# Slow and stalled readers.


async def test_credit_comes_back_as_deltas_are_taken() -> None:
    async def say_much(fake: FakeStream) -> None:
        await fake.accept()
        for index in range(1000):
            await fake.say_within_credit(f"{index} ")
        await fake.finish()

    async with router_rig(say_much) as rig:
        lines = await rig.chat_events()
    assert joined_text(lines) == "".join(f"{index} " for index in range(1000))


async def test_a_reader_that_stalls_holds_little_and_is_cancelled() -> None:
    sent = 0

    async def flood(fake: FakeStream) -> None:
        nonlocal sent
        await fake.accept()
        while not fake.cancelled:
            await fake.say_within_credit("x" * 4096)
            sent += 1

    async with router_rig(flood, stall_timeout_s=0.5) as rig:
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = rig.spec.host, rig.spec.port
        await asyncio.to_thread(reader.connect, (host, port))
        body = json.dumps(chat_body(stream=True)).encode()
        reader.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        fake = await rig.worker.stream()
        await until(lambda: fake.cancelled)
        # The connection's buffers filled, then the credit ran out and the worker had to wait.
        assert fake.credit == 0
        assert sent * 4096 < 16 * 1024 * 1024
        assert rig.router.workers.open_streams == 0
        await until(lambda: rig.router.traffic.under_way == 0)
        # Dropped, not ended: what the reader still finds has no end of the chunked body.
        rest = await asyncio.to_thread(read_to_end, reader)
        assert not rest.endswith(b"0\r\n\r\n")


async def test_a_worker_beyond_its_credit_loses_the_stream() -> None:
    async def flood(fake: FakeStream) -> None:
        await fake.accept()
        many = tuple(Delta(fake.request.stream_id, "x", 1) for _ in range(20 * CREDIT_DELTAS))
        await fake.send(Outputs(deltas=many))

    async with router_rig(flood) as rig:
        status, body = await rig.chat_json()
        fake = await rig.worker.stream()
        await until(lambda: fake.cancelled)
    assert (status, body["error"]["code"]) == (500, "protocol_error")


async def test_a_worker_that_never_pauses_leaves_the_loop_to_others(tmp_path: Path) -> None:
    class Flood:
        """A socket that always has one more message, for long."""

        def __init__(self) -> None:
            self.received = 0

        def recv(self) -> asyncio.Future[bytes]:
            self.received += 1
            coming: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            if self.received < 10_000:
                coming.set_result(encode(Pulse(INSTANCE, 1)))
            return coming

        def close(self) -> None:
            pass

    context = zmq.asyncio.Context()
    link = WorkerLink(context, f"ipc://{tmp_path}/nobody", INSTANCE, 10.0)
    link._socket.close()
    link._socket = flood = Flood()
    for _ in range(10):
        await asyncio.sleep(0)
    assert 0 < flood.received <= 100
    link.close()
    context.term()


# Workers that leave or fall silent.


async def test_silence_is_worker_lost_and_a_pulse_is_no_silence() -> None:
    async with router_rig(begin, worker_silence_s=1.5) as rig:
        request = asyncio.create_task(rig.chat_events())
        fake = await rig.worker.stream()
        done, _ = await asyncio.wait([request], timeout=3.0)
        assert not done, "pulses keep a silent generation alive"
        rig.worker.pulses = False
        lines = await asyncio.wait_for(request, 90)
        assert json.loads(lines[-1])["error"]["code"] == "worker_lost"
        await until(lambda: fake.cancelled)
        assert joined_text(lines[:-1]) == "so far"


async def test_requests_that_come_meanwhile_do_not_hide_a_silence() -> None:
    async with router_rig(begin, worker_silence_s=1.5) as rig:
        request = asyncio.create_task(rig.chat_events())
        await rig.worker.stream()
        rig.worker.pulses = False
        rig.worker.script = never_answer
        others = []
        async with asyncio.timeout(90):
            while not request.done():
                others.append(asyncio.create_task(rig.chat_json()))
                await asyncio.wait([request], timeout=0.3)
        assert json.loads(request.result()[-1])["error"]["code"] == "worker_lost"
        for other in others:
            other.cancel()
        await asyncio.wait(others)


async def test_silence_without_open_streams_means_nothing() -> None:
    async with router_rig(worker_silence_s=1.0) as rig:
        await rig.chat_json()
        rig.worker.pulses = False
        with structlog.testing.capture_logs() as logs:
            await asyncio.sleep(1.5)  # the time itself is what is tested: more than a silence
            status, _ = await rig.chat_json()
        assert status == 200
        assert "worker.silent" not in [line["event"] for line in logs]


async def test_last_words_that_the_news_of_the_exit_overtook_are_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lmx.router.workers.links._LAST_MESSAGES_S", 60.0)
    async with router_rig(begin) as rig:
        request = asyncio.create_task(rig.chat_events())
        fake = await rig.worker.stream()
        await rig.supervisor.exited(INSTANCE, MODEL, ExitCause.UNLOADED, "")
        await until(lambda: INSTANCE not in rig.router.workers.instances)
        await fake.finish(" and the end")
        lines = await request
    assert lines[-1] == "[DONE]"
    assert joined_text(lines) == "so far and the end"


async def test_last_words_are_delivered_by_a_router_that_stood_still() -> None:
    """What has come and what is due are there at once then."""
    async with router_rig(begin) as rig:
        request = asyncio.create_task(rig.chat_events())
        fake = await rig.worker.stream()
        await until(lambda: rig.router.live.all[0].tokens)
        rig.router.workers.worker_exited(WorkerExited(INSTANCE, MODEL, ExitCause.CRASH, ""))
        await fake.finish(" and the end")
        time.sleep(1.0)  # the whole process stands still, but for zmq
        lines = await request
    assert lines[-1] == "[DONE]"
    assert joined_text(lines) == "so far and the end"


async def test_no_request_goes_to_a_worker_that_has_ended_before_a_snapshot_lacks_it() -> None:
    """Nobody would answer it, and nobody would say so."""
    async with router_rig() as rig:
        await rig.chat_json()
        await rig.worker.stop()
        await rig.supervisor.exited(INSTANCE, MODEL, ExitCause.CRASH, "")
        await until(lambda: INSTANCE not in rig.router.workers.instances)
        request = asyncio.create_task(rig.chat_json())
        # The answer to the question may name it too.
        await rig.supervisor.reply(0, Acquired(MODEL, INSTANCE))
        rig.add_worker(LOADED, answer)
        await rig.supervisor.reply(1, Acquired(MODEL, LOADED))
        status, body = await request
        assert status == 200, body


@pytest.mark.parametrize(
    ("cause", "level"), [(ExitCause.UNLOADED, "info"), (ExitCause.CRASH, "warning")]
)
async def test_a_worker_that_was_to_end_and_had_nothing_to_do_is_no_warning(
    rig: Rig, cause: ExitCause, level: str
) -> None:
    await rig.chat_json()
    with structlog.testing.capture_logs() as logs:
        await rig.supervisor.exited(INSTANCE, MODEL, cause, "")
        await until(lambda: INSTANCE not in rig.router.workers.instances)
    assert [line["log_level"] for line in logs if line["event"] == "worker.exited"] == [level]


async def test_links_close_when_their_instance_leaves_unless_streams_are_open() -> None:
    release = asyncio.Event()

    async def slow(fake: FakeStream) -> None:
        await begin(fake)
        await release.wait()
        await fake.finish()

    async with router_rig(slow) as rig:
        request = asyncio.create_task(rig.chat_events())
        await rig.worker.stream()
        await rig.publish(cold(MODEL))
        assert INSTANCE in rig.router.workers.instances
        release.set()
        assert (await request)[-1] == "[DONE]"
        await rig.supervisor.publish(cold(MODEL))
        await until(lambda: not rig.router.workers.instances)


async def test_an_instance_that_is_not_there_goes_through_acquire() -> None:
    async with router_rig(worker_silence_s=0.3) as rig:
        await rig.publish(ready(MODEL, "deadbeef"))
        rig.supervisor.acquire_reply = lambda question: Acquired(question.model_id, INSTANCE)
        status, _ = await rig.chat_json()
        assert status == 200


# The supervisor.


async def test_a_lost_snapshot_heals_through_the_revision_of_a_beat(rig: Rig) -> None:
    rig.supervisor.publishes = False
    asked = rig.supervisor.count(GetSnapshot)
    await rig.publish(ready(MODEL, INSTANCE), cold("new"))
    assert rig.supervisor.count(GetSnapshot) == asked + 1


async def test_a_new_supervisor_learns_who_we_are_and_replaces_the_directory(rig: Rig) -> None:
    await rig.supervisor.publish(ready(MODEL, INSTANCE))
    await rig.supervisor.publish(ready(MODEL, INSTANCE))
    old = rig.supervisor
    await old.stop()
    rig.supervisor = FakeSupervisor(rig.context, rig.run_dir)
    await rig.supervisor.publish(cold("other"))
    assert rig.supervisor.revision < old.revision
    await until(lambda: rig.supervisor.count(RouterHello) == 1)

    def other_only() -> bool:
        latest = rig.router.supervisor.latest
        return latest is not None and [m.model_id for m in latest.models] == ["other"]

    await until(other_only)


async def test_a_router_without_any_supervisor_answers_503(rig: Rig) -> None:
    async with aiohttp.ClientSession() as http:
        forget_snapshot(rig.router)
        rig.supervisor.answers_beats = False
        async with http.get(f"{rig.url}/v1/models") as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "supervisor_unavailable"


async def test_a_request_before_the_first_snapshot_waits_for_it(rig: Rig) -> None:
    async with aiohttp.ClientSession() as http:
        rig.supervisor.answers_beats = False
        forget_snapshot(rig.router)
        asked = asyncio.create_task(http.get(f"{rig.url}/v1/models"))
        done, _ = await asyncio.wait([asked], timeout=0.2)
        assert not done
        await rig.supervisor.publish(cold("first"))
        async with await asked as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["first"]


def forget_snapshot(router: Router) -> None:
    """As at the very start: nothing is known yet."""
    router.supervisor._directory = None


async def test_garbage_on_the_sockets_is_dropped() -> None:
    async with router_rig(begin) as rig:
        request = asyncio.create_task(rig.chat_events())
        fake = await rig.worker.stream()
        await until(lambda: fake.credit < fake.request.credit_deltas)  # it has begun
        await rig.worker.send_raw(fake, b"garbage")
        await rig.worker.send_raw(fake, b"")
        await rig.supervisor.publish_raw(b"\x93garbage")
        await fake.finish(" fine")
        assert joined_text(await request) == "so far fine"
        await rig.publish(cold("still-heard"))
