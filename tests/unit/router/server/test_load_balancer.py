"""Two lmx behind HAProxy, with the very text of docs/scaling.md."""

import asyncio
import contextlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest

from tests.support.fakes.fake_peers import FakeStream, ready
from tests.support.rigs.rig import ROOT
from tests.support.rigs.router_rig import INSTANCE, MODEL, TEXTS, Rig, chat_body, router_rig

HAPROXY = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")


@contextlib.asynccontextmanager
async def balanced(machines: Sequence[Rig], folder: Path) -> AsyncIterator[str]:
    """The URL of HAProxy in front of the machines."""
    assert HAPROXY is not None
    (text,) = re.findall(r"```haproxy\n(.*?)```", (ROOT / "docs/scaling.md").read_text(), re.S)
    addresses = re.findall(r"192\.168\.1\.\d+:8000", text)
    for address, machine in zip(addresses, machines, strict=True):
        text = text.replace(address, f"127.0.0.1:{machine.spec.port}")
    # A machine that is slow is not lost: a check would give it a second to answer.
    text = text.replace("defaults\n", "defaults\n    timeout check 60s\n")
    path = folder / "haproxy.cfg"
    with socket.create_server(("127.0.0.1", 0)) as front:
        # It listens already, so that nobody else can have its port.
        port, number = front.getsockname()[1], front.fileno()
        path.write_text(text.replace("bind :8080", f"bind fd@{number}"))
        process = subprocess.Popen(
            [HAPROXY, "-db", "-f", str(path)],
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(number,),
        )  # fmt: skip

    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 60)


async def ask(session: aiohttp.ClientSession, url: str) -> int:
    """Ask once, over a connection of its own."""
    headers = {"Connection": "close"}
    async with session.post(
        f"{url}/v1/chat/completions", json=chat_body(), headers=headers
    ) as response:
        await response.read()
        return response.status


@pytest.mark.skipif(HAPROXY is None, reason="no haproxy (Debian's package) on the PATH")
async def test_a_balancer_sends_nothing_to_a_machine_that_is_drained_or_lost(
    tmp_path: Path,
) -> None:
    enough = asyncio.Event()

    async def slow(stream: FakeStream) -> None:
        await stream.accept()
        await stream.say(TEXTS[0])
        await enough.wait()
        await stream.finish(TEXTS[1], tokens=2)

    async with (
        router_rig(slow) as a,
        router_rig(slow) as b,
        balanced((a, b), tmp_path) as url,
        aiohttp.ClientSession() as session,
    ):
        served = [a.worker.streams, b.worker.streams]
        # One stream each, whose tokens come while the answers are written.
        answers = []
        for _ in range(2):
            body = chat_body(stream=True)
            response = await session.post(f"{url}/v1/chat/completions", json=body)
            assert TEXTS[0] in (await response.content.readuntil(TEXTS[0].encode())).decode()
            answers.append(response)
        assert [len(streams) for streams in served] == [1, 1]
        # A machine that is drained ends its stream, and gets nothing more until it is back.
        loaded = ready(MODEL, INSTANCE, created_s=1)
        await a.publish(loaded, default=MODEL, drained=True)
        enough.set()
        for response in answers:
            assert b"[DONE]" in await response.read()

        async def all_go_to(rig: Rig) -> bool:
            before = [len(streams) for streams in served]
            statuses = {await ask(session, url) for _ in range(4)}
            more = [len(streams) - were for streams, were in zip(served, before, strict=True)]
            wanted = [4, 0] if rig is a else [0, 4]
            return statuses == {200} and more == wanted

        async def wait_for(rig: Rig) -> None:
            async with asyncio.timeout(90):
                while not await all_go_to(rig):
                    await asyncio.sleep(0.1)

        await wait_for(b)
        await a.publish(loaded, default=MODEL)
        await b.publish(loaded, default=MODEL, drained=True)
        await wait_for(a)
        await b.publish(loaded, default=MODEL)
        before = len(served[1])
        async with asyncio.timeout(90):
            while len(served[1]) == before:
                assert await ask(session, url) == 200
        # One that is lost: not even the request that finds out gets an error.
        await a.router.stop(grace_s=0.0)
        assert {await ask(session, url) for _ in range(6)} == {200}
        assert await all_go_to(b)
