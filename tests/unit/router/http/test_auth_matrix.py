"""Every route of the table x every kind of key, and the decision by itself.

A new route is in the matrix by itself. What it expects follows from a small table, by the access
that the route has; which access a route must have is checked in test_access.py.
"""

import itertools
import json
import re
import time
from dataclasses import replace
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.control import Denied, RouterBeat
from lmx.protocol.messages.keys import (
    ApiKey,
    FormerSecret,
    GetKeyring,
    KeyFamily,
    Keyring,
    KeyScope,
    RateLimits,
)
from lmx.protocol.messages.status import GetStatus
from lmx.protocol.wire.codec import encode
from lmx.router.http.api_family import ANTHROPIC, OLLAMA, OPENAI
from lmx.router.http.endpoint import Access, Endpoint
from lmx.router.http.keys import Verdict, judge, opened_by
from lmx.router.schema.requests.tasks import TokenizerInfoQuery
from lmx.router.server.middleware import RequestServer
from lmx.router.server.routes import ROUTES
from tests.support.fakes.fake_peers import ready, until
from tests.support.rigs.router_rig import INSTANCE, MODEL, chat_body, router_rig

NOW_S: Final = time.time()
ADMIN: Final = "the-admin-key-of-this-test"
OTHER: Final = "org/other-model"


def named(name: str, *scopes: KeyScope, **fields: Any) -> ApiKey:
    key = ApiKey.of_secret(secret(name), name, scopes=scopes or (KeyScope.INFERENCE,))
    return replace(key, **fields)


def secret(name: str) -> str:
    return f"sk-lmx-{name}-of-this-test"


KEYS: Final = (
    named("inference"),
    named("metrics", KeyScope.METRICS),
    named("operator", KeyScope.OPERATOR),
    named("admin", KeyScope.ADMIN),
    named("peer", KeyScope.PEER),
    named("both", KeyScope.INFERENCE, KeyScope.OPERATOR),
    named("expired", *KeyScope, expires_at_s=NOW_S - 1.0),
    named("later", expires_at_s=NOW_S + 86_400.0),
    named("limited", models=("org/tiny-*",)),
    named("elsewhere", models=("nothing-*",)),
    *(named(family, families=(family,)) for family in KeyFamily),
    # Its first secret was replaced: the former one is valid no longer, the one after it still is.
    replace(
        named("rotated"),
        former=(
            FormerSecret(ApiKey.of_secret(secret("former")).digest, NOW_S + 86_400.0),
            FormerSecret(ApiKey.of_secret(secret("revoked")).digest, NOW_S - 1.0),
        ),
    ),
)

OPENS: Final[dict[str, str]] = {
    # By kind of key: what a route of each access answers. `.` passes, 1 is a 401, 3 is a 403.
    # In the order of ACCESS: open, inference, peer, metrics, local, operator, admin.
    "none": ".111111",
    "wrong": ".111111",
    "revoked": ".111111",
    "expired": ".111111",
    "inference": "..33333",
    "later": "..33333",
    "rotated": "..33333",
    "former": "..33333",
    "limited": "..33333",
    "elsewhere": "..33333",
    "openai": "..33333",
    "anthropic": "..33333",
    "ollama": "..33333",
    "metrics": ".33..33",
    "operator": ".33...3",
    "both": "..3...3",
    "admin": ".3.....",
    "peer": ".3.3333",
}
FORWARDED: Final = frozenset(
    {
        *(f"{prefix}/{name}" for prefix in ("/v1", "/v3")
            for name in ("chat/completions", "completions", "embeddings")),
        "/infill", "/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score", "/tokenize",
        "/detokenize", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
        "/v1/responses/input_tokens", "/api/chat", "/api/generate", "/api/embed",
        "/api/embeddings", "/api/show", "/api/pull", "/v1/audio/transcriptions",
        "/v1/audio/translations", "/v1/audio/speech",
    }
)  # fmt: skip
"""What peers forward, by POST: of the routes for models, these alone are for a peer's key."""

ACCESS: Final = (
    Access.OPEN, Access.INFERENCE, Access.PEER, Access.METRICS, Access.LOCAL, Access.OPERATOR,
    Access.ADMIN,
)  # fmt: skip
STATUS: Final = {".": None, "1": 401, "3": 403}


def expected(kind: str, endpoint: Endpoint) -> int | None:
    """The status of the refusal; None if the key opens the route."""
    if kind == "peer" and endpoint.method == "POST" and endpoint.path in FORWARDED:
        return None
    found = STATUS[OPENS[kind][ACCESS.index(endpoint.access)]]
    if found is None and endpoint.access is Access.INFERENCE and kind in tuple(KeyFamily):
        own = {ANTHROPIC: "anthropic", OLLAMA: "ollama"}.get(endpoint.family, "openai")
        return None if endpoint.shared or own == kind else 403
    return found


