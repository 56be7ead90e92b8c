"""The page Usage in a real browser: what was used of a real server, and of one with 500 models."""

import json
from datetime import date
from typing import Any

import pytest
import pytest_asyncio
from openai import OpenAI

from tests.support.clients.chromium import Page
from tests.support.clients.console_page import (
    AXE,
    COLOURS_CHANGED,
    DESKTOP,
    PHONE,
    keep_keys,
    load_axe,
    until,
)
from tests.support.rigs.rig import Rig

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]

SHOWN = """(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const texts = (selector) => all(selector).map((one) => one.textContent);
  return {
    totals: texts(".total"),
    rows: [...document.querySelectorAll(".card > .wide-table tbody tr")].map((row) =>
      [...row.cells].map((cell) => cell.textContent)),
    days: document.querySelectorAll(".calendar rect").length,
    dark: document.querySelectorAll(".calendar rect:not(.l0)").length,
    lines: texts(".chart h3"),
    drawn: [...document.querySelectorAll(".plot .line")].map((one) => one.getAttribute("d").length),
    models: [...(document.querySelector(".heading select")?.options ?? [])].length,
    faults: texts("#view .fault"),
    empty: texts("#view .empty"),
  };
})()"""

# 50 pairs of a model and a key by name, as the server sends them for 500 models; all others joined.
MANY = """(() => {
  const days = Array.from({ length: 371 }, (_, ago) =>
    new Date(Date.UTC(2026, 10, 27) - ago * 864e5).toISOString().slice(0, 10)).reverse();
  const sums = (tokens) => ({ requests: 3, errors: 1, prompt_tokens: tokens, cached_tokens: 0,
    completion_tokens: 1 });
  const rows = days.flatMap((time) => Array.from({ length: 50 }, (_, number) =>
    ({ time, model: `<b>model</b>-${number}-${"x".repeat(60)}`, key: null,
      ...sums(1000 + number) })));
  const usage = { by: "day", first_day: days[0], last_day: days.at(-1), rows,
    rest: days.map((time) => ({ time, ...sums(7) })) };
  const figures = { model: null, first_s: 0, last_s: 21600, step_s: 60, models: [], points:
    Array.from({ length: 361 }, (_, at) => ({ at_s: 60 * at, tokens_per_s: at,
      ttft_s: at % 2 ? 0.5 : null, inter_token_s: null, waiting: 1, running: 2,
      memory_bytes: 2 ** 30 })) };
  const own = window.fetch;
  window.fetch = (address, options) => {
    const path = new URL(address).pathname;
    if (path === "/admin/usage/figures") window.asked = (window.asked ?? 0) + 1;
    const answer = { "/admin/usage": usage, "/admin/usage/figures": figures }[path];
    if (!answer) return own(address, options);
    const fault = { message: "The usage records can't be read now.", code: "usage_unavailable" };
    const [sent, status] = window.broken ? [{ error: fault }, 503] : [answer, 200];
    return Promise.resolve(new Response(JSON.stringify(sent), { status }));
  };
})()"""


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Page, origin: str, scripted_server: Rig) -> Page:
    """A tab of an operator, at the page."""
    key = (scripted_server.home / "admin.key").read_text().strip()
    await browser.ask("Emulation.setDeviceMetricsOverride", **DESKTOP)
    await keep_keys(browser, origin, admin_key=key)
    await browser.open("about:blank#")
    return browser


async def shown(page: Page, condition: str, what: str) -> Any:
    await until(page, f"((now) => {condition})({SHOWN})", what)
    return await page.run(SHOWN)


