"""The page at / in a real browser: its chat, its conversations, its keys, and who can use it.

All tests share a browser and a server; each begins with a page of its own.
"""

import asyncio
import base64
import contextlib
import json
from typing import Any

import pytest

from tests.e2e.conftest import API_KEY
from tests.support.clients.chromium import Page
from tests.support.clients.console_page import (
    AXE,
    COLOURS_CHANGED,
    DESKTOP,
    PHONE,
    STATE,
    at,
    load_axe,
    press,
    reopen,
    until,
)
from tests.support.fakes.media_files import sine, wav_file
from tests.support.faults.hostile_media import picture
from tests.support.rigs.rig import Rig

pytestmark = pytest.mark.asyncio(loop_scope="module")

SENTENCE = "The quick brown fox jumps over the lazy dog."
LONG = {"tokens": 1500, "step_s": 0.05, "text": "Word after word after word.\n\n"}


async def say(page: Page, text: Any) -> None:
    said = text if isinstance(text, str) else json.dumps(text)
    await page.run(
        f"{at('say')}.value = {json.dumps(said)};"
        f"{at('say')}.dispatchEvent(new Event('input')); {at('form')}.requestSubmit()"
    )


async def answered(page: Page) -> Any:
    """The last turn, when its answer has ended and its Markdown is drawn."""
    await until(page, f"!({STATE}).runs", "an answer that ends")
    await until(page, '!document.querySelector("#turns .raw")', "Markdown that is drawn")
    return await page.run(STATE)


async def asked(page: Page, text: Any) -> Any:
    await say(page, text)
    return await answered(page)


async def choose(page: Page, model: str) -> None:
    await until(
        page, f'[...{at("model")}.options].some((one) => one.value === "{model}")', "the models"
    )
    await page.run(
        f'{at("model")}.value = "{model}"; {at("model")}.dispatchEvent(new Event("change"))'
    )


async def test_keys(page: Page, origin: str) -> None:
    """A key is requested; a wrong one and one that can't be are said; it can be forgotten."""
    await page.run("localStorage.clear()")
    await reopen(page, origin)
    await until(page, f"{at('options')}.open", "the field for the key")
    assert await page.run(f"{at('key-fault')}.hidden")
    assert await page.run(f"{at('model')}.options.length") == 0, "names of models are hidden"
    assert "scripted" not in await page.run("document.body.textContent")

    async def give(key: str) -> str:
        await page.run(
            f"{at('key')}.value = {json.dumps(key)}; {at('key-fault')}.textContent = '';"
            f"{at('key-save')}.click()"
        )
        fault = f"!{at('options')}.open || {at('key-fault')}.textContent"
        return str(await until(page, fault, "what becomes of the key"))

    assert "not right" in await give("another-key-of-16-letters")
    # What was typed, chosen and said stays while the reader looks at another tab.
    typed = f"[{at('key')}.value, {at('remember')}.checked, {at('key-fault')}.textContent]"
    before = await page.run(f"{at('remember')}.checked = false; {typed}")
    await page.run(
        "{ const send = window.fetch; window.fetch = async (...sent) => {"
        " const answer = await send(...sent); window.unkeyed = answer.status; return answer; }; }"
        " document.dispatchEvent(new Event('visibilitychange'))"
    )
    await until(page, "window.unkeyed === 401", "an answer without a key")
    await page.run(COLOURS_CHANGED)
    assert await page.run(typed) == before and "not right" in before[2]
    await page.run(f"{at('remember')}.checked = true")
    # A second Enter does not make the wrong key the one of before.
    await page.run(
        f"{at('key')}.value = 'another-key-of-16-letters'; {at('key-fault')}.hidden = true;"
        f"{at('key-save')}.click(); {at('key-save')}.click()"
    )
    await until(page, f"!{at('key-fault')}.hidden && !{at('key-save')}.disabled", "both answers")
    assert await page.run("localStorage.getItem('lmx-key')") is None
    # Another refusal is said in its own words.
    await page.run(
        "window.own = window.fetch; window.fetch = async () => Response.json("
        "{ error: { message: 'This key is for embeddings.', code: '' } }, { status: 403 })"
    )
    assert await give(API_KEY) == "This key is for embeddings."
    await page.run("window.fetch = window.own")
    fault = await give("an\u2013inference-key")
    assert "“\u2013”" in fault and "character 3" in fault, fault
    assert "a space" in await give("two words of a key")
    assert await give(API_KEY) == "True"
    assert (await asked(page, "Hello"))["text"].strip() == SENTENCE
    # Another tab needs not ask again.
    assert await page.run("localStorage.getItem('lmx-key')") == API_KEY
    # The tab's own key and that of the other tabs stay what they are after a wrong one.
    await page.run(
        f"sessionStorage.setItem('lmx-key', '{API_KEY}');"
        f"localStorage.setItem('lmx-key', 'of-the-other-tabs'); {at('open-options')}.click()"
    )
    assert not await page.run(f"{at('remember')}.checked")
    assert "not right" in await give("another-key-of-16-letters")
    kept = await page.run("[sessionStorage, localStorage].map((one) => one.getItem('lmx-key'))")
    assert kept == [API_KEY, "of-the-other-tabs"]
    await page.run(f"{at('options-close')}.click(); sessionStorage.clear()")
    await page.run(f"localStorage.setItem('lmx-key', '{API_KEY}')")
    await page.run(f"{at('open-options')}.click(); {at('forget')}.click()")
    await until(page, "localStorage.getItem('lmx-key') === null", "a key that is forgotten")
    await until(page, f"{at('forget')}.hidden", "no key to forget")
    # What was opened without a key is Markdown as soon as there is one.
    await reopen(page, origin, "/" + await page.run("location.hash"))
    await until(page, f"{at('options')}.open", "the field for the key")
    await until(page, '!!document.querySelector("#turns .raw")', "text without a key")
    assert await give(API_KEY) == "True"
    await answered(page)


