"""What web pages get of lmx, in a real browser: nothing under a name of their own, nothing from
another origin, all that they need where the origin is listed."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.support.clients.chromium import Page, chromium, require_chromium
from tests.support.rigs.router_rig import MODEL, TEXTS, Rig, chat_body, router_rig

KEY = "an-inference-key-of-the-tests"

ASK = """
(async () => {
  const shown = {};
  for (const [name, url, options] of REQUESTS) {
    try {
      const response = await fetch(url, options);
      shown[name] = {
        status: response.status,
        requestId: response.headers.get("x-request-id"),
        text: await response.text(),
      };
    } catch (error) {
      shown[name] = {refused: error.name};
    }
  }
  return shown;
})()
"""

READ_STREAM = """
(async () => {
  const response = await fetch(URL, OPTIONS);
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (let part; !(part = await reader.read()).done;) {
    text += decoder.decode(part.value, {stream: true});
  }
  return {jobId: response.headers.get("x-job-id"), text};
})()
"""


def as_json(body: Any, **headers: str) -> dict[str, Any]:
    return {
        "method": "POST",
        "headers": {"Content-Type": "application/json", **headers},
        "body": json.dumps(body),
    }


async def fetched(page: Page, *requests: tuple[str, str, dict[str, Any]]) -> dict[str, Any]:
    """What the page's own ``fetch`` comes to, by name: the answer, or how it was refused."""
    shown = await page.run(ASK.replace("REQUESTS", json.dumps(requests)))
    assert isinstance(shown, dict)
    return shown


async def jobs(rig: Rig) -> list[Any]:
    async with rig.http.get(f"{rig.url}/v1/jobs") as response:
        data: list[Any] = (await response.json())["data"]
        return data


@asynccontextmanager
async def other_site() -> AsyncIterator[str]:
    """The origin of somebody else's page."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<title>a page</title>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", page)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("allowed", [False, True], ids=["by default", "allowed"])
async def test_a_page_on_a_rebound_name(allowed: bool) -> None:
    """The name of the page's own site leads here, so that it is of one origin with lmx. Allowing
    the name shows that it is the check of names that keeps the page out."""
    require_chromium()
    names = ("evil.example",) if allowed else ()
    async with (
        router_rig(allowed_hosts=names) as rig,
        chromium("--host-resolver-rules=MAP evil.example 127.0.0.1") as page,
    ):
        assert (await rig.chat_json())[0] == 200
        (job,) = await jobs(rig)
        await page.open(f"http://evil.example:{rig.spec.port}/")
        shown = await fetched(
            page,
            ("list", "/v1/jobs", {}),
            ("read", f"/v1/jobs/{job['id']}", {}),
            ("ask", "/v1/chat/completions", as_json(chat_body())),
            ("metrics", "/metrics", {}),
            ("delete", f"/v1/jobs/{job['id']}", {"method": "DELETE"}),
        )
        if allowed:
            assert {name: one["status"] for name, one in shown.items()} == dict.fromkeys(shown, 200)
            assert json.dumps(TEXTS[0])[1:-1] in shown["read"]["text"]
            return
        for name, one in shown.items():
            assert one["status"] == 403, name
            assert json.loads(one["text"])["error"]["code"] == "host_not_allowed"
        assert [one["id"] for one in await jobs(rig)] == [job["id"]]
        assert len(rig.worker.streams) == 1


async def test_a_page_of_another_origin() -> None:
    require_chromium()
    async with other_site() as origin, chromium() as page:
        await page.open(f"{origin}/")
        requests: dict[str, tuple[str, dict[str, Any]]] = {
            "models": ("/v1/models", {}),
            "keyed": ("/v1/models", {"headers": {"Authorization": f"Bearer {KEY}"}}),
            "ask": ("/v1/chat/completions", as_json(chat_body(), Authorization=f"Bearer {KEY}")),
            "wrong key": ("/v1/chat/completions", as_json(chat_body(), Authorization="Bearer x")),
        }
        async with router_rig(api_keys=(KEY,)) as rig:
            shown = await fetched(
                page, *((name, rig.url + path, how) for name, (path, how) in requests.items())
            )
            assert shown == {name: {"refused": "TypeError"} for name in requests}
            # A simple request goes out without being asked about, and changes nothing.
            simple = {"method": "POST", "mode": "no-cors", "body": json.dumps(chat_body())}
            await fetched(page, ("simple", f"{rig.url}/v1/chat/completions", simple))
            assert not rig.worker.streams
        async with router_rig(api_keys=(KEY,), cors_origins=("http://127.0.0.1:*",)) as rig:
            shown = await fetched(
                page, *((name, rig.url + path, how) for name, (path, how) in requests.items())
            )
            statuses = {"models": 401, "keyed": 200, "ask": 200, "wrong key": 401}
            assert {name: one["status"] for name, one in shown.items()} == statuses
            assert all(one["requestId"] for one in shown.values())
            assert json.loads(shown["ask"]["text"])["model"] == MODEL
            options = as_json(chat_body(stream=True), Authorization=f"Bearer {KEY}")
            script = READ_STREAM.replace("URL", json.dumps(f"{rig.url}/v1/chat/completions"))
            streamed = await page.run(script.replace("OPTIONS", json.dumps(options)))
            assert streamed["jobId"]
            assert streamed["text"].endswith("data: [DONE]\n\n")
            assert json.dumps(TEXTS[0])[1:-1] in streamed["text"]