async def test_what_was_used_is_seen(
    page: Page, scripted_server: Rig, scripted_client: OpenAI
) -> None:
    """Requests are there as soon as they have ended, by model and key; one key alone can be looked
    at; axe finds nothing, in both colours and sizes."""
    for _ in range(3):
        scripted_client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "Hello"}]
        )
    await page.open(f"{scripted_server.url.removesuffix('/v1')}/#/usage")
    found = await shown(page, "now.rows.length && now.lines.length === 5", "the usage")
    ours = [row for row in found["rows"] if row[0] == "scripted"]
    assert [row[1][:4] for row in ours] == ["key_"]
    assert int(ours[0][2].replace(",", "")) >= 3
    assert found["days"] == 371
    first_day = date.fromtimestamp((scripted_server.home / "admin.key").stat().st_mtime)
    # A midnight since the first start makes it two.
    assert 1 <= found["dark"] <= 1 + (date.today() - first_day).days
    assert "requests" in found["totals"][0]
    assert found["drawn"][1] > 0, "the time to the first token"
    await page.run(
        "(() => { const [model, key] = document.querySelectorAll('.heading select');"
        f" model.value = 'scripted'; key.value = {json.dumps(ours[0][1])};"
        " for (const one of [model, key]) one.dispatchEvent(new Event('change')); })()"
    )
    assert (await page.run(SHOWN))["rows"] == ours

    await load_axe(page)
    await page.run("for (const one of document.querySelectorAll('#view details')) one.open = true")
    for size in (DESKTOP, PHONE):
        await page.ask("Emulation.setDeviceMetricsOverride", **size)
        for colours in ("light", "dark"):
            media = [{"name": "prefers-color-scheme", "value": colours}]
            await page.ask("Emulation.setEmulatedMedia", features=media)
            await page.run(COLOURS_CHANGED)
            assert await page.run(AXE) == [], (size["width"], colours)
        assert await page.run("document.documentElement.scrollWidth") == size["width"]
    await page.ask("Emulation.setEmulatedMedia", features=[])


async def test_many_models_none_and_a_fault(page: Page, scripted_server: Rig) -> None:
    """With 500 models the largest are named and the rest is one row; names are texts; a fault says
    what to do, and is gone when the server answers again."""
    await page.ask("Page.addScriptToEvaluateOnNewDocument", source=MANY, runImmediately=True)
    await page.open(f"{scripted_server.url.removesuffix('/v1')}/#/usage")
    found = await shown(page, "now.rows.length && now.lines.length === 5", "the usage")
    assert len(found["rows"]) == 13
    assert found["rows"][0][0].startswith("<b>model</b>-49-")
    assert found["rows"][-1][0] == "All others"
    assert found["models"] == 51
    for words in ("Show fewer", "Show all"):
        await page.run(
            "[...document.querySelectorAll('#view button')].find((one) =>"
            " /^Show (all|fewer)/.test(one.textContent)).click()"
        )
        focused = await page.run("document.activeElement.textContent")
        assert focused.startswith(words), "the keyboard stays where it is"
    assert found["dark"] == 371
    assert f"{365 * 51 * 3:,} requests" in found["totals"][3], (
        "a year has fewer days than its weeks"
    )
    for size in (PHONE, DESKTOP):
        await page.ask("Emulation.setDeviceMetricsOverride", **size)
        assert await page.run("document.documentElement.scrollWidth") == size["width"]
        right = "document.querySelector('.card > .wide-table').getBoundingClientRect().right"
        assert await page.run(right) <= size["width"]
    await page.run("window.broken = true; location.hash = '#/connect'")
    await until(page, "!document.querySelector('.usage-page')", "another view")
    await page.run("location.hash = '#/usage'")
    found = await shown(page, "now.faults.length === 2", "what is wrong")
    assert all("can't be read now" in fault for fault in found["faults"])
    await page.run(
        "window.broken = false; for (const one of document.querySelectorAll('#view .fault button'))"
        " one.click()"
    )
    await shown(page, "!now.faults.length && now.rows.length", "the usage again")
    # No line is that of a model which the server does not have.
    await page.run(
        "(() => { const [model] = document.querySelectorAll('.heading select');"
        " model.append(new Option('No such model')); model.value = 'No such model';"
        " window.asked = 0; model.dispatchEvent(new Event('change')); })()"
    )
    found = await shown(page, "now.drawn.every((length) => length === 0)", "empty lines")
    assert len(found["lines"]) == 5 and await page.run("window.asked") == 0