# As in a page of another machine without TLS, which has no clipboard.
COPIES = """
Object.defineProperty(navigator, "clipboard", { value: undefined });
document.execCommand = () => {
  window.copied = document.activeElement.value;
  return true;
};
"""
MARKS = """1. first
   - nested one
   - nested two
2. second

| a | b |
|---|---|
| 1 | ~~2~~ |

```python
def f(): return "<b>x</b>"
```

<img src=x onerror="window.broken = 1"> [bad](javascript:window.broken=1)
"""
SHAPE = """(() => {
  const text = [...document.querySelectorAll(".assistant .text")].at(-1);
  return {
    nested: text.querySelectorAll("ol > li > ul > li").length,
    items: text.querySelectorAll("ol > li").length,
    cells: [...text.querySelectorAll("table td")].map((cell) => cell.textContent),
    struck: text.querySelector("s")?.textContent,
    coloured: text.querySelector("pre .nf")?.textContent,
    code: text.querySelector("pre code")?.textContent,
    images: text.querySelectorAll("img").length,
    links: text.querySelectorAll("a").length,
    broken: window.broken ?? null,
    last: text.lastElementChild?.textContent ?? "",
  };
})()"""


def _is_drawn(shape: dict[str, Any], whole: dict[str, Any]) -> bool:
    return "bad" in shape["last"] and all(shape.get(name) == one for name, one in whole.items())


async def test_an_answer(page: Page) -> None:
    """Markdown, reasoning that moves, figures; its end is in sight, and whoever reads higher up is
    left there; it is announced once; stopping keeps the focus."""
    await page.run(
        "window.said = []; new MutationObserver(() => said.push("
        f"{at('announce')}.textContent)).observe({at('announce')}, {{childList: true}})"
    )
    shown = await asked(page, {"pieces": [*MARKS]})
    whole = {
        "nested": 2, "items": 2, "cells": ["1", "2"], "struck": "2", "coloured": "f",
        "code": 'def f(): return "<b>x</b>"', "images": 0, "links": 0, "broken": None,
    }  # fmt: skip
    # Each block is drawn by itself, and again while it grows.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(90):
            while not _is_drawn(await page.run(SHAPE), whole):
                await asyncio.sleep(0.05)
    assert await page.run(f"({{last, ...rest}} = {SHAPE}, rest)") == whole
    assert "tokens/s" in shown["figures"] and "first token after" in shown["figures"]
    said = await until(page, "window.said.length && window.said", "an answer that is announced")
    assert said == [MARKS.strip()]
    await page.run(f"{COPIES} document.querySelector('button.copy').click()")
    await until(page, "window.copied", "code that is copied")
    assert await page.run("window.copied") == 'def f(): return "<b>x</b>"'

    thoughts = 'document.querySelector("#turns article:last-child .thoughts")'
    await say(page, {"pieces": ["<think>", *["Hm. "] * 200, "</think>", "So."], "step_s": 0.3})
    await until(page, f"{thoughts}?.classList.contains('moving')", "thoughts that move")
    assert not await page.run(f"{thoughts}.open"), "they are folded"
    now = f"{thoughts}.querySelector('.now').textContent"
    first = await until(page, now, "what is thought")
    await until(page, f"{now} !== {json.dumps(first)}", "a thought that goes on")
    await page.run(f"{at('send')}.focus(); {at('send')}.click()")
    assert "Stopped" in (await answered(page))["figures"]
    assert await page.run("document.activeElement.id") == "send", "the focus is kept"

    await say(page, {**LONG, "tokens": 4000})
    await until(page, f"{at('thread')}.scrollTop > 300", "an answer longer than the page")
    ends = (
        "[...document.querySelectorAll('#turns .block')].at(-1).getBoundingClientRect().bottom"
        f" <= {at('form')}.getBoundingClientRect().top"
    )
    await until(page, ends, "the end above the box")
    # What has ended can be selected while the answer goes on.
    paragraph = "document.querySelector('#turns article:last-child .block p')"
    await until(page, f"Boolean({paragraph})", "a paragraph that is drawn")
    await page.run(
        "getSelection().selectAllChildren(document.querySelector("
        "'#turns article:last-child .block p'))"
    )
    chosen = await page.run("String(getSelection())")
    await page.ask("Input.dispatchMouseEvent", type="mouseWheel", x=700, y=300, deltaX=0,
                   deltaY=-200)  # fmt: skip
    await until(page, f"!{at('jump')}.hidden", "a button that leads to the end")
    still = "window.before === (window.before = document.getElementById('thread').scrollTop)"
    await until(page, still, "scrolling that has ended")
    top, length = await page.run(f"[{at('thread')}.scrollTop, {STATE}.text.length]")
    await until(page, f"{STATE}.text.length > {length + 200}", "an answer that goes on")
    assert await page.run(f"{at('thread')}.scrollTop") == top, "nobody is taken away"
    assert await page.run("String(getSelection())") == chosen and chosen
    await page.run(f"{at('jump')}.click()")
    await until(page, f"{at('jump')}.hidden", "the end")
    assert await page.run("document.activeElement.id") == "say"
    # What is open or typed in next to the answer is ended by the key, and the answer is not.
    menu = "document.querySelector('#conversations li .popup')"
    await page.run("document.querySelector('#conversations li .icon').click()")
    await press(page, "Escape")
    assert await page.run(f"{menu}.hidden")
    await page.run(f"{menu}.querySelector('button').click()")
    await press(page, "Escape")
    await until(page, "!document.querySelector('#conversations input')", "no name is typed")
    await page.run(f"{at('search')}.focus()")
    await press(page, "Escape")
    assert (await page.run(STATE))["runs"]
    await page.run(f"{at('say')}.focus()")
    await press(page, "Escape")
    assert "Stopped" in (await answered(page))["figures"]
    assert await page.run("document.activeElement.id") == "say"
    assert await page.run("window.said.length") == 4, "each answer once, and that it was copied"


CONVERSATIONS = (
    '[...document.querySelectorAll("#conversations .title")].map((one) => one.innerText)'
)
CHOICE = "document.querySelector('#turns article:last-child .branches span')?.textContent"


