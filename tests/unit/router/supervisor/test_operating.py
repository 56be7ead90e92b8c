"""What operators use: the global limit, the admin key, the reload."""

import asyncio
import socket
import time
from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode, UnavailableError
from lmx.protocol.messages.control import BeatSeen, Denied, ReloadConfig, Reloaded, RouterBeat
from lmx.protocol.messages.keys import ApiKey, GetKeyring, Keyring
from lmx.protocol.messages.peers import GetPeers, Peer, PeerKind, PeerList
from lmx.protocol.messages.status import GetStatus, Status
from lmx.protocol.wire.codec import Envelope, decode, encode
from lmx.router.supervisor import link
from lmx.router.supervisor.link import Questions
from tests.support.fakes.admin_lines import reported_status
from tests.support.fakes.fake_peers import plays, until
from tests.support.rigs.router_rig import Rig, router_rig

KEY = {"X-Admin-Key": "test-admin-key"}
RELOAD = "/admin/config/reload"


accept_only = plays()


async def ask(
    rig: Rig, method: str, path: str, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    async with rig.http.request(method, f"{rig.url}{path}", headers=headers or {}) as response:
        is_json = response.content_type == "application/json"
        return response.status, await (response.json() if is_json else response.text())


# The limit of requests at a time.


async def test_more_requests_than_the_limit_are_429_and_operators_get_through() -> None:
    async with router_rig(accept_only, max_requests=2) as rig:
        rig.supervisor.replies = {
            ReloadConfig: Reloaded((), ()),
            GetStatus: Status(reported_status()),
        }
        held = [asyncio.create_task(rig.chat_json()) for _ in range(2)]
        await rig.worker.stream(1)
        async with rig.chat() as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) >= 1
            error = (await response.json())["error"]
            assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
        assert (await ask(rig, "GET", "/v1/models"))[0] == 429
        for path in ("/health", "/metrics"):
            assert (await ask(rig, "GET", path))[0] == 200
        assert (await ask(rig, "POST", RELOAD, KEY))[0] == 200
        assert rig.router.traffic.under_way == 2
        held.pop().cancel()
        await until(lambda: rig.router.traffic.under_way == 1)
        assert (await ask(rig, "GET", "/v1/models"))[0] == 200
        held.pop().cancel()


# Reload.


async def test_a_reload_says_what_changed(rig: Rig) -> None:
    rig.supervisor.replies[ReloadConfig] = Reloaded(("models", "memory"), ("added tiny",))
    status, body = await ask(rig, "POST", RELOAD, KEY)
    assert status == 200
    assert body == {"success": True, "updated": ["models", "memory"], "changes": ["added tiny"]}


async def test_a_bad_configuration_is_a_400_with_all_that_is_wrong() -> None:
    problems = "memory.soft_line: must be below 1\nmodels[0].id: missing"
    async with router_rig() as rig:
        rig.supervisor.replies[ReloadConfig] = Denied(ErrorCode.CONFIG_INVALID, problems)
        status, body = await ask(rig, "POST", RELOAD, KEY)
    assert (status, body["error"]["code"]) == (400, "config_invalid")
    assert body["error"]["message"] == problems


async def test_a_reload_without_a_supervisor_is_503(rig: Rig) -> None:
    await rig.supervisor.stop()
    status, body = await ask(rig, "POST", RELOAD, KEY)
    assert (status, body["error"]["code"]) == (503, "supervisor_unavailable")


@pytest.mark.parametrize("parts", [1, link._PARTS])
async def test_a_reply_that_has_come_is_taken_by_a_router_that_stood_still_past_the_deadline(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_PARTS", parts)
    loop = asyncio.get_running_loop()
    sent: list[Envelope] = []
    ours, theirs = socket.socketpair()

    def send(payload: bytes) -> bool:
        sent.append(decode(payload))
        return True

    def read() -> None:
        # The reply is there only some rounds of the loop later, as with a socket of ZeroMQ.
        reply = int(ours.recv(1))
        loop.call_soon(loop.call_soon, questions.answered, sent[0].correlation, reply)

    questions = Questions(send)
    with ours, theirs:
        loop.add_reader(ours, read)
        asked = asyncio.create_task(questions.ask(GetStatus(), 0.05))
        await until(lambda: bool(sent))
        theirs.send(b"7")
        time.sleep(0.3)
        assert await asked == 7
        loop.remove_reader(ours)
    with pytest.raises(UnavailableError, match="did not answer in time"):
        await questions.ask(GetStatus(), 0.05)


async def test_a_snapshot_that_comes_again_is_answered_by_a_beat_that_names_it() -> None:
    async with router_rig(beat_interval_s=600.0) as rig:
        supervisor = rig.supervisor
        await rig.publish(*supervisor.models)
        beats = len(rig.asked(RouterBeat))
        await supervisor.publish_raw(encode(supervisor.snapshot()))
        await until(lambda: len(rig.asked(RouterBeat)) > beats)
        beat = rig.asked(RouterBeat)[-1]
        assert (beat.epoch, beat.revision) == (supervisor.epoch, supervisor.revision)
        # So is a list of peers.
        peers = PeerList.of((Peer("other", "http://127.0.0.1:9", PeerKind.OPENAI),))
        assert beat.peers != peers.digest
        await supervisor.publish_raw(encode(peers))
        await until(lambda: rig.asked(RouterBeat)[-1].peers == peers.digest)


@pytest.mark.parametrize("kind", [PeerList, Keyring])
async def test_a_late_reply_undoes_nothing_that_was_published_meanwhile(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    old: Any = PeerList.of((Peer("old", "http://127.0.0.1:9"),))
    new: Any = PeerList.of((Peer("new", "http://127.0.0.1:9"),))
    if kind is Keyring:
        old, new = (Keyring.of((ApiKey.of_secret(text),)) for text in ("old", "new"))
    async with router_rig() as rig:
        found, asked = rig.router.supervisor, asyncio.Event()
        really = found._questions.ask

        async def ask(question: Any, deadline_s: float) -> Any:
            if not isinstance(question, GetPeers | GetKeyring):
                # The router asks for other things too, whenever it likes.
                return await really(question, deadline_s)
            asked.set()
            found._on_event(Envelope(new, 0), lambda: RouterBeat(1, 0, 0, 0))
            return old

        monkeypatch.setattr(found._questions, "ask", ask)
        digests = {"peers" if kind is PeerList else "keyring": old.digest}
        found._on_control(Envelope(BeatSeen(rig.supervisor.epoch, 0, **digests), 0))
        await asyncio.wait_for(asyncio.gather(*found._refreshes.values()), 90)
        assert asked.is_set()
        held = rig.router.peers if kind is PeerList else rig.router.keys.ring
        assert held.digest == new.digest
