"""A router that another one replaces: what is under way is answered, nothing new is taken."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from fake_peers import FakeStream
from router_rig import data_lines, joined_text, router_rig


async def test_it_answers_what_is_under_way_and_says_goodbye_on_kept_connections() -> None:
    release = asyncio.Event()

    async def slow(fake: FakeStream) -> None:
        await fake.accept()
        await fake.say("so far")
        await release.wait()
        await fake.finish(" and the end")

    async with router_rig(slow) as rig, aiohttp.ClientSession() as other:
        async with other.get(f"{rig.url}/health") as response:
            await response.read()
            assert "Connection" not in response.headers
        response = await rig.chat(stream=True)
        await rig.worker.stream()
        port = int(rig.url.rpartition(":")[2])
        retiring = asyncio.create_task(rig.router.retire())
        # The rig's listener is closed with its only router: no connection is taken any more.
        async with asyncio.timeout(5):
            while await asyncio.to_thread(connects, port):
                await asyncio.sleep(0.02)
        async with other.get(f"{rig.url}/health") as kept:
            assert (kept.status, kept.headers["Connection"]) == (200, "close")
        with pytest.raises(aiohttp.ClientConnectorError):
            await other.get(f"{rig.url}/health")
        assert not retiring.done()
        release.set()
        lines = data_lines(await response.read())
        assert (joined_text(lines), lines[-1]) == ("so far and the end", "[DONE]")
        await asyncio.wait_for(retiring, 5)


def connects(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