async def test_conversations(page: Page, origin: str) -> None:
    """They outlive a reload, are searched, renamed, exported and deleted; a new one has nothing of
    the old one; turns have branches."""
    await page.run(
        "window.sent = []; const send = window.fetch; window.fetch = (url, options) => {"
        " if (String(url).endsWith('completions')) sent.push(JSON.parse(options.body));"
        " if (window.down && String(url).endsWith('models')) return Promise.reject(new Error());"
        " return send(url, options); }"
    )
    await page.run("window.down = true; document.dispatchEvent(new Event('visibilitychange'))")
    await until(page, f"!{at('health')}.hidden", "a server that does not answer")
    await page.run("window.down = false")
    await until(page, f"{at('health')}.hidden", "it answers again")
    await say(page, LONG)
    await until(page, f"({STATE}).text.length > 10", "a stream")
    await page.run(f"{at('new')}.click()")
    assert (await asked(page, "Hello"))["text"].strip() == SENTENCE
    assert await page.run("sent[1].messages") == [{"role": "user", "content": "Hello"}]
    await until(page, f"{CONVERSATIONS}.length === 2", "both")

    # What was asked, edited, and answered once more.
    await page.run('document.querySelector(".user [aria-label=Edit]").click()')
    await page.run(
        # The key that ends a word which is still composed does not end the editing.
        'document.querySelector("form.edit textarea").dispatchEvent(new KeyboardEvent("keydown",'
        ' { key: "Escape", isComposing: true, bubbles: true }));'
        'document.querySelector("form.edit textarea").value = "Hello again";'
        'document.querySelector("form.edit").requestSubmit()'
    )
    await until(page, "sent.length === 3", "a question that was edited")
    await answered(page)
    assert await page.run("sent[2].messages") == [{"role": "user", "content": "Hello again"}]
    await page.run("document.querySelector(\"[aria-label='Answer again']\").click()")
    await until(page, f"{CHOICE} === '2/2'", "a second answer")
    await answered(page)
    branch = "document.querySelector('.user .branches span').textContent"
    assert await page.run(branch) == "2/2"
    await page.run("document.querySelector(\".user [aria-label='Version before']\").click()")
    await until(page, "document.querySelector('.bubble').innerText === 'Hello'", "the other one")

    await page.run(f"{at('open-settings')}.click(); {at('temperature')}.value = 9;"
                   f"{at('settings-save')}.click()")  # fmt: skip
    assert "from 0 to 2" in await page.run(f"{at('settings-fault')}.textContent")
    await page.run(f"{at('temperature')}.value = 0.5; {at('system')}.value = 'Be brief.';"
                   f"{at('settings-save')}.click()")  # fmt: skip

    path = await page.run("location.pathname + location.hash")
    await reopen(page, origin, path)
    shown = await answered(page)
    assert (shown["text"].strip(), shown["turns"]) == (SENTENCE, 2)
    assert await page.run(branch) == "1/2"
    # What is opened first does not replace what was opened later, however long it takes.
    here = path.partition("#")[2]
    other = "document.querySelector('#conversations li:not(:has([aria-current])) .title')"
    await until(page, f"Boolean({other})", "the other conversation")
    await page.run(
        f"{other}.click(); {at('new')}.click();"
        f"import('/ui/store.js').then((store) => store.loadConversation('{here}'))"
    )
    await page.run(COLOURS_CHANGED)
    assert (await page.run(STATE))["turns"] == 0
    # An address that is typed is followed.
    await page.run(f"location.hash = '#{here}'")
    await until(page, f"({STATE}).turns === 2", "the conversation")
    await answered(page)
    await page.run(f"{at('open-settings')}.click()")
    kept = f"[{at('temperature')}.value, {at('system')}.value]"
    assert await page.run(kept) == ["0.5", "Be brief."]
    await page.run(f"{at('settings-cancel')}.click()")

    async def search(text: str) -> None:
        await page.run(f"{at('search')}.value = '{text}';"
                       f"{at('search')}.dispatchEvent(new Event('input'))")  # fmt: skip

    await search("lazy DOG")
    await until(page, f"{CONVERSATIONS}.join() === 'Hello'", "the one that holds it")
    await search("")
    await until(page, f"{CONVERSATIONS}.length === 2", "both")
    entry = "document.querySelector('#conversations li:has([aria-current])')"

    async def do(what: str) -> None:
        await page.run(
            f"{entry}.querySelector('.icon').click(); [...{entry}.querySelectorAll('.popup button"
            f"')].find((one) => one.textContent === '{what}').click()"
        )

    await do("Rename")
    await page.run("document.querySelector('#conversations li > input').value = 'Greeting'")
    await press(page, "Enter")
    await until(page, f"{CONVERSATIONS}.includes('Greeting')", "its new name")
    names = f"[{at('title')}.textContent, document.title]"
    assert await page.run(names) == ["Greeting", "Greeting · lmx"]
    await page.run("URL.createObjectURL = (blob) => { window.exported = blob.text(); return '#'; }")
    await do("Export as Markdown")
    assert await page.run("window.exported") == (
        f"# Greeting\n\n## System\n\nBe brief.\n\n## You\n\nHello\n\n## scripted\n\n{SENTENCE}\n"
    )
    await do("Export as JSON")
    assert len(json.loads(await page.run("window.exported"))["turns"]) == 5
    await do("Delete")
    await page.run(f"{at('sure-yes')}.click()")
    await until(page, f"{CONVERSATIONS}.length === 1", "the other one")
    assert (await page.run(STATE))["turns"] == 0

    # One that is deleted while an answer streams into it stays deleted.
    for everything in (False, True):
        await say(page, LONG)
        await until(page, f"({STATE}).text.length > 10", "a stream")
        await until(page, f"Boolean({entry})", "its entry")
        if everything:
            await page.run(f"{at('open-options')}.click(); {at('delete-all')}.click()")
        else:
            await do("Delete")
        await until(page, f"{at('sure')}.open", "a question first")
        await page.run(f"{at('sure-yes')}.click()")
        await until(page, f"({STATE}).turns === 0", "a new one")
        await reopen(page, origin)
        await until(page, f"{at('conversations')}.childElementCount > 0", "the list")
        assert len(await page.run(CONVERSATIONS)) == (0 if everything else 1), everything
    await asked(page, "Hello")
    # What the browser does not keep is said, and why.
    await page.run(
        "window.put = IDBObjectStore.prototype.put; IDBObjectStore.prototype.put ="
        " function (value) { put.call(this, value); return this.add(value); }"
    )
    await asked(page, "Hello")
    said = await page.run(f"{at('refused')}.textContent")
    assert said.startswith("The browser did not keep this conversation: ")
    assert "Key already exists" in said, said
    await page.run("IDBObjectStore.prototype.put = window.put")
    await asked(page, "Hello")

    await page.run(f"{at('open-options')}.click(); {at('keep')}.click()")
    await until(page, f"{at('sure')}.open", "a question first")
    await page.run(f"{at('sure-yes')}.click()")
    await until(page, f"{CONVERSATIONS}.length === 0", "nothing kept")
    await page.run(f"{at('options-close')}.click()")
    await asked(page, "Hello")
    await until(page, f"{CONVERSATIONS}.length === 1", "it is listed")
    await reopen(page, origin)
    assert await page.run(CONVERSATIONS) == []
    # What is listed is kept as soon as conversations are.
    await asked(page, "Hello")
    await page.run(f"{at('open-options')}.click(); {at('keep')}.click()")
    said = f"{at('keep-state')}.textContent.startsWith('1 conversation, on this machine')"
    await until(page, said, "conversations are kept")
    await reopen(page, origin)
    await until(page, f"{CONVERSATIONS}.length === 1", "the one of before")