def url_path(endpoint: Endpoint) -> str:
    return re.sub(r"\{[^}]*\}", "some-id", endpoint.path.replace("{id:.+}", "some-id"))


def test_the_table_has_every_kind_of_key_and_of_access() -> None:
    assert set(ACCESS) == set(Access)
    assert all(len(row) == len(ACCESS) for row in OPENS.values())
    assert set(OPENS) == {key.name for key in KEYS} | {"none", "wrong", "revoked", "former"}


ERRORS: Final = {
    401: ("invalid_authentication", "authentication_error"),
    403: ("permission_denied", "permission_error"),
}


async def test_every_route_with_every_kind_of_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reached(_: web.Request) -> web.StreamResponse:
        raise LmxError(ErrorCode.INTERNAL, "reached")

    really = RequestServer._answer
    monkeypatch.setattr(
        RequestServer, "_answer", lambda self, request, _handler: really(self, request, reached)
    )
    async with router_rig(admin_key=ADMIN, host="0.0.0.0", keyring=Keyring.of(KEYS)) as rig:
        for route, kind in itertools.product(ROUTES, OPENS):
            headers = {} if kind == "none" else {"Authorization": f"Bearer {secret(kind)}"}
            url = rig.url + url_path(route)
            async with rig.http.request(route.method, url, headers=headers) as response:
                text = await response.text()
                said = (route.method, route.path, kind, response.status, text)
                assert response.status == (expected(kind, route) or 500), said
            assert secret(kind) not in text
            challenge = response.headers.get("WWW-Authenticate")
            takes_one = response.status == 401 and route.access is Access.INFERENCE
            assert challenge == ("Bearer" if takes_one else None), said
            if response.status == 500:
                continue
            error = json.loads(text) if route.family is OLLAMA else json.loads(text)["error"]
            code, family = ERRORS[response.status]
            assert error["code"] == code, said
            assert route.family is OLLAMA or error["type"] == family, said
            if route.family is OPENAI:
                assert set(error) == {"message", "type", "param", "code"}
        assert not rig.worker.streams


BODY: Final[dict[str, Any]] = {
    "model": OTHER, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9,
    "prompt": "hi", "input": "hi", "query": "hi", "documents": ["hi"], "queries": "hi",
    "items": ["hi"], "text_1": "hi", "text_2": "hi", "tokens": [1], "name": OTHER,
    "input_prefix": "hi", "input_suffix": "hi",
}  # fmt: skip
"""What each route takes of it is enough for it, and it ignores the rest."""


async def test_a_key_opens_its_models_alone_on_every_route() -> None:
    async with router_rig(keyring=Keyring.of(KEYS)) as rig:
        await rig.publish(
            ready(MODEL, INSTANCE, created_s=1700000000),
            ready(OTHER, "0000000b", aliases=("tiny-other",)),
            default=OTHER,
        )
        headers = {"Authorization": f"Bearer {secret('limited')}"}
        models = [
            route
            for route in ROUTES
            if route.access is Access.INFERENCE
            and (route.is_inference or route.query is TokenizerInfoQuery)
        ]
        assert len(models) > 20
        for route in models:
            data: Any = None
            left_out = "prompt" if "responses" in route.path or route.path == "/tokenize" else ""
            body = {key: BODY[key] for key in BODY if key != left_out}
            if route.form is not None:
                data = aiohttp.FormData({"model": OTHER})
                data.add_field("file", b"RIFF", filename="a.wav", content_type="audio/wav")
            async with rig.http.request(
                route.method, rig.url + route.path, headers=headers, data=data,
                json=body if route.request is not None else None,
                params={"model": OTHER} if route.query is not None else None,
            ) as response:  # fmt: skip
                text = await response.text()
                assert response.status == 403, (route.path, response.status, text)
                assert f"The key 'limited' is not for the model '{OTHER}'" in text
        assert not rig.worker.streams
        # Nor by another name, nor by no name, nor on a route.
        for name, status in (
            ("tiny-other", 403), (MODEL, 200), ("auto", 200), (None, 200), ("nobody", 404),
        ):  # fmt: skip
            body = chat_body(model=name)
            url = f"{rig.url}/v1/chat/completions"
            async with rig.http.post(url, json=body, headers=headers) as response:
                text = await response.text()
                assert response.status == status, (name, text)
                assert status != 200 or f'"model":"{MODEL}"' in text
                assert status != 404 or OTHER not in text


