"""The console's page of requests in a real browser: bars, who waits for whom, cancel, what was
asked and the same asked again, and thousands of requests.

All tests share a browser and a server; each begins with a page of its own.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from openai import OpenAI

from tests.e2e.conftest import API_KEY
from tests.support.clients.chromium import Page
from tests.support.clients.console_page import (
    AXE,
    COLOURS_CHANGED,
    DESKTOP,
    PHONE,
    keep_keys,
    load_axe,
    press,
    until,
)
from tests.support.rigs.rig import Rig, wait_until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]

BAD = '<img src=x onerror="window.hurt = 1">'
MANY = 5000

ROWS = """[...document.querySelectorAll(".request")].map((row) => ({
  name: row.querySelector(".name").textContent,
  whose: row.querySelector(".whose").textContent,
  why: row.querySelector(".why").textContent,
  bar: row.querySelector(".waterfall").getAttribute("aria-label"),
  parts: [...row.querySelectorAll(".waterfall i")].map((one) => one.className),
  tokens: Number(/\\+ ([0-9,]+)/.exec(row.querySelector(".tokens").textContent)?.[1] ?? 0),
  top: row.getBoundingClientRect().top,
  id: row.dataset.index,
}))"""

NEWEST = """(async () => {
  const { shared } = await import("/ui/console.js");
  let found;
  shared.live.on("requests", ({ ended }) => { found = ended[0]; })();
  return found;
})()"""

FACTS = """Object.fromEntries([...document.querySelectorAll(".facts dt")].map(
  (name) => [name.textContent, name.nextElementSibling.textContent]))"""

STUB = """(async () => {
  const { mount } = await import("/ui/requests_view.js");
  const { shared } = await import("/ui/console.js");
  const root = document.getElementById("view");
  root.replaceChildren();
  let told;
  const on = (topic, listener) => {
    if (topic === "requests") told = listener;
    if (topic === "batches") window.tellBatches = (...batches) => listener({ batches });
    return () => {};
  };
  mount(root, { ...shared, live: { on } });
  const shape = (number, over) => ({
    id: `r${number}`, request_id: "q", kind: "chat", family: "chat", model: `model-${number % 7}`,
    state: "running", queue_position: null, stream: true, cancelled: false, owner: null,
    key: `key-${number % 3}`, client: "10.0.0.1", created: 1e9 + number, ended: null, age_s: 5,
    prompt_tokens: 100, cached_tokens: 40, tokens: number % 90, ttft_s: 0.1, phase: "decode",
    phases: { queue_s: 1, load_s: 0, render_s: 0.1, prefill_s: 1, decode_s: 1 + (number % 3) },
    waits_for: null, http_status: null, error: null, error_message: null, reread: null,
    captured: false, at_ms: performance.now(), ...over });
  window.tell = (live, ended = []) => told({ live, ended });
  window.shape = shape;
  window.batchShape = (number, over) => ({ id: `batch_${number}`, api: "openai", model: "model-1",
    endpoint: "/v1/chat/completions", key: "laptop", status: "in_progress", created: 1e9,
    expires: 2e9, ended: null, total: 50000, completed: 1200, failed: 3, ...over });
})()"""

WAITING = """shape(8, { state: "queued", phase: "queue", waits_for: { reason: "row",
  model: "model-1", position: 1, evicting: [], text: "model-1 has no free row" } })"""

PULLS = """(async () => {
  const { makePulls } = await import("/ui/pull.js");
  const { shared } = await import("/ui/console.js");
  const one = { download_id: "d", repo_id: "org/m", status: "downloading", progress_percent: 10,
    downloaded_bytes: 1, speed_mbps: 1 };
  const others = Array.from({ length: 7 }, (_, id) => ({ ...one, download_id: `${id}` }));
  let asked = 0;
  let streams = 0;
  const request = async () => {
    // One answer that fails does not end it.
    if (++asked === 2) throw new Error("not now");
    return { downloads: [one, ...others] };
  };
  const pulls = makePulls({ ...shared, request, open: () => (streams += 1), fail() {} });
  await pulls.refresh();
  const button = pulls.element.querySelector("button");
  one.progress_percent = 50;
  // It looks again by itself, with one request for all: a browser has six connections.
  const deadline_ms = performance.now() + 60_000;
  while (!pulls.element.textContent.includes("50 %") && performance.now() < deadline_ms)
    await new Promise((done) => setTimeout(done, 50));
  const same = button === pulls.element.querySelector("button") && !button.hidden;
  const words = pulls.element.textContent;
  Object.assign(one, { status: "failed", error: { message: "no room" } });
  await pulls.refresh();
  pulls.close();
  return [same && !streams, words.includes("50 %"), button.hidden, pulls.element.textContent];
})()"""


def at_(name: str) -> str:
    return f"document.querySelector({json.dumps(name)})"


async def rows(page: Page) -> Any:
    return await page.run(ROWS)


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Page, origin: str, scripted_server: Rig) -> Page:
    """The view in a browser that has the keys."""
    admin_key = (scripted_server.home / "admin.key").read_text().strip()
    await browser.ask("Emulation.setDeviceMetricsOverride", **DESKTOP)
    await keep_keys(browser, origin, api_key=API_KEY, admin_key=admin_key)
    await browser.open(f"{origin}/#/requests")
    await until(browser, f"{at_('.requests .count')}?.textContent", "the view")
    return browser


@contextlib.asynccontextmanager
async def asking(rig: Rig, model: str, content: Any, **fields: Any) -> AsyncIterator[Any]:
    """A request under way, as a task that returns its status."""
    said = content if isinstance(content, str) else json.dumps(content)
    body = {"model": model, "messages": [{"role": "user", "content": said}], **fields}

    async def ask() -> int:
        headers = {"Authorization": f"Bearer {API_KEY}"}
        url = f"{rig.url}/chat/completions"
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(url, json=body) as response,
        ):
            await response.read()
            return response.status

    task = asyncio.create_task(ask())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def choose(page: Page, label: str, value: str) -> None:
    await page.run(
        "(() => { const select = [...document.querySelectorAll('.filters label')].find((one) =>"
        f" one.firstChild.textContent === {json.dumps(label)}).querySelector('select');"
        f" select.value = {json.dumps(value)}; select.dispatchEvent(new Event('change')); }})()"
    )


async def test_a_request_under_way_is_a_bar_and_can_be_cancelled(
    page: Page, scripted_server: Rig
) -> None:
    long = {"tokens": 2000, "step_s": 0.05}
    silent = {"prefill_s": 300}
    await choose(page, "State", "Under way")
    async with (
        asking(scripted_server, "narrow", silent),
        asking(scripted_server, "scripted", long) as asked,
    ):
        decoding = f"({ROWS}).find((row) => row.parts.includes('decode'))"
        row = await until(page, decoding, "its bar")
        assert row["name"] == "chat · scripted"
        assert row["why"] == "decode"
        # Of the one that does not change nothing is sent, and it stays.
        await until(page, f"{decoding}?.tokens > {row['tokens']}", "more tokens")
        assert {row["why"] for row in await rows(page)} == {"decode", "prefill"}
        await page.run(
            "[...document.querySelectorAll('.request .open')].find((one) =>"
            " one.textContent.includes('scripted')).click()"
        )
        assert await page.run(f"{at_('.request-details')}.open")
        facts = await page.run(FACTS)
        assert facts["State"] == "decode"
        await page.run(f"{at_('.request-details .danger')}.click()")
        assert await asked == 409
        await until(page, f"({FACTS}).Status === '409'", "its end in the panel")
        await page.run(f"{at_('.request-details')}.close()")
        await until(page, "document.querySelectorAll('.request').length === 1", "its end")
        await choose(page, "State", "Ended")
        [row, *_] = await rows(page)
        assert row["why"] == "request_cancelled"


BATCHES = """[...document.querySelectorAll(".batch")].map((row) => ({ id: row.title,
  name: row.querySelector(".name").textContent, whose: row.querySelector(".whose").textContent,
  words: row.querySelector(".words").textContent, done: row.querySelector("progress").value,
  stops: !row.querySelector("button").hidden }))"""


async def test_a_batch_is_a_bar_and_can_be_cancelled(page: Page, scripted_server: Rig) -> None:
    answer = json.dumps({"tokens": 2000, "step_s": 0.05})
    body = {"model": "scripted", "messages": [{"role": "user", "content": answer}]}
    lines = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for n in range(30)
    ]
    with OpenAI(base_url=scripted_server.url, api_key=API_KEY, max_retries=0) as client:
        content = "\n".join(map(json.dumps, lines)).encode()
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        made = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )

        def shown(begin: str) -> str:
            # The server may have batches of other tests, too.
            wanted = f"row.id === '{made.id}' && row.words.startsWith('{begin}')"
            return f"({BATCHES}).find((row) => {wanted})"

        row = await until(page, shown("in progress"), "its bar")
        assert row["name"] == "scripted" and row["stops"]
        assert row["whose"].startswith("/v1/chat/completions · ")
        assert row["words"] == "in progress · 0 of 30 lines"
        await page.run(f"{at_(f'.batch[title={made.id}] button')}.click()")
        row = await until(page, shown("cancelled"), "its end")
        assert (row["words"], row["stops"]) == ("cancelled · 30 of 30 lines, 30 failed", False)
        assert client.batches.retrieve(made.id).status == "cancelled"
    for words in ("batch.began", f"{made.id} is cancelled: 0 lines completed"):
        await asyncio.to_thread(
            wait_until,
            lambda words=words: words in scripted_server.cli("events", "-n", "50").stdout,  # type: ignore[misc]
            words,
        )
    # A row stays the same element while its figures change.
    await page.run(STUB + ".then(() => tellBatches(batchShape(1), batchShape(2)))")
    assert (await page.run(BATCHES))[0]["done"] == 1203
    await page.run("window.kept = document.querySelectorAll('.batch')[1]")
    await page.run(f"tellBatches(batchShape(2, {{ completed: 5, key: {json.dumps(BAD)} }}))")
    assert await page.run("kept === document.querySelector('.batch')")
    [row] = await page.run(BATCHES)
    assert row["words"] == "in progress · 8 of 50,000 lines, 3 failed"
    assert row["whose"].endswith(BAD)
    assert await page.run("window.hurt") is None


async def test_who_waits_for_whom(page: Page, scripted_server: Rig) -> None:
    """A model that loads, and a row that another request has."""
    scripted_server.cli("unload", "slow")
    with scripted_server.held_load("slow"):
        async with asking(scripted_server, "slow", "Hello"):
            found = f"({ROWS}).find((row) => row.why.startsWith('slow is loading'))"
            await until(page, found, "what it waits for")
            assert (await page.run(found))["parts"] == ["load"]
    await page.run(STUB + f""".then(() => tell([shape(1, {{ key: "laptop" }}), {WAITING}]))""")
    await choose(page, "State", "Waiting")
    await page.run(f"{at_('.request .open')}.click()")
    ahead = await page.run(f"{at_('.ahead')}.textContent")
    assert "model-1 has no free row" in ahead
    # What is pressed or selected stays the same element while figures move on.
    kept = "[document.querySelector('.ahead button'), document.querySelector('.facts dd')]"
    await page.run(
        f"window.kept = {kept}; tell([shape(1, {{ key: 'laptop', tokens: 50 }}), {{ ...{WAITING},"
        " prompt_tokens: 7777 }])"
    )
    assert "7,777 tokens" in (await page.run(FACTS))["Prompt"]
    assert await page.run(f"{kept}.every((one, index) => one === kept[index])")
    await page.run(f"{at_('.ahead button')}.click()")
    assert "key laptop" in (await page.run(FACTS))["From"]


async def test_no_request_moves_under_the_pointer(page: Page) -> None:
    """Otherwise a new one, which comes first, would have its neighbour cancelled."""
    names = f"({ROWS}).sort((one, other) => one.top - other.top).map((one) => one.name)"
    move = "dispatchEvent(new PointerEvent('{}'))"
    await page.run(STUB + ".then(() => tell([shape(1), shape(2)]))")
    before = await page.run(names)
    await page.run(f"{at_('.virtual')}.{move.format('pointerenter')}")
    await page.run("tell([shape(2), shape(3)], [shape(1, { state: 'completed', ended: 2e9 })])")
    assert await page.run(names) == before
    assert "1 more when the pointer leaves" in await page.run(f"{at_('.count')}.textContent")
    await page.run(f"{at_('.virtual')}.{move.format('pointerleave')}")
    after = await page.run(names)
    assert len(after) == 3
    assert after[0].endswith("model-3")


async def test_a_download_keeps_its_button_while_its_figures_change(page: Page) -> None:
    same, moved, hidden, words = await page.run(PULLS)
    assert same and moved and hidden
    assert "failed: no room" in words


async def test_an_admin_key_that_is_refused_can_be_given_up(page: Page) -> None:
    """The dialog does not come back again and again: without another key the view is locked."""
    await page.run("sessionStorage.setItem('lmx-admin-key', 'of-the-server-before')")
    await page.ask("Page.reload")
    await until(page, "document.getElementById('admin')?.open", "the question for another key")
    await page.run("document.getElementById('admin-cancel').click()")
    await until(page, f"Boolean({at_('.page.locked')})", "the locked view")
    await asyncio.sleep(0.5)
    assert not await page.run("document.getElementById('admin').open")
    assert await page.run("sessionStorage.getItem('lmx-admin-key')") is None


async def test_what_was_asked_is_shown_copied_and_asked_of_another_model(
    page: Page, scripted_server: Rig
) -> None:
    script = {"pieces": ["an ", BAD], "note": BAD}
    # What goes with a stream alone is left out when another model is asked, without one.
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    began_s = time.time()
    async with asking(scripted_server, "scripted", script, user=BAD, **stream) as asked:
        assert await asked == 200
    await choose(page, "State", "Ended")
    # The server may have ended requests of other tests, too.
    await until(page, f"{NEWEST}.then((one) => one?.created >= {began_s - 0.001})", "its end")
    assert (await rows(page))[0]["why"] == "completed"
    await page.run(f"{at_('.request .open')}.click(); {at_('.captured button')}.click()")
    shown = await until(page, f"{at_('.captured pre')}?.textContent", "what it asked")
    assert json.loads(shown)["user"] == BAD
    assert API_KEY not in shown
    # Without TLS there is no clipboard, and of what is behind the dialog nothing can be selected.
    await page.run(
        "Object.defineProperty(navigator, 'clipboard', { value: undefined });"
        " document.execCommand = () => { window.copied = document.activeElement.value; return true;"
        " }; [...document.querySelectorAll('.captured button')].find((one) =>"
        " one.textContent === 'Copy as curl').click()"
    )
    copied = await until(page, "window.copied", "the command")
    assert "/v1/chat/completions" in copied
    assert '"Authorization: Bearer $LMX_API_KEY"' in copied
    await page.run(
        "(() => { const select = document.querySelector('.captured select'); select.value = 'good';"
        " [...document.querySelectorAll('.captured button')].find((one) =>"
        " one.textContent === 'Replay').click(); })()"
    )
    await until(page, f"{at_('.captured .answer pre')}?.textContent", "the other model's answer")
    said = await page.run(f"{at_('.captured .answer')}.textContent")
    assert said.startswith("good answered in"), said
    assert await page.run("window.hurt") is None, "no text became an element"
    assert not await page.run("document.querySelectorAll('#view img').length")


async def test_names_and_texts_of_strangers_stay_texts(page: Page) -> None:
    bad = json.dumps(BAD)
    await page.run(
        STUB
        + f""".then(() => tell([], [shape(1, {{ state: "failed", ended: 1e9, phase: null,
          model: {bad}, key: {bad}, client: {bad}, error: {bad}, error_message: {bad},
          request_id: {bad}, reread: {{ cached_tokens: 1, expected_tokens: 9, reason: {bad},
          position: 842, before: {bad}, was: {bad}, now: {bad} }} }})]))"""
    )
    await choose(page, "State", "Read again")
    [row] = await rows(page)
    assert (row["name"], row["why"]) == (f"chat · {BAD}", BAD)
    assert row["whose"] == f"key {BAD} · {BAD}"
    await choose(page, "Key", BAD)
    await page.run(f"{at_('.request .open')}.click()")
    reread = await page.run(f"{at_('.reread')}.textContent")
    assert f"{BAD}: computed again from token 842." in reread
    assert f"Before{BAD}Was{BAD}Now{BAD}" in reread
    assert await page.run("window.hurt") is None
    assert not await page.run("document.querySelectorAll('#view img').length")


async def test_thousands_of_requests_stay_smooth(page: Page) -> None:
    """Only the rows in view exist; a message, a scroll and a filter cost a few milliseconds of
    script, as many as with a hundred requests or a small multiple of that. The least of many times
    is compared, because a long one says how busy the machine is."""
    await page.run(STUB)
    figures = await page.run(
        f"""(async () => {{
          const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
          const list = document.querySelector(".virtual");
          const timed = async (work) => {{
            const began = performance.now(); work(); const spent = performance.now() - began;
            await frame(); return spent;
          }};
          const quartile = (times) => times.sort((a, b) => a - b)[times.length >> 2];
          const made = {{}};
          for (const many of [100, {MANY}]) {{
            const live = Array.from({{ length: many }}, (_, number) => shape(number));
            const times = {{ told: [], frame: [] }};
            for (let round = 0; round < 20; round++) {{
              live[round] = shape(round, {{ tokens: 1000 + round }});
              times.told.push(await timed(() => tell([...live])));
            }}
            for (let round = 1; round < 60; round++) {{
              const began = performance.now();
              list.scrollTop = ((list.scrollHeight - list.clientHeight) / 60) * round;
              await frame();
              times.frame.push(performance.now() - began);
            }}
            list.scrollTop = 0;
            await frame();
            made[many] = {{ told_ms: quartile(times.told), frame_ms: quartile(times.frame),
              rows: document.querySelectorAll(".request").length }};
          }}
          return made;
        }})()"""
    )
    print("requests page:", figures)
    few, many = figures["100"], figures[str(MANY)]
    assert many["rows"] == few["rows"] < 50
    assert many["told_ms"] < 20 * few["told_ms"] + 50
    assert many["frame_ms"] < 10 * few["frame_ms"] + 50
    # What is read stays where it is when others come before it, and the keyboard reaches the end.
    await page.run(f"{at_('.virtual')}.scrollTop = 56 * 100")
    await until(page, f"({ROWS}).some((row) => row.id === '100')", "the middle")
    before = {int(row["id"]): row["top"] for row in await rows(page)}
    await page.run(
        f"tell([...Array.from({{ length: {MANY} }}, (_, number) => shape(number)),"
        " shape(90001), shape(90002)])"
    )
    after = {int(row["id"]): row["top"] for row in await rows(page)}
    assert after[102] == before[100]
    await page.run(f"{at_('.request .open')}.focus()")
    await press(page, "End")
    assert await page.run("document.activeElement.closest('li').dataset.index") == str(MANY + 1)
    await press(page, "Home")
    assert await page.run("document.activeElement.closest('li').dataset.index") == "0"


async def test_sizes_colours_and_screen_readers(page: Page) -> None:
    """axe finds nothing, in both colours and sizes; on a phone a request is a card."""
    await load_axe(page)
    await page.run(
        STUB
        + """.then(() => (tell([shape(1, { model: "a-long-name-".repeat(9) }), shape(2, { state:
          "waiting", phase: "load", waits_for: { reason: "memory", model: "model-2", position: 2,
          evicting: ["other"], text: "model-2 waits for memory" } })], [shape(3, { state: "failed",
          error: "worker_crashed", ended: 1e9, phase: null, captured: true, reread: {
          cached_tokens: 1, expected_tokens: 9, reason: "differs", position: 8, before: "a ",
          was: "b", now: "c" } })]),
          tellBatches(batchShape(1, { model: "a-long-name-".repeat(9) }), batchShape(2, { total: 0,
          status: "validating" }), batchShape(3, { status: "completed" }))))"""
    )
    for size in (DESKTOP, PHONE):
        await page.ask("Emulation.setDeviceMetricsOverride", **size)
        for colours in ("light", "dark"):
            media = [{"name": "prefers-color-scheme", "value": colours}]
            await page.ask("Emulation.setEmulatedMedia", features=media)
            for opened in (None, 0, 1, 2):
                if opened is not None:
                    await page.run(f"document.querySelectorAll('.request .open')[{opened}].click()")
                await page.run(COLOURS_CHANGED)
                assert await page.run(AXE) == [], (size["width"], colours, opened)
                await page.run(f"{at_('.request-details')}.close()")
    assert await page.run("document.documentElement.scrollWidth") == PHONE["width"]
    height = await page.run(f"{at_('.request')}.getBoundingClientRect().height")
    assert height > 90, "a card"
    await page.ask("Emulation.setEmulatedMedia", features=[])