async def test_a_model_that_loads_and_one_that_is_killed(page: Page, scripted_server: Rig) -> None:
    await choose(page, "slow")
    with scripted_server.held_load("slow"):
        await say(page, "Hello")
        await until(page, f"/slow is loading: weights \\d+%/.test({STATE}.wait)", "how far it is")
        assert not await page.run("document.querySelector('.bar').hidden")
    assert (await answered(page))["text"].strip() == SENTENCE

    await choose(page, "scripted")
    await say(page, {"tokens": 2000, "step_s": 0.02})
    await until(page, f"{STATE}.text.length > 10 && {STATE}.runs", "a stream")
    killed = await asyncio.to_thread(scripted_server.cli, "kill", "scripted")
    assert killed.returncode == 0, killed.stderr
    shown = await answered(page)
    assert "worker_killed" in shown["fault"] and shown["text"], "what there is stays"
    # What broke is not part of what is asked next.
    assert (await asked(page, "Hello"))["text"].strip() == SENTENCE, "the model is back"
    await asyncio.to_thread(scripted_server.wait_state, "scripted", "ready", deadline_s=300)


def column(place: int, part: str) -> str:
    return (
        f"document.querySelectorAll('.pair:last-child article')[{place}]?.querySelector('{part}')"
    )


async def test_two_models_of_which_one_is_killed(page: Page, scripted_server: Rig) -> None:
    """Both answer each question, each with what it said before; a killed one is asked again in its
    column, while the other continues."""
    await page.run(
        "window.sent = []; const send = window.fetch; window.fetch = (url, options) => {"
        " if (String(url).endsWith('completions')) sent.push(JSON.parse(options.body));"
        " return send(url, options); }"
    )
    await until(page, f"{at('second')}.options.length > 2", "the models")
    await page.run(
        f"{at('second')}.value = 'narrow'; {at('second')}.dispatchEvent(new Event('change'))"
    )
    await say(page, {"tokens": 4000, "step_s": 0.05, "text": "word "})
    for place in (0, 1):
        await until(page, f"{column(place, '.text')}?.textContent.length > 10", "two streams")
    killed = await asyncio.to_thread(scripted_server.cli, "kill", "narrow")
    assert killed.returncode == 0, killed.stderr
    await until(page, f"!({column(1, '.fault')}.hidden)", "the fault in its column")
    assert "worker_killed" in await page.run(f"{column(1, '.fault')}.textContent")
    length = await page.run(f"{column(0, '.text')}.textContent.length")
    await asyncio.to_thread(scripted_server.wait_state, "narrow", "ready", deadline_s=300)
    await page.run(f"{column(1, '.fault button')}.click()")
    await until(page, f"{column(1, '.text')}.textContent.length > 10", "it answers again")
    assert await page.run(f"{column(1, '.fault')}.hidden")
    await until(page, f"{column(0, '.text')}.textContent.length > {length}", "the other continues")
    assert await page.run(f"{column(0, '.fault')}.hidden")
    left, right = (
        "document.querySelectorAll('.pair article')[0]",
        "document.querySelectorAll('.pair article')[1]",
    )
    apart = f"{left}.getBoundingClientRect().right <= {right}.getBoundingClientRect().left"
    assert await page.run(apart)
    await page.ask("Emulation.setDeviceMetricsOverride", **PHONE)
    below = f"{left}.getBoundingClientRect().bottom <= {right}.getBoundingClientRect().top"
    await until(page, below, "one under the other")
    assert await page.run("document.documentElement.scrollWidth") == PHONE["width"]
    await press(page, "Escape")
    await answered(page)
    said = await page.run(
        "[...document.querySelectorAll('.pair .text')].map((one) => one.innerText.trim())"
    )
    assert (await asked(page, "Hello"))["text"].strip() == SENTENCE
    by_model = {one["model"]: one["messages"] for one in (await page.run("sent"))[-2:]}
    for model, text in zip(("scripted", "narrow"), said, strict=True):
        assert by_model[model][1] == {"role": "assistant", "content": by_model[model][1]["content"]}
        assert by_model[model][1]["content"].strip() == text
    # Both are kept.
    await reopen(
        page, scripted_server.url.removesuffix("/v1"), "/" + await page.run("location.hash")
    )
    await until(page, "document.querySelectorAll('.pair article').length === 4", "both of each")
    assert await page.run(f"{at('second')}.value") == "narrow"


NO_MODELS = """
window.none = true;
const send = window.fetch;
window.fetch = (url, options) => window.none && String(url).endsWith("v1/models")
  ? Promise.resolve(Response.json({ data: [] })) : send(url, options);
"""


