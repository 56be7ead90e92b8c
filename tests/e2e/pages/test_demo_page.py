"""The page that `lmx demo --two` opens: one of two models is killed, and the other continues."""

import json

import pytest

from tests.support.clients.chromium import Page
from tests.support.clients.console_page import AXE, DESKTOP, PHONE, load_axe, until
from tests.support.rigs.rig import Rig

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]

# The models here do what they are asked: they write for long.
SCRIPTED = """
const send = window.fetch;
window.fetch = (url, options) => {
  if (String(url).endsWith("completions")) {
    const body = JSON.parse(options.body);
    body.messages[0].content = JSON.stringify({ tokens: 4000, step_s: 0.05 });
    options = { ...options, body: JSON.stringify(body) };
  }
  return send(url, options);
};
"""
STEPS = "[...document.querySelectorAll('.demo .steps li')]"
CARDS = "[...document.querySelectorAll('.demo .card')]"


async def test_the_story(page: Page, origin: str, scripted_server: Rig) -> None:
    key = (scripted_server.home / "admin.key").read_text().strip()
    await page.run(f"sessionStorage.setItem('lmx-admin-key', {json.dumps(key)})")
    await page.open("about:blank#")
    await page.open(f"{origin}/#/demo")
    button = "document.querySelector('.demo .heading button')"
    await until(page, f"{button} && !{button}.disabled", "two models")
    await page.run(f"{SCRIPTED} {button}.click()")
    over = f"{STEPS}[2].className === 'done' || document.getElementById('faults').innerText"
    assert await until(page, over, "a kill") is True
    killed = await page.run(f"{STEPS}[2].innerText")
    assert "came back" in killed or "returned" in killed, killed
    assert "worker_killed" in await page.run(f"{CARDS}[1].querySelector('.fault').innerText")
    every = f"{STEPS}.every((one) => one.className === 'done')"
    over = f"{every} || document.getElementById('faults').innerText"
    assert await until(page, over, "the end of the story") is True
    assert await page.run(f"{CARDS}[0].querySelector('.fault').hidden"), "the other one continues"
    other = await page.run(f"{STEPS}[3].innerText")
    assert "from scripted since" in other and "\n0 more" not in other, other
    assert "ready" in await page.run(f"{STEPS}[4].innerText")
    assert "word" in await page.run(f"{CARDS}[1].lastChild.innerText")
    await load_axe(page)
    for size in (PHONE, DESKTOP):
        await page.ask("Emulation.setDeviceMetricsOverride", **size)
        assert await page.run(AXE) == []
        assert await page.run("document.documentElement.scrollWidth") <= size["width"]
    # Whoever leaves ends the streams.
    await page.run("location.hash = '#/chat'")
    await until(page, "!document.querySelector('.demo')", "another view")
