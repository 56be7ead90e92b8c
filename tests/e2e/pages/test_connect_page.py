"""The page Connect: the lines of each client for this server, and the requests that test them."""

import json
from typing import Any

import pytest

from tests.e2e.conftest import API_KEY
from tests.support.clients.chromium import Page
from tests.support.clients.console_page import AXE, load_axe, reopen, until
from tests.support.rigs.rig import ROOT

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]

CLIENTS: list[dict[str, Any]] = json.loads(
    (ROOT / "router" / "console" / "assets" / "clients.json").read_text()
)["clients"]
PANEL = "document.querySelector('.connect .client')"
RESULTS = f"[...{PANEL}.querySelectorAll('.results li:not(.pending)')]"


async def choose(page: Page, client: str) -> None:
    await page.run(
        "[...document.querySelectorAll('.connect .clients button')].find((one) =>"
        f" one.textContent === {json.dumps(client)}).click()"
    )
    await until(page, f"{PANEL}.querySelector('h2').textContent === {json.dumps(client)}", client)


async def outcomes(page: Page) -> list[str]:
    """What each request of the client's test came to."""
    await page.run(f"{PANEL}.querySelector('.main').click()")
    await until(page, f"!{PANEL}.querySelector('.main').disabled", "a test that has ended")
    found: list[str] = await page.run(
        f"{RESULTS}.map((one) => `${{one.className}} ${{one.innerText}}`)"
    )
    return found


async def test_each_client_has_its_lines_and_they_work(page: Page, origin: str) -> None:
    await reopen(page, origin, "/#/connect")
    await until(page, f"Boolean({PANEL}?.querySelector('pre'))", "the lines of a client")
    models = "[...document.getElementById('connect-model').options].map((one) => one.value)"
    listed = await page.run(models)
    assert {"scripted", "auto"} <= set(listed) and "minilm" not in listed, "models that chat"
    for client in CLIENTS:
        await choose(page, client["name"])
        lines = await page.run(f"{PANEL}.querySelector('pre').textContent")
        assert "{{" not in lines.replace("${{ secrets", ""), "everything is filled in"
        assert API_KEY not in lines
        assert "8000" not in lines, "the address is this server's"
        # Of the address that a container reaches only the port is the same.
        assert origin.rpartition(":")[2] in lines
        if "{{model}}" in str(client["blocks"]):
            assert "scripted" in lines
        results = await outcomes(page)
        assert len(results) == len(client["tests"]), results
        assert all(one.startswith("well ") for one in results), (client["name"], results)
        assert all(": 200 after" in one for one in results)
        # The short form of the answer's text, or how many models were found.
        assert all("“" in one for one in results), results
    await load_axe(page)
    assert await page.run(AXE) == []


async def test_it_says_what_is_wrong(page: Page, origin: str) -> None:
    await page.run("localStorage.setItem('lmx-client', 'Claude Code')")
    await reopen(page, origin, "/#/connect")
    await until(page, f"Boolean({PANEL}?.querySelector('pre'))", "the lines of a client")
    await page.run(
        "document.getElementById('connect-model').append(new Option('gone'));"
        "document.getElementById('connect-model').value = 'gone';"
        "document.getElementById('connect-model').dispatchEvent(new Event('change'))"
    )
    (gone,) = await outcomes(page)
    assert gone.startswith("bad ") and "404" in gone and "Is gone still there?" in gone
    await page.run("localStorage.clear()")
    (unkeyed,) = await outcomes(page)
    assert "401" in unkeyed and "LMX_API_KEY" in unkeyed
    await page.run(
        "window.fetch = async () => new Response('<h1>Bad Gateway</h1>', { status: 502 })"
    )
    (proxy,) = await outcomes(page)
    assert "502" in proxy and "is not JSON" in proxy and "does not answer" not in proxy
    await page.run("window.fetch = () => Promise.reject(new TypeError('no network'))")
    (away,) = await outcomes(page)
    assert "no_answer" in away and "does not answer" in away