async def test_a_page_that_was_opened_before_there_was_a_model(page: Page, origin: str) -> None:
    added = await page.ask("Page.addScriptToEvaluateOnNewDocument", source=NO_MODELS)
    try:
        await reopen(page, origin)
    finally:
        await page.ask("Page.removeScriptToEvaluateOnNewDocument", **added)
    await say(page, "Hello")
    refused = f"{at('refused')}.textContent"
    assert "no model that chats" in await until(page, refused, "what is missing")
    assert not await page.run(f"{at('options')}.open"), "no key is missing"
    # The key that ends a composed word sends nothing.
    await page.run(
        f"window.none = false; {at('say')}.value = 'Hello'; {at('say')}.dispatchEvent(new"
        " KeyboardEvent('keydown', { key: 'Enter', keyCode: 229, bubbles: true }))"
    )
    assert await page.run(f"{at('say')}.value") == "Hello"
    await page.run(f"{at('say')}.focus()")
    await press(page, "Enter")
    await until(page, f"({STATE}).turns === 2", "a question")
    assert (await answered(page))["text"].strip() == SENTENCE


LATE = """
const open = IDBFactory.prototype.open;
IDBFactory.prototype.open = function (...asked) {
  const request = {};
  window.openNow = () => {
    const own = open.apply(this, asked);
    own.onsuccess = () => {
      request.result = own.result;
      request.onsuccess();
    };
  };
  return request;
};
"""


async def test_a_browser_that_does_not_open_what_it_keeps(page: Page, origin: str) -> None:
    """The page does not wait for it: whatever it opens on, one can chat. What is there in the end
    is shown then."""
    await reopen(page, origin)
    await asked(page, "Hello")
    address = "/" + await page.run("location.hash")
    added = await page.ask("Page.addScriptToEvaluateOnNewDocument", source=LATE)
    try:
        await reopen(page, origin, address)
        assert await page.run(f"({STATE}).turns") == 0
        await page.run("openNow()")
        await until(page, f"({STATE}).turns === 2", "the conversation in the address")
    finally:
        await page.ask("Page.removeScriptToEvaluateOnNewDocument", **added)
    never = "IDBFactory.prototype.open = () => ({})"
    added = await page.ask("Page.addScriptToEvaluateOnNewDocument", source=never)
    try:
        for address in ("/#/connect", "/#a-conversation"):
            await reopen(page, origin, address)
        assert (await asked(page, "Hello"))["text"].strip() == SENTENCE
    finally:
        await page.ask("Page.removeScriptToEvaluateOnNewDocument", **added)
    # What a tab has open does not keep another one from deleting it.
    await reopen(page, origin)
    await asked(page, "Hello")
    await page.run(
        "new Promise((done) => { indexedDB.deleteDatabase('lmx').onsuccess = () => done(); })"
    )
    assert (await asked(page, "Hello"))["turns"] == 4
    # Nor does it stay without one where the browser itself deleted it.
    opens = "import('/ui/store.js').then((store) => store.listConversations())"
    await page.run(
        "{ const own = IDBDatabase.prototype.transaction; IDBDatabase.prototype.transaction ="
        " function (...asked) { this.addEventListener('close', () => { window.emptied = true; });"
        f" return own.apply(this, asked); }}; }} {opens}.then(() => 0)"
    )
    await page.ask("Storage.clearDataForOrigin", origin=origin, storageTypes="indexeddb")
    await until(page, "window.emptied", "the browser has closed what it deleted")
    await until(page, f"{opens}.then(() => true, () => false)", "what is kept, opened again")
    assert (await asked(page, "Hello"))["turns"] == 6
    assert await page.run(f"{at('refused')}.textContent") == ""


async def test_two_tabs_with_one_conversation(page: Page, origin: str) -> None:
    """What is kept has what both wrote; neither overwrites the other."""
    await asked(page, "Hello")
    address = "/" + await page.run("location.hash")
    await until(page, f"{CONVERSATIONS}.length === 1", "its entry")
    await page.run(
        "document.querySelector('.user [aria-label=Edit]').click();"
        "document.querySelector('#conversations .popup button').click();"
        "window.typed = [...document.querySelectorAll('form.edit, #conversations input')]"
    )
    # Another tab went on with the conversation, as this one has it, and gave it a name.
    await page.run(
        """(async () => {
          const { newTurn } = await import("/ui/conversation.js");
          const opened = indexedDB.open("lmx", 1);
          await new Promise((done) => { opened.onsuccess = done; });
          const bodies = opened.result.transaction("bodies", "readwrite").objectStore("bodies");
          const all = bodies.getAll();
          await new Promise((done) => { all.onsuccess = done; });
          const [body] = all.result;
          const last = body.turns.at(-1);
          body.turns.push(newTurn(last.id, { role: "user", text: "From the other tab" }));
          body.chosen[last.id] = body.turns.at(-1).id;
          Object.assign(body, { title: "A better name", changed: Date.now() });
          const put = bodies.put(body);
          await new Promise((done) => { put.onsuccess = done; });
          opened.result.close();
          new BroadcastChannel("lmx").postMessage(body.id);
        })()"""
    )
    both = "[...document.querySelectorAll('.bubble .text')].map((one) => one.innerText)"
    await until(page, f"{both}.includes('From the other tab')", "what the other tab asked")
    # What is typed here stays.
    assert await page.run("typed.length === 2 && typed.every((one) => one.isConnected)")
    await press(page, "Escape")
    await until(page, f"{CONVERSATIONS}.join() === 'A better name'", "its new name")
    await page.run("document.querySelector('form.edit button').click()")
    await asked(page, "And here")
    await reopen(page, origin, address)
    assert await page.run(both) == ["Hello", "From the other tab", "And here"]
    await until(page, f"{CONVERSATIONS}.join() === 'A better name'", "its name is kept")


