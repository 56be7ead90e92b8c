"""A router that another one replaces: what is under way is answered, nothing new is taken."""

import asyncio
import json
import socket
from pathlib import Path

import aiohttp
import pytest

from lmx.protocol.messages.control import Event, EventList, GetEvents
from lmx.protocol.messages.inventory import Downloads, DownloadView, GetDownloads
from lmx.protocol.states import DownloadStatus
from lmx.router.server import process
from tests.support.fakes.fake_peers import ends, plays, until
from tests.support.rigs.router_rig import (
    MODEL,
    Rig,
    chat_body,
    data_lines,
    joined_text,
    router_rig,
)


async def test_it_answers_what_is_under_way_and_says_goodbye_on_kept_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A busy machine may need more than its second for the last request of a kept connection.
    monkeypatch.setattr(process, "_LINGER_S", 10.0)
    release = asyncio.Event()
    slow = plays("so far", release, ends(" and the end"))

    async with router_rig(slow) as rig, aiohttp.ClientSession() as other:
        async with other.get(f"{rig.url}/health") as response:
            await response.read()
            assert "Connection" not in response.headers
        response = await rig.chat(stream=True)
        await rig.worker.stream()
        port = int(rig.url.rpartition(":")[2])
        retiring = asyncio.create_task(rig.router.retire())
        # The rig's listener is closed with its only router: no connection is taken any more.
        async with asyncio.timeout(90):
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
        await asyncio.wait_for(retiring, 90)


async def test_a_slow_client_gets_the_answer_to_its_first_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_LINGER_S", 0.0)
    monkeypatch.setattr(process, "_FIRST_REQUEST_S", 90.0)
    ask = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with router_rig() as rig:
        port = int(rig.url.rpartition(":")[2])
        used, use = await asyncio.open_connection("127.0.0.1", port)
        new, renew = await asyncio.open_connection("127.0.0.1", port)
        use.write(ask)
        await used.readuntil(b"\r\n\r\n")
        retiring = asyncio.create_task(rig.router.retire())
        async with asyncio.timeout(90):
            await used.read()  # It is closed: its client connects again for one more.
            renew.write(ask)
            answer = await new.read()
        assert answer.startswith(b"HTTP/1.1 200 ") and b"Connection: close" in answer
        await asyncio.wait_for(retiring, 90)
        for writer in (use, renew):
            writer.close()


async def test_a_body_that_is_arriving_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LINGER_S", 0.0)
    body = json.dumps(chat_body()).encode()
    ask = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head = f"{ask}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    async with router_rig() as rig:
        port = int(rig.url.rpartition(":")[2])
        idle, use = await asyncio.open_connection("127.0.0.1", port)
        slow, send = await asyncio.open_connection("127.0.0.1", port)
        use.write(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await idle.readuntil(b"\r\n\r\n")
        send.write(head.encode() + body[:9])
        await until(lambda: rig.router.traffic.under_way)
        retiring = asyncio.create_task(rig.router.retire())
        async with asyncio.timeout(90):
            await idle.read()  # It is closed, and the other one would have been.
            send.write(body[9:])
            answer = await slow.read()
        assert answer.startswith(b"HTTP/1.1 200 ") and b"Connection: close" in answer
        await asyncio.wait_for(retiring, 90)
        for writer in (use, send):
            writer.close()


async def test_a_websocket_with_a_response_under_way_is_still_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_LINGER_S", 0.0)
    release = asyncio.Event()
    ask = {"type": "response.create", "model": MODEL, "input": "hi"}
    async with (
        router_rig(plays("so far", release, ends(" and the end"))) as rig,
        rig.http.get(f"{rig.url}/health") as kept,
        rig.http.ws_connect(f"{rig.url}/v1/responses", autoping=False) as socket,
    ):
        await kept.read()
        await socket.send_json(ask)
        await until(lambda: rig.worker.streams)
        retiring = asyncio.create_task(rig.router.retire())
        await until(lambda: rig.router._retired)
        await socket.ping(b"here?")
        while (message := await socket.receive(timeout=90)).type is not aiohttp.WSMsgType.PONG:
            assert message.type is aiohttp.WSMsgType.TEXT
        release.set()
        async for message in socket:
            if message.json()["type"] == "response.completed":
                break
        assert (await socket.receive(timeout=90)).extra is not None
        assert socket.close_code == aiohttp.WSCloseCode.SERVICE_RESTART
        await asyncio.wait_for(retiring, 90)


FOLLOWED = {
    "/admin/events": EventList("e", 1, (Event(1, 0.0, "worker.ready", MODEL, "", {}),)),
    "/admin/live": None,
    "/admin/logs/router?lines=1": None,
    "/admin/models/download/dl_1/progress": Downloads(
        (DownloadView("dl_1", "a/b", None, None, DownloadStatus.DOWNLOADING, 100, 50, 1.0, 0.0),)
    ),
}


@pytest.mark.parametrize("path", FOLLOWED)
async def test_who_follows_something_does_not_hold_it_up(rig: Rig, path: str) -> None:
    rig.supervisor.replies = {
        GetEvents: FOLLOWED["/admin/events"],
        GetDownloads: FOLLOWED["/admin/models/download/dl_1/progress"],
    }
    log_file = Path(rig.spec.logs_dir) / "router.log"
    log_file.write_text("a line\n")
    headers = {"X-Admin-Key": rig.spec.admin_key}
    async with rig.http.get(f"{rig.url}{path}", headers=headers) as response:
        assert response.status == 200
        assert (await response.content.readline()).strip()
        await asyncio.wait_for(rig.router.retire(), 90)
        await asyncio.wait_for(rig.router.stop(grace_s=60.0), 90)
        await response.read()


def connects(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
