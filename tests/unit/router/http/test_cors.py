"""Web pages of other origins: nothing by default, what they need where they are allowed."""

from typing import Any

import pytest

from lmx.protocol.errors import ErrorCode
from tests.support.fakes.fake_peers import fails, plays, refuses
from tests.support.rigs.router_rig import MODEL, Rig, chat_body, router_rig

APP = "https://app.example"
PREFLIGHT = {
    "Origin": APP,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "Authorization, content-type,x-stainless-lang, bad header",
}
KEY = "lmx-key-0123456789"


async def asked(
    rig: Rig, method: str, path: str, headers: dict[str, str], body: Any = None
) -> tuple[int, Any, Any]:
    """Return status, headers and the parsed answer if it is JSON."""
    async with rig.http.request(method, f"{rig.url}{path}", headers=headers, json=body) as response:
        json = response.content_type == "application/json"
        return response.status, response.headers, await response.json() if json else None


@pytest.mark.parametrize("origin", [APP, "null", "app://x", "http://localhost:1", "no origin"])
async def test_pages_of_other_origins_change_nothing_by_default(rig: Rig, origin: str) -> None:
    headers = {"Origin": origin}
    for method, path, body in (
        ("POST", "/v1/chat/completions", chat_body()),
        ("DELETE", "/v1/jobs/x", None),
        ("POST", "/admin/models/load", {"model": MODEL}),
    ):
        status, answered, said = await asked(rig, method, path, headers, body)
        assert (status, said["error"]["code"]) == (403, "origin_not_allowed")
        assert "server.cors_origins" in said["error"]["message"]
        assert "Access-Control-Allow-Origin" not in answered
    status, answered, said = await asked(
        rig, "OPTIONS", "/v1/chat/completions", {**PREFLIGHT, "Origin": origin}
    )
    assert (status, said["error"]["code"]) == (403, "origin_not_allowed")
    # Reading is for the browser to keep from the page.
    status, answered, _ = await asked(rig, "GET", "/v1/models", headers)
    assert status == 200
    assert not [name for name in answered if name.startswith("Access-Control")]
    assert not rig.worker.streams


async def test_no_origin_and_lmx_s_own_pages_continue_as_ever(rig: Rig) -> None:
    for headers in ({}, {"Origin": rig.url}):
        status, _, _ = await asked(rig, "POST", "/v1/chat/completions", headers, chat_body())
        assert status == 200
    behind_proxy = {"Host": "localhost", "Origin": "https://localhost"}
    status, _, _ = await asked(rig, "POST", "/v1/chat/completions", behind_proxy, chat_body())
    assert status == 200
    assert (await asked(rig, "OPTIONS", "/v1/models", {}))[0] == 405


async def test_an_allowed_page_learns_before_keys_what_it_may_send() -> None:
    async with router_rig(cors_origins=(APP,), api_keys=(KEY,)) as rig:
        for path in ("/v1/chat/completions", "/v1/jobs/x", "/admin/status", "/no/such/path"):
            status, headers, _ = await asked(
                rig, "OPTIONS", path,
                {**PREFLIGHT, "Access-Control-Request-Private-Network": "true"},
            )  # fmt: skip
            assert status == 204
            assert headers["Access-Control-Allow-Origin"] == APP
            assert headers["Access-Control-Allow-Methods"] == "DELETE, GET, HEAD, POST"
            allowed = headers["Access-Control-Allow-Headers"]
            assert allowed == "authorization, content-type, x-stainless-lang"
            assert headers["Access-Control-Allow-Private-Network"] == "true"
            assert int(headers["Access-Control-Max-Age"]) > 0
            assert {name.strip() for name in headers["Vary"].split(",")} == {
                "Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers"
            }  # fmt: skip
            assert "Access-Control-Allow-Credentials" not in headers
        _, headers, _ = await asked(rig, "OPTIONS", "/v1/models", PREFLIGHT)
        assert "Access-Control-Allow-Private-Network" not in headers
        status, _, _ = await asked(
            rig, "OPTIONS", "/v1/models", {**PREFLIGHT, "Origin": "https://b"}
        )
        assert status == 403
        # Preflights are no requests that anybody served.
        assert not rig.router.metrics.read().http


