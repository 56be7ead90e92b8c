"""``python -m lmx.router`` as a real process: its start, its signals, its ends, its weight."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import zmq.asyncio

from lmx.protocol.messages.control import Drained, RouterBeat, RouterHello
from lmx.protocol.wire.codec import encode
from lmx.protocol.wire.endpoints import RunDirectory
from tests.support.fakes.fake_peers import (
    FakeStream,
    FakeSupervisor,
    FakeWorker,
    ends,
    fake_peers,
    plays,
    ready,
    until,
)
from tests.support.rigs.router_rig import (
    INSTANCE,
    MODEL,
    answer,
    chat_body,
    data_lines,
    joined_text,
    listening_socket,
    router_spec,
)


@dataclass
class Started:
    """A router process that has answered its first request."""

    process: asyncio.subprocess.Process
    url: str
    log: Path

    async def post(self, http: aiohttp.ClientSession, **fields: Any) -> aiohttp.ClientResponse:
        return await http.post(f"{self.url}/v1/chat/completions", json=chat_body(**fields))


@contextlib.asynccontextmanager
async def router_process(
    run_dir: RunDirectory, *, program: Sequence[str] = ("-m", "lmx.router"), **fields: Any
) -> AsyncIterator[Started]:
    with listening_socket() as listener:
        port = listener.getsockname()[1]
        spec = router_spec(run_dir, port, listen_fd=listener.fileno(), **fields)
        process = await asyncio.create_subprocess_exec(
            sys.executable, *program, stdin=asyncio.subprocess.PIPE, pass_fds=[listener.fileno()],
        )  # fmt: skip
        try:
            assert process.stdin is not None
            process.stdin.write(encode(spec))
            process.stdin.close()
            url = f"http://127.0.0.1:{port}"
            # The listening socket is there before the process: this waits in its backlog.
            async with aiohttp.ClientSession() as http, http.get(f"{url}/health") as response:
                await response.read()
            yield Started(process, url, Path(spec.log.path))
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def supervised(
    context: zmq.asyncio.Context, run_dir: RunDirectory, script: Any
) -> AsyncIterator[tuple[FakeSupervisor, FakeWorker]]:
    supervisor = FakeSupervisor(context, run_dir)
    worker = FakeWorker(context, run_dir, INSTANCE, script)
    await supervisor.publish(ready(MODEL, INSTANCE), default=MODEL)
    try:
        yield supervisor, worker
    finally:
        await worker.stop()
        await supervisor.stop()


async def settled(started: Started, http: aiohttp.ClientSession) -> None:
    """Wait until the router knows its models."""

    async def healthy() -> bool:
        async with http.get(f"{started.url}/health") as response:
            return response.status == 200

    async with asyncio.timeout(90):
        while not await healthy():
            await asyncio.sleep(0.02)


async def test_it_serves_says_hello_and_beats() -> None:
    async with (
        fake_peers() as (context, run_dir),
        supervised(context, run_dir, answer) as (supervisor, _),
        router_process(run_dir) as started,
        aiohttp.ClientSession() as http,
    ):
        await settled(started, http)
        response = await started.post(http)
        assert response.status == 200
        await until(lambda: supervisor.count(RouterBeat) >= 3)
        pid = started.process.pid
        port = int(started.url.rpartition(":")[2])
        assert RouterHello(pid, "0000cafe", port) in supervisor.seen

        def beats() -> list[RouterBeat]:
            return [one for one in supervisor.seen if isinstance(one, RouterBeat)]

        await until(lambda: beats()[-1].requests_total == 1)
        assert beats()[-1].pid == pid

        def accesses() -> list[dict[str, Any]]:
            # The last line may be half written.
            lines = started.log.read_text().splitlines(keepends=True)
            entries = [json.loads(line) for line in lines if line.endswith("\n")]
            return [
                entry
                for entry in entries
                if entry["event"] == "http.request" and entry["path"] == "/v1/chat/completions"
            ]

        # It is written once the answer has left.
        (access,) = await until(accesses)
        assert access["status"] == 200
        assert (access["model"], access["stream"]) == (MODEL, False)
        assert (access["prompt_tokens"], access["completion_tokens"]) == (7, 5)
        assert access["finish_reason"] == "stop"
        assert access["request_id"] == response.headers["X-Request-Id"]
        assert 0 < access["ttft_s"] <= access["duration_s"]


async def test_sigterm_lets_streams_finish_and_refuses_new_ones() -> None:
    release = asyncio.Event()

    async with (
        fake_peers() as (context, run_dir),
        supervised(context, run_dir, plays("so far", release, ends(" and the end"))) as (_, worker),
        router_process(run_dir) as started,
        aiohttp.ClientSession() as http,
    ):
        await settled(started, http)
        response = await started.post(http, stream=True)
        await worker.stream()
        await settled(started, http)
        started.process.send_signal(signal.SIGTERM)
        await until(lambda: "router.stopping" in started.log.read_text())
        # On the connection kept alive by that check, and on a new one.
        async with aiohttp.ClientSession() as another:
            for session in (http, another):
                async with asyncio.timeout(90):
                    refused = await started.post(session)
                    assert refused.status == 503
                    assert (await refused.json())["error"]["code"] == "shutting_down"
                    assert int(refused.headers["Retry-After"]) >= 1
        release.set()
        lines = data_lines(await response.read())
        assert lines[-1] == "[DONE]"
        assert joined_text(lines) == "so far and the end"
        assert await asyncio.wait_for(started.process.wait(), 300) == 0


async def test_streams_beyond_the_grace_end_with_an_error_event() -> None:
    async with (
        fake_peers() as (context, run_dir),
        supervised(context, run_dir, plays("so far")) as (_, worker),
        router_process(run_dir, shutdown_grace_s=0.2) as started,
        aiohttp.ClientSession() as http,
    ):
        await settled(started, http)
        response = await started.post(http, stream=True)
        fake = await worker.stream()
        started.process.send_signal(signal.SIGTERM)
        lines = data_lines(await response.read())
        assert json.loads(lines[-1])["error"]["code"] == "shutting_down"
        assert await asyncio.wait_for(started.process.wait(), 300) == 0
        await until(lambda: fake.cancelled)


async def test_sigint_is_ignored_and_sigquit_leaves_stacks() -> None:
    async with (
        fake_peers() as (_, run_dir),
        router_process(run_dir) as started,
        aiohttp.ClientSession() as http,
    ):
        started.process.send_signal(signal.SIGINT)
        async with http.get(f"{started.url}/health") as response:
            assert response.status == 503
        started.process.send_signal(signal.SIGQUIT)
        # None is the current one where the signal comes to a thread that is not Python's.
        await until(lambda: "thread 0x" in started.log.read_text().lower())
        async with http.get(f"{started.url}/health") as response:
            assert response.status == 503, "it continues"


HANGING = """
import asyncio, pathlib, sys
from lmx.router.server import process
from lmx.router.process import main