async def test_a_title_is_cut_between_characters(page: Page) -> None:
    title = await page.run(
        "import('/ui/conversation.js').then(({ addTurn, newConversation, NO_SETTINGS }) => {"
        " const made = newConversation('', NO_SETTINGS);"
        f" addTurn(made, '', {{ role: 'user', text: 'a' + '{'😀' * 80}' }});"
        " return made.title; })"
    )
    assert title == "a" + "😀" * 56 + "…"


async def test_presets(page: Page) -> None:
    await page.run(
        f"{at('open-settings')}.click(); {at('temperature')}.value = 0.25;"
        f"{at('system')}.value = 'Be brief.'; {at('preset-save')}.click()"
    )
    assert "a name" in await page.run(f"{at('settings-fault')}.textContent")
    await page.run(
        f"{at('preset-name')}.value = 'brief'; {at('preset-save')}.click();"
        f"{at('settings-cancel')}.click(); {at('open-settings')}.click()"
    )
    kept = f"[{at('temperature')}.value, {at('system')}.value]"
    assert await page.run(kept) == ["", ""], "nothing was changed yet"
    await page.run(
        f"{at('preset')}.value = 'brief'; {at('preset')}.dispatchEvent(new Event('change'))"
    )
    assert await page.run(kept) == ["0.25", "Be brief."]
    await page.run(f"{at('preset-delete')}.click()")
    assert await page.run(f"{at('preset')}.options.length") == 1
    await page.run(f"{at('settings-cancel')}.click()")


async def test_the_microphone(page: Page) -> None:
    """Offered where a model transcribes; the browser's own device makes the sound here."""
    assert await page.run(f"{at('record')}.hidden"), "no model here transcribes"
    await page.run(
        """{ const send = window.fetch; window.fetch = async (url, options) => {
          if (String(url).endsWith("transcriptions")) {
            const file = options.body.get("file");
            const head = new Uint8Array(await file.slice(0, 4).arrayBuffer());
            window.heard = [options.body.get("model"), file.name, file.size > 0, [...head]];
            return Response.json({ text: " Hello there. " });
          }
          const response = await send(url, options);
          if (!String(url).endsWith("v1/models")) return response;
          const listed = await response.json();
          const state = window.unloaded ? "cold" : "ready";
          listed.data.push({ id: "whisper", kind: "transcription", state });
          return Response.json(listed);
        }; }"""
    )
    await page.run(f"{at('model')}.dispatchEvent(new Event('focus'))")
    await until(page, f"!{at('record')}.hidden", "a button to speak")
    # A second click while the browser asks begins no second recording, which nothing would end.
    await page.run(
        "{ const start = MediaRecorder.prototype.start;"
        " MediaRecorder.prototype.start = function (...asked) { window.recording = this;"
        " return start.apply(this, asked); };"
        " const own = navigator.mediaDevices.getUserMedia; window.microphones = 0;"
        " navigator.mediaDevices.getUserMedia = function (...asked) { microphones += 1;"
        f" return own.apply(this, asked); }}; }} {at('say')}.value = 'Well.';"
        f"{at('record')}.click(); {at('record')}.click()"
    )
    await until(page, f"{at('record')}.ariaPressed === 'true'", "a recording")
    assert await page.run("microphones") == 1
    some = (
        "new Promise((done) => { recording.addEventListener('dataavailable',"
        " ({ data }) => done(data.size > 0), { once: true }); recording.requestData(); })"
    )
    await until(page, some, "some sound")
    # What was said is written, though the model is unloaded before its end.
    await page.run(
        "window.unloaded = true;"
        " import('/ui/models.js').then(({ refreshModels }) => refreshModels()).then(() => 0)"
    )
    await page.run(f"{at('record')}.click()")
    await until(page, f"{at('say')}.value === 'Well. Hello there.'", "what was said")
    assert await page.run(f"{at('record')}.hidden"), "no model transcribes any more"
    model, name, has_bytes, head = await page.run("window.heard")
    assert (model, name, has_bytes) == ("whisper", "speech.webm", True)
    assert head == [0x1A, 0x45, 0xDF, 0xA3], "a form that the server takes"
    await page.run(
        "Object.defineProperty(navigator, 'mediaDevices', { value: undefined });"
        f"{at('record')}.click()"
    )
    assert "https" in await page.run(f"{at('refused')}.textContent")


async def computed_s(page: Page) -> float:
    """What the page's main thread has done so far."""
    found = (await page.ask("Performance.getMetrics"))["metrics"]
    return float(next(one["value"] for one in found if one["name"] == "TaskDuration"))


async def test_an_answer_of_10_000_words_and_a_reload_in_its_middle(
    page: Page, origin: str
) -> None:
    """The last words cost about what the first ones do; what had come outlives a reload."""
    words = {
        "tokens": 500,
        "text": "Ten words of an answer that is long to read.\n\n" * 2,
        "step_s": 0.01,
    }
    # Of the thread's own processor time, which other programs don't lengthen.
    await page.ask("Performance.enable", timeDomain="threadTicks")
    began_s = await computed_s(page)
    await say(page, words)
    length = "document.querySelector('#turns article:last-child .text').textContent.length"
    await until(page, f"({STATE}).turns === 2 && {length} > 22_000", "half of the answer", 300)
    half_s = await computed_s(page)
    shown = await answered(page)
    end_s = await computed_s(page)
    assert shown["text"].count("Ten words of an answer") == 1000, "ten thousand words"
    first_s, second_s = half_s - began_s, end_s - half_s
    print(f"the page computed for {first_s:.2f} s, then {second_s:.2f} s")
    assert second_s < 4 * first_s + 2, "the work for a word grows with the answer"
    await page.run(f"{at('new')}.click()")
    await say(page, LONG)
    kept = """(async () => {
      const opened = indexedDB.open("lmx", 1);
      await new Promise((done) => { opened.onsuccess = done; });
      const all = opened.result.transaction("bodies").objectStore("bodies").getAll();
      await new Promise((done) => { all.onsuccess = done; });
      opened.result.close();
      return all.result.some(({ turns }) => turns.at(-1).state === "running" && turns.at(-1).text);
    })()"""
    await until(page, kept, "a part that is kept while the answer streams")
    await reopen(page, origin, "/" + await page.run("location.hash"))
    shown = await answered(page)
    assert shown["turns"] == 2 and shown["text"].startswith("Word after word")
    assert "Stopped" in shown["figures"]
    assert (await asked(page, "Hello"))["text"].strip() == SENTENCE