async def test_a_key_sees_its_models_alone_in_every_list() -> None:
    async with router_rig(keyring=Keyring.of(KEYS)) as rig:
        await rig.publish(
            ready(MODEL, INSTANCE, created_s=1700000000), ready(OTHER, "0000000b"), default=OTHER
        )
        # Ollama's list of what is loaded asks for it.
        rig.supervisor.replies[GetStatus] = Denied(ErrorCode.INTERNAL, "not now")
        for route in ROUTES:
            of_one = "{" in route.path or route.query is TokenizerInfoQuery
            lists = route.method == "GET" and not of_one and not route.streams
            if not lists or route.access not in (Access.OPEN, Access.INFERENCE):
                continue
            seen = []
            for kind in ("inference", "limited", "elsewhere", "wrong"):
                headers = {"Authorization": f"Bearer {secret(kind)}"}
                async with rig.http.get(rig.url + route.path, headers=headers) as response:
                    text = await response.text()
                seen.append((MODEL in text, OTHER in text))
            if seen[0] != (False, False):
                assert seen == [(True, True), (True, False), (False, False), (False, False)], (
                    route.path
                )


async def test_a_router_follows_other_keys_at_once_and_forgets_no_use() -> None:
    limited = named("ci", limits=RateLimits(requests_per_minute=2))
    async with router_rig(keyring=Keyring.of((limited,))) as rig:

        async def status(kind: str = "ci") -> int:
            headers = {"Authorization": f"Bearer {secret(kind)}"}
            async with rig.http.post(
                f"{rig.url}/v1/chat/completions", json=chat_body(), headers=headers
            ) as response:
                await response.read()
                return response.status

        async def follow(*keys: ApiKey) -> None:
            ring = Keyring.of(keys)
            rig.supervisor.keyring, rig.supervisor.replies[GetKeyring] = ring.digest, ring
            await rig.supervisor.publish_raw(encode(ring))
            await until(lambda: rig.router.keys.ring.digest == ring.digest)
            await until(lambda: ring.digest in [one.keyring for one in rig.asked(RouterBeat)])

        assert (await status(), await status("other")) == (200, 401)
        await follow(limited, named("other"))
        assert (await status(), await status(), await status("other")) == (200, 429, 200)
        # The same key with another secret, and other limits.
        rotated = replace(limited, digest=named("new").digest, limits=RateLimits(10))
        await follow(rotated)
        assert (await status(), await status("new"), await status("other")) == (401, 200, 401)
        # A published keyring that was missed is requested when a beat's reply names another one.
        missed = Keyring.of((named("other"),))
        rig.supervisor.replies[GetKeyring] = missed
        rig.supervisor.keyring = missed.digest
        await until(lambda: rig.router.keys.ring.digest == missed.digest)
        assert (await status("new"), await status("other")) == (401, 200)
        await follow()
        assert await status("anything") == 200


KEY_PARTS: Final = st.builds(
    ApiKey,
    digest=st.just("d"),
    owner=st.just("key_0"),
    scopes=st.sets(st.sampled_from(KeyScope), min_size=1).map(tuple),
    families=st.sets(st.sampled_from(KeyFamily)).map(tuple),
    expires_at_s=st.sampled_from((None, 5.0, 10.0, 15.0)),
)


@given(
    st.sampled_from(Access),
    st.sampled_from((None, *KeyFamily)),
    st.none() | KEY_PARTS,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(KeyScope),
)
def test_what_holds_for_every_decision(
    access: Access,
    family: KeyFamily | None,
    key: ApiKey | None,
    given: bool,
    keyless: bool,
    local: bool,
    more: KeyScope,
) -> None:
    def decide(key: ApiKey | None) -> Verdict:
        return judge(access, family, key, given=given, keyless=keyless, local=local, now_s=10.0)

    verdict = decide(key)
    free = (
        access is Access.OPEN
        or (access is Access.INFERENCE and keyless)
        or (access is Access.LOCAL and local and keyless)
    )
    if free:
        assert verdict is Verdict.ALLOWED
    elif key is None:
        assert verdict in (Verdict.ABSENT, Verdict.WRONG)
    elif key.has_expired(10.0):
        assert verdict is Verdict.EXPIRED
    else:
        assert (verdict is Verdict.SCOPE) is set(opened_by(access)).isdisjoint(key.scopes)
        # More scopes, later, and all APIs never close what was open.
        wider = replace(key, scopes=(*key.scopes, more), families=(), expires_at_s=None)
        assert verdict is not Verdict.ALLOWED or decide(wider) is Verdict.ALLOWED
        if verdict is Verdict.ALLOWED and access is Access.INFERENCE:
            assert family is None or not key.families or family in key.families
        assert decide(replace(key, expires_at_s=10.0)) is Verdict.EXPIRED


@pytest.mark.parametrize("route", ["/admin/requests", "/admin/live?follow=false"])
async def test_pieces_of_prompts_are_for_admins_alone(route: str) -> None:
    for shown, status in ((False, 200), (True, 403)):
        async with router_rig(keyring=Keyring.of(KEYS), show_rereads=shown) as rig:
            for kind, expected_status in (("operator", status), ("admin", 200)):
                headers = {"X-Admin-Key": secret(kind)}
                async with rig.http.get(rig.url + route, headers=headers) as response:
                    assert response.status == expected_status, (kind, shown)
