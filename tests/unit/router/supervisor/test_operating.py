"""What operators use: the global limit, the admin key, the reload."""

import asyncio
from typing import Any

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.control import Denied, ReloadConfig, Reloaded, RouterBeat
from lmx.protocol.messages.peers import Peer, PeerKind, PeerList
from lmx.protocol.messages.status import GetStatus, Status
from lmx.protocol.wire.codec import encode
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