WEATHER = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}]  # fmt: skip


async def test_a_tool_is_called_and_its_result_sent(page: Page) -> None:
    await page.run(
        "window.sent = []; const send = window.fetch; window.fetch = (url, options) => {"
        " if (String(url).endsWith('completions')) sent.push(JSON.parse(options.body));"
        " return send(url, options); };"
        f"{at('open-settings')}.click(); {at('tools')}.value = {json.dumps(json.dumps(WEATHER))};"
        f"{at('settings-save')}.click()"
    )
    called = json.dumps({"name": "weather", "arguments": {"city": "Rome"}})
    await asked(page, {"pieces": ["<tool_call>\n", called, "\n</tool_call>"]})
    call = "document.querySelector('.call')"
    assert "weather" in await page.run(f"{call}.innerText")
    assert "Rome" in await page.run(f"{call}.querySelector('pre').innerText")
    give = (
        f"{call}.querySelector('textarea').value = 'Sunny';"
        " document.querySelector('.calls .buttons button').click()"
    )
    # While another answer of the conversation streams, no result is taken that is not sent.
    await page.run(
        "window.own = window.fetch; window.fetch = (url, options) =>"
        " String(url).endsWith('completions') ? new Promise((_, reject) =>"
        " options.signal.addEventListener('abort', () => reject(options.signal.reason)))"
        " : own(url, options);"
        "document.querySelector('.user [aria-label=Edit]').click();"
        "document.querySelector('form.edit').requestSubmit()"
    )
    await until(page, f"({STATE}).runs", "an answer to the question that was edited")
    await page.run("document.querySelector('.user [aria-label=\\'Version before\\']').click()")
    await until(page, f"Boolean({call})", "the first answer")
    await page.run(give)
    # Nor is a second answer requested, and the page says so.
    await page.run("document.querySelector(\"[aria-label='Answer again']\").click()")
    assert "under way" in await page.run(f"{at('refused')}.textContent")
    await press(page, "Escape")
    await answered(page)
    for version in ("Next version", "Version before"):
        await page.run(f"document.querySelector('.user [aria-label=\\'{version}\\']').click()")
    here = "import('/ui/store.js').then((store) => store.loadConversation(location.hash.slice(1)))"
    await page.run(f"{here}.then((one) => {{ window.other = structuredClone(one); }})")
    await page.run(f"window.fetch = window.own; {give}")
    await until(page, "sent.length === 2", "the result that is sent")
    assert await page.run("document.querySelector('.calls .buttons') === null"), "it was sent"
    # Another tab that has the conversation sends it too.
    taken = await page.run(
        f"Promise.all([{here}, import('/ui/conversation.js')]).then(([one, {{ merge }}]) =>"
        " (merge(window.other, one), window.other.turns.flatMap((turn) => turn.calls)))"
    )
    assert [one["result"] for one in taken] == ["Sunny"]
    assert (await answered(page))["text"].strip() == SENTENCE
    asked_for, result = (await page.run("sent[1].messages"))[-2:]
    assert asked_for["tool_calls"][0]["function"]["name"] == "weather"
    assert (result["role"], result["content"]) == ("tool", "Sunny")
    assert result["tool_call_id"] == asked_for["tool_calls"][0]["id"]


FILES = """const files = new DataTransfer();
for (const [name, type, content] of CONTENTS) {
  const bytes = Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
  files.items.add(new File([bytes], name, { type }));
}
"""
CHIPS = '[...document.querySelectorAll("#files .name")].map((one) => one.textContent)'


async def test_the_addresses_of_links_stay(page: Page) -> None:
    await page.run(
        "const send = window.fetch; window.fetch = async (url, options) => {"
        " const answer = await send(url, options);"
        " window.defined ||= String(url).endsWith('ui/markdown')"
        " && String(options.body).includes('[1]: https');"
        " return answer; }"
    )
    await say(page, {"pieces": ["See [a][1].\n\n", "[1]: https://lmx.example\n"]})
    await until(page, f"window.defined && !({STATE}).runs", "the trees of both blocks")
    await page.run(COLOURS_CHANGED)
    shown = await page.run(STATE)
    assert "https://lmx.example" in shown["text"]


