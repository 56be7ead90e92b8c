"""Streams that follow what happens end with their key, and say why; an answer ends as it would."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import aiohttp
import orjson
import pytest

from lmx.protocol.messages.control import EventList, GetEvents
from lmx.protocol.messages.keys import ApiKey, FormerSecret, Keyring, KeyScope, secret_digest
from lmx.router.http import access
from tests.support.fakes.fake_peers import ends, plays, until
from tests.support.rigs.router_rig import MODEL, Rig, chat_body, router_rig

SECRETS = {name: f"the-secret-of-{name}" for name in ("viewer", "other", "client")}
VIEWER, OTHER, CLIENT = (
    ApiKey.of_secret(SECRETS[name], name, scopes=(scope,))
    for name, scope in (
        ("viewer", KeyScope.OPERATOR),
        ("other", KeyScope.OPERATOR),
        ("client", KeyScope.INFERENCE),
    )
)
STREAMS = ("/admin/live", "/admin/events", f"/admin/logs/{MODEL}")


def rotated(key: ApiKey, former: tuple[FormerSecret, ...] = ()) -> ApiKey:
    return replace(key, digest=secret_digest("another-secret"), former=former)


CHANGES: dict[str, tuple[Callable[[ApiKey], ApiKey | None], str]] = {
    "revoked": (lambda _: None, "was revoked"),
    "rotated": (rotated, "has another secret now"),
    "rotated with a grace time that ends": (
        lambda key: rotated(key, (FormerSecret(key.digest, time.time() + 0.3),)),
        "has another secret now",
    ),
    "expired": (lambda key: replace(key, expires_at_s=time.time() + 0.3), "expired on"),
    "of another scope": (lambda key: replace(key, scopes=(KeyScope.METRICS,)), "is not enough"),
}


def last_error(text: str) -> dict[str, str]:
    assert text.endswith("\n\n")
    *_, line = text.removesuffix("\n\n").split("\n")
    found: dict[str, str] = orjson.loads(line.removeprefix("data: "))["error"]
    return found


def headers(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {SECRETS[name]}"}


def put(rig: Rig, *keys: ApiKey | None) -> None:
    rig.router.keys.put(Keyring.of(tuple(key for key in keys if key is not None)))


@pytest.mark.parametrize("change", CHANGES)
async def test_streams_of_operators_end_with_their_key(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "PERMIT_S", 0.05)
    changed, why = CHANGES[change]
    async with router_rig(api_keys=(VIEWER, OTHER)) as rig, AsyncExitStack() as opened:
        rig.supervisor.replies[GetEvents] = EventList("e1", 0, ())

        async def open_stream(name: str, path: str) -> aiohttp.ClientResponse:
            request = rig.http.get(f"{rig.url}{path}", headers=headers(name))
            response = await opened.enter_async_context(request)
            assert response.status == 200
            return response

        streams = [await open_stream("viewer", path) for path in STREAMS]
        stays = [await open_stream("other", path) for path in STREAMS]
        put(rig, changed(VIEWER), OTHER)
        async with asyncio.timeout(90):
            texts = [await stream.text() for stream in streams]
        for text in texts:
            error = last_error(text)
            assert error["code"] in ("invalid_authentication", "permission_denied")
            assert "The key 'viewer'" in error["message"]
            assert why in error["message"]
        assert not any(stream.content.at_eof() for stream in stays)


async def test_an_answer_of_a_revoked_key_ends_as_it_would_and_its_followers_do_not() -> None:
    go_on = asyncio.Event()
    script = plays("Hel", go_on, "lo ", ends("you"))
    body = {"model": MODEL, "input": "hi", "stream": True, "background": True}
    async with router_rig(script, api_keys=(CLIENT, OTHER)) as rig:
        chat = rig.http.post(
            f"{rig.url}/v1/chat/completions", json=chat_body(stream=True), headers=headers("client")
        )
        begun = rig.http.post(f"{rig.url}/v1/responses", json=body, headers=headers("client"))
        async with chat as answer, begun as response:
            seen = b""
            while b"Hel" not in seen or not seen.endswith(b"\n\n"):
                seen += await response.content.readany()
            job_id = orjson.loads(seen.split(b"\n")[1].removeprefix(b"data: "))["response"]["id"]
            path = f"{rig.url}/v1/responses/{job_id}"
            following = rig.http.get(f"{path}?stream=true", headers=headers("client"))
            async with following as follower:
                assert follower.status == 200
                put(rig, OTHER)
                async with asyncio.timeout(90):
                    *_, last = (await follower.text()).removesuffix("\n\n").split("\n")
                error = orjson.loads(last.removeprefix("data: "))
                assert (error["type"], error["code"]) == ("error", "invalid_authentication")
                assert "The key 'client' was revoked" in error["message"], "and nobody needs one"
            go_on.set()
            assert (await answer.text()).endswith("data: [DONE]\n\n")
            assert "response.completed" in await response.text()
        async with rig.http.get(path) as hidden:
            assert hidden.status == 404
        await until(lambda: not rig.router.live.all)