measure = process.Router._measure

def hang(router):
    transports = asyncio.get_running_loop()._transports.values()
    stuck = any(each.get_write_buffer_size() for each in transports)
    while stuck and pathlib.Path(sys.argv[1]).exists():
        pathlib.Path(sys.argv[1] + ".now").touch()
    return measure(router)

process.Router._measure = hang
sys.exit(main())
"""


@contextlib.asynccontextmanager
async def slow_reader(started: Started) -> AsyncIterator[asyncio.StreamReader]:
    """A client that takes nothing of its stream after the first bytes."""
    port = int(started.url.rpartition(":")[2])
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=client, limit=1024)
    body = json.dumps(chat_body(stream=True, max_tokens=9)).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    await reader.readuntil(b"\r\n\r\n")
    try:
        yield reader
    finally:
        writer.close()


async def test_a_router_whose_loop_hangs_ends_its_streams_with_an_error(tmp_path: Path) -> None:
    flood = "x" * 200_000

    async def script(fake: FakeStream) -> None:
        await fake.accept()
        await fake.say("so far")
        if fake.request.max_tokens == 9:
            with contextlib.suppress(asyncio.CancelledError):
                for _ in range(60):
                    await fake.say(flood)

    hangs = tmp_path / "hangs"
    program = ("-c", HANGING, str(hangs))
    async with (
        fake_peers() as (context, run_dir),
        supervised(context, run_dir, script) as (_, worker),
        router_process(run_dir, program=program) as started,
        aiohttp.ClientSession() as http,
    ):
        await settled(started, http)
        streamed = await started.post(http, stream=True)
        first = await streamed.content.readuntil(b"so far")
        whole = asyncio.create_task(started.post(http))
        await worker.stream(1)
        async with slow_reader(started) as slow:
            await worker.stream(2)
            hangs.touch()
            in_it = tmp_path / "hangs.now"
            # The loop hangs in a beat, once a client has not taken all that it was sent.
            await until(in_it.exists)
            started.process.send_signal(signal.SIGUSR2)
            # Whole events to the end, and the end of the body in HTTP's form too.
            lines = data_lines(first + await streamed.read())
            assert json.loads(lines[-1])["error"]["code"] == "router_hung"
            refused = await whole
            assert refused.status == 503
            assert (await refused.json())["error"]["code"] == "router_hung"
            assert refused.headers["X-Request-Id"]
            assert int(refused.headers["Retry-After"]) >= 1
            # Who had not taken what came before is cut off, within no event of another's.
            assert b"router_hung" not in await slow.read()
            await asyncio.wait_for(started.process.wait(), 60)
        assert started.process.returncode == 1
        log = started.log.read_text()
        assert "router.unresponsive" in log
        assert "in hang" in log


async def test_it_serves_503_without_a_supervisor_and_ends_as_an_orphan() -> None:
    async with (
        fake_peers() as (_, run_dir),
        router_process(run_dir, orphan_grace_s=12.0) as started,
        aiohttp.ClientSession() as http,
    ):
        response = await started.post(http)
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "supervisor_unavailable"
        assert await asyncio.wait_for(started.process.wait(), 300) == 0
        assert "router.orphaned" in started.log.read_text()


@pytest.mark.parametrize("spec", [b"garbage", encode(Drained("0000000a"))])
async def test_a_bad_spec_is_exit_2(spec: bytes) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lmx.router",
        stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, errors = await process.communicate(spec)
    assert process.returncode == 2
    assert b"lmx.router: " in errors
    assert b"Traceback" not in errors


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc's allocator is asked to")
async def test_memory_comes_back_after_slow_readers() -> None:
    async def flood(fake: FakeStream) -> None:
        await fake.accept()
        with contextlib.suppress(asyncio.CancelledError, AssertionError):
            while not fake.cancelled:
                await fake.say_within_credit("x" * 20_000)

    async with (
        fake_peers() as (context, run_dir),
        supervised(context, run_dir, flood),
        router_process(run_dir) as started,
        aiohttp.ClientSession() as http,
    ):
        await settled(started, http)
        memory = psutil.Process(started.process.pid).memory_info
        base_bytes = memory().rss
        async with contextlib.AsyncExitStack() as readers:
            for _ in range(20):
                await readers.enter_async_context(slow_reader(started))
            await until(lambda: memory().rss > base_bytes + 120 * 2**20)
        await until(lambda: memory().rss < base_bytes + 80 * 2**20)