async def test_files_and_the_same_request_elsewhere(page: Page) -> None:
    image, sound = picture("png"), wav_file(sine(440, 0.2, 16_000), 16_000)
    assert await page.run(f"{at('attach')}.hidden"), "the model takes text only"
    await choose(page, "narrow")
    await until(page, f"!{at('attach')}.hidden", "a button for files")
    await page.run(
        "window.sent = []; const send = window.fetch; window.fetch = (url, options) => {"
        " if (String(url).endsWith('completions')) sent.push(JSON.parse(options.body));"
        f" return send(url, options); }}; {COPIES}"
    )

    async def attach(how: str, *files: tuple[str, str, bytes]) -> None:
        contents = [[name, kind, base64.b64encode(data).decode()] for name, kind, data in files]
        many = len(await page.run(CHIPS))
        await page.run(f"{{ {FILES.replace('CONTENTS', json.dumps(contents))} {how} }}")
        await until(page, f"{CHIPS}.length > {many}", "files that are attached")

    picked = (
        f"{at('picker')}.files = files.files; {at('picker')}.dispatchEvent(new Event('change'))"
    )
    dropped = (
        "document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: files, bubbles: true}))"
    )
    pasted = f"{at('say')}.dispatchEvent(new ClipboardEvent('paste', {{clipboardData: files}}))"
    await attach(picked, ("page.pdf", "application/pdf", b"%PDF-"), ("cat.png", "image/png", image))
    assert "page.pdf is left out" in await page.run(f"{at('refused')}.textContent")
    await attach(dropped, ("dog.png", "image/png", image))
    await attach(pasted, ("talk.wav", "audio/wav", sound))
    assert await page.run("document.querySelectorAll('#files img').length") == 2
    await page.run('document.querySelector("#files button").click()')
    assert [chip.split(" ")[0] for chip in await page.run(CHIPS)] == ["dog.png", "talk.wav"]

    # A file goes with the message that it was attached to, or with none.
    await page.run(
        "{ const own = FileReader.prototype.readAsDataURL; window.reads = [];"
        " FileReader.prototype.readAsDataURL = function (file) {"
        " FileReader.prototype.readAsDataURL = own; reads.push(() => own.call(this, file)); }; }"
        f" {{ {FILES.replace('CONTENTS', json.dumps([['cow.png', 'image/png', '']]))} {picked} }}"
        f" {at('say')}.value = 'What is it?'; {at('form')}.requestSubmit()"
    )
    assert "still being read" in await page.run(f"{at('refused')}.textContent")
    assert (await page.run(STATE))["turns"] == 0
    await page.run("reads.pop()()")
    await until(page, f"{CHIPS}.length === 3", "the file that was read")
    await page.run("document.querySelectorAll('#files button')[2].click()")

    assert (await asked(page, "What is it?"))["text"].strip() == SENTENCE
    assert await page.run(CHIPS) == []
    data = base64.b64encode(image).decode()
    (turn,) = await page.run("sent[0].messages")
    assert turn["content"] == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        {"type": "input_audio",
         "input_audio": {"data": base64.b64encode(sound).decode(), "format": "wav"}},
        {"type": "text", "text": "What is it?"},
    ]  # fmt: skip
    assert await page.run("document.querySelector('.bubble img').naturalWidth > 0"), "a thumbnail"
    await asked(page, "And now?")
    assert (await page.run("sent[1].messages"))[0] == turn

    # What stands in the box is part of what is copied; files are not.
    await page.run(f'{at("say")}.value = "It\'s next"')
    for name, parts in {
        "as-curl": ["curl -N", "Bearer $LMX_API_KEY", "It'\\''s next", "base64,..."],
        "as-python": ['api_key=os.environ["LMX_API_KEY"]', '"It\'s next"', '"data": "..."'],
        "as-javascript": ["apiKey: process.env.LMX_API_KEY", '"It\'s next"'],
    }.items():
        await page.run(f"window.copied = ''; {at('share')}.click(); {at(name)}.click()")
        copied = await until(page, "window.copied", name)
        assert all(part in copied for part in parts), copied
        assert API_KEY not in copied and data not in copied
    await page.run(f"{at('say')}.value = ''; {at('new')}.click(); window.copied = '';"
                   f"{at('share')}.click(); {at('as-curl')}.click()")  # fmt: skip
    assert '"content": "Hello"' in await until(page, "window.copied", "an example")

    await attach(picked, ("cat.png", "image/png", b"<svg/>"))
    assert "invalid_media" in (await asked(page, "What is it?"))["fault"]


async def test_everybody_can_use_it(page: Page, origin: str) -> None:
    """axe finds nothing, in both colours and sizes; a long name breaks no phone; nothing is loaded
    from elsewhere, and the policy is kept."""
    loaded = await page.run('performance.getEntriesByType("resource").map((one) => one.name)')
    assert loaded and all(name.startswith(origin) for name in loaded)
    broken = await page.run(
        "new Promise((resolve) => {"
        ' document.addEventListener("securitypolicyviolation", (event) =>'
        "   resolve(event.effectiveDirective));"
        ' try { document.body.innerHTML = "<p>"; } catch {} })'
    )
    assert broken == "require-trusted-types-for", "no script makes elements of text"

    await asked(page, {"pieces": ["<think>", "Hm.", "</think>", *MARKS]})
    await asked(page, {"fail_at": 1})
    await load_axe(page)
    for size in (DESKTOP, PHONE):
        await page.ask("Emulation.setDeviceMetricsOverride", **size)
        for colours in ("light", "dark"):
            media = [{"name": "prefers-color-scheme", "value": colours}]
            await page.ask("Emulation.setEmulatedMedia", features=media)
            for opened in ("", "settings", "options"):
                if opened:
                    await page.run(f"{at(f'open-{opened}')}.click()")
                await page.run(COLOURS_CHANGED)
                assert await page.run(AXE) == [], (size["width"], colours, opened)
                if opened:
                    await page.run(f"{at(opened)}.close()")
    await page.run(
        f"{at('model')}.append(new Option('a-model-with-a-name-'.repeat(6)));"
        f"{at('model')}.selectedIndex = {at('model')}.options.length - 1"
    )
    assert await page.run("document.documentElement.scrollWidth") == PHONE["width"]
    assert await page.run(f"{at('share')}.getBoundingClientRect().right") <= PHONE["width"]
    await page.ask("Emulation.setEmulatedMedia", features=[])


CUT = """
(async () => {
  const { cut } = await import("/ui/blocks.js");
  const text = TEXT;
  const whole = cut(`${text}\\n\\nend`).closed;
  const differ = [];
  for (let end = 0; end <= text.length; end += 1) {
    const { closed, rest } = cut(text.slice(0, end));
    if ([...closed, rest].join("\\n") !== text.slice(0, end)) differ.push(["lost", end]);
    if (closed.some((block, place) => block !== whole[place])) differ.push(["moved", end]);
  }
  return { whole, differ };
})()
"""


async def test_blocks_that_have_ended_stay_as_the_text_grows(page: Page) -> None:
    blocks = [
        "# A **title**\n", "A paragraph of two\nlines.\n", "> a quote\n> > in it\n",
        "- one\n\n- two\n  ```\n  code\n\n  more\n  ```\n\n  and more\n",
        "```py\nx = 1\n\n- y\n```\n", "1. ```bash\n   ls\n\n   ls -l\n   ```\n",
        "```js\r\nx\r\n\r\ny\r\n```\r\n", "~~~\nnot\n\nended\n~~~\n", "| a |\n|---|\n| 1 |\n",
        "Text.\n",
    ]  # fmt: skip
    text = "\n".join(blocks)
    shown = await page.run(CUT.replace("TEXT", json.dumps(text)))
    assert shown == {"whole": blocks[:-1], "differ": []}