async def test_an_allowed_page_reads_answers_streams_and_errors() -> None:
    async with router_rig(cors_origins=(APP,), api_keys=(KEY,)) as rig:
        page = {"Origin": APP}
        keyed = {**page, "Authorization": f"Bearer {KEY}"}
        for headers, body, expected in (
            (keyed, chat_body(), 200),
            (keyed, chat_body(stream=True), 200),
            (page, chat_body(), 401),
            (keyed, chat_body(max_tokens="x"), 400),
            (keyed, chat_body(model="none-such"), 404),
        ):
            status, answered, _ = await asked(rig, "POST", "/v1/chat/completions", headers, body)
            assert status == expected
            assert answered["Access-Control-Allow-Origin"] == APP
            assert "Origin" in answered["Vary"].split(", ")
            assert "X-Request-Id" in answered["Access-Control-Expose-Headers"]
            exposed = answered["Access-Control-Expose-Headers"].split(", ")
            assert ("X-Job-Id" in exposed) == (expected == 200)
        for path in ("/no/such/path", "/health", "/docs"):
            _, answered, _ = await asked(rig, "GET", path, page)
            assert answered["Access-Control-Allow-Origin"] == APP
        # A cache learns of every header that an answer depends on.
        for accept in ("text/html", "application/json"):
            _, answered, _ = await asked(rig, "GET", "/", {**page, "Accept": accept})
            assert answered["Vary"] == "Accept, Origin"
        # And who is no page is told that it would matter.
        _, answered, _ = await asked(rig, "GET", "/health", {})
        assert answered["Vary"] == "Origin"
        assert "Access-Control-Allow-Origin" not in answered


async def test_headers_of_refusals_are_exposed() -> None:
    full = refuses(ErrorCode.QUEUE_FULL, "full", retry_after_s=3.0)

    async with router_rig(full, cors_origins=(APP,)) as rig:
        status, headers, _ = await asked(
            rig, "POST", "/v1/chat/completions", {"Origin": APP}, chat_body()
        )
        assert status == 429
        assert "Retry-After" in headers["Access-Control-Expose-Headers"].split(", ")


async def test_a_stream_that_is_lost_says_so_to_a_page() -> None:
    lost = plays("so far", fails(ErrorCode.ENGINE_ERROR, "it broke"))

    async with router_rig(lost, cors_origins=("*",)) as rig, rig.http.post(
        f"{rig.url}/v1/chat/completions",
        json=chat_body(stream=True), headers={"Origin": "null"},
    ) as response:  # fmt: skip
        assert response.headers["Access-Control-Allow-Origin"] == "null"
        assert b"engine_error" in await response.read()


@pytest.mark.parametrize(
    ("allowed", "origin", "expected"),
    [
        ("*", "null", 200),
        ("*", "https://whoever.example", 200),
        ("http://localhost:*", "http://localhost:5173", 200),
        ("http://localhost:*", "http://localhost.evil.example:5173", 403),
        ("app://*", "app://obsidian.md", 200),
        ("app://*", "https://obsidian.md", 403),
        ("*", "h\u00e4", 403),
    ],
)
async def test_patterns_decide(allowed: str, origin: str, expected: int) -> None:
    async with router_rig(cors_origins=(allowed,)) as rig:
        status, headers, _ = await asked(
            rig, "POST", "/v1/chat/completions", {"Origin": origin}, chat_body()
        )
        assert status == expected
        assert headers.get("Access-Control-Allow-Origin") == (origin if status == 200 else None)


async def test_a_rebound_name_does_not_become_an_allowed_origin() -> None:
    async with router_rig(cors_origins=("*",)) as rig:
        headers = {"Host": "evil.example", "Origin": "http://evil.example"}
        status, _, said = await asked(rig, "POST", "/v1/chat/completions", headers, chat_body())
        assert (status, said["error"]["code"]) == (403, "host_not_allowed")


async def test_the_browser_learns_that_lmx_shuts_down() -> None:
    async with router_rig(cors_origins=(APP,)) as rig:
        rig.router.traffic.close()
        assert (await asked(rig, "OPTIONS", "/v1/chat/completions", PREFLIGHT))[0] == 204
        status, headers, said = await asked(
            rig, "POST", "/v1/chat/completions", {"Origin": APP}, chat_body()
        )
        assert (status, said["error"]["code"]) == (503, "shutting_down")
        assert headers["Access-Control-Allow-Origin"] == APP
