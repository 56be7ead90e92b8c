"""The page at / in a real browser: a chat, a model killed in the middle of its answer, and back."""

import asyncio
import base64
import json
import time
from typing import Any

import pytest
from openai import OpenAI

from tests.support.clients.chromium import Page, chromium, require_chromium
from tests.support.fakes.media_files import sine, wav_file
from tests.support.faults.hostile_media import picture
from tests.support.rigs.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.process, pytest.mark.timeout(900)]

SENTENCE = "The quick brown fox jumps over the lazy dog."
SAY = """
document.getElementById("say").value = TEXT;
document.getElementById("form").requestSubmit();
"""
LAST = """(() => {
  const last = [...document.querySelectorAll("#turns article")].at(-1);
  return {
    text: last?.querySelector(".text").textContent ?? "",
    html: last?.querySelector(".text").innerHTML ?? "",
    note: last?.querySelector(".note").textContent ?? "",
    thinking: last?.querySelector("details div")?.textContent ?? "",
    stops: !document.getElementById("stop").hidden,
  };
})()"""


async def until(page: Page, script: str, what: str, deadline_s: float = 60.0) -> Any:
    """What a script comes to, as soon as that is true."""
    end_s = time.monotonic() + deadline_s
    while not (value := await page.run(script)):
        assert time.monotonic() < end_s, f"{what}: {await page.run(LAST)}"
        await asyncio.sleep(0.05)
    return value


async def say(page: Page, text: Any) -> None:
    said = text if isinstance(text, str) else json.dumps(text)
    await page.run(SAY.replace("TEXT", json.dumps(said)))


async def log_in(page: Page, origin: str, key: str) -> None:
    """Open the page, and give the key that it asks for."""
    await page.open(f"{origin}/")
    await until(page, '!document.getElementById("keys").hidden', "the field for the key")
    await page.run(
        f'const key = document.getElementById("key"); key.value = "{key}";'
        'key.dispatchEvent(new Event("change"))'
    )


async def choose(page: Page, model: str) -> None:
    """Choose a model, once the page has it."""
    await until(
        page,
        f'[...document.getElementById("model").options].some((one) => one.value === "{model}")',
        "the models",
    )
    await page.run(
        f'document.getElementById("model").value = "{model}";'
        'document.getElementById("model").dispatchEvent(new Event("change"))'
    )


async def answered(page: Page) -> dict[str, Any]:
    """The last answer, when it has ended."""
    await until(page, 'document.getElementById("stop").hidden', "an answer that ends")
    # It is drawn with the next frame.
    await until(page, f"{LAST}.note !== 'Waiting' && {LAST}.note !== ''", "a note below the answer")
    shown: dict[str, Any] = await page.run(LAST)
    return shown


async def test_a_chat_and_a_model_that_is_killed(
    scripted_server: Rig, scripted_client: OpenAI
) -> None:
    require_chromium()
    origin = scripted_server.url.removesuffix("/v1")
    async with chromium() as page:
        await log_in(page, origin, scripted_client.api_key)
        await choose(page, "scripted")

        await say(page, "Hello")
        assert (await answered(page))["text"].strip() == SENTENCE

        marks = "# A **b**\n\n- one\n- `two`\n\n```py\n<b>x</b>\n```\n<img src=x onerror=alert(1)>"
        await say(page, {"pieces": ["<think>", "Hm.", "</think>", marks]})
        shown = await answered(page)
        assert shown["thinking"] == "Hm."
        assert "<strong>b</strong>" in shown["html"] and "<li>one</li>" in shown["html"]
        assert "&lt;b&gt;x&lt;/b&gt;" in shown["html"] and "<img" not in shown["html"]

        await say(page, {"tokens": 2000, "step_s": 0.02})
        await until(page, f"{LAST}.text.length > 10 && {LAST}.stops", "a stream")
        await page.run('document.getElementById("stop").click()')
        assert (await answered(page))["note"] == "Stopped"

        await say(page, {"tokens": 2000, "step_s": 0.02})
        await until(page, f"{LAST}.text.length > 10 && {LAST}.stops", "a stream")
        killed = await asyncio.to_thread(scripted_server.cli, "kill", "scripted")
        assert killed.returncode == 0, killed.stderr
        shown = await answered(page)
        assert "worker_killed" in shown["note"] and shown["text"], "what there is stays"

        await say(page, "Hello")
        assert (await answered(page))["text"].strip() == SENTENCE, "the model is back"
    scripted_server.wait_state("scripted", "ready", deadline_s=300)


async def test_the_page_loads_nothing_from_elsewhere_and_breaks_no_rule(
    scripted_server: Rig,
) -> None:
    require_chromium()
    origin = scripted_server.url.removesuffix("/v1")
    async with chromium() as page:
        await page.open(f"{origin}/")
        await until(page, '!document.getElementById("chat").hidden', "the chat")
        loaded = await page.run(
            'performance.getEntriesByType("resource").map((entry) => entry.name)'
        )
        assert loaded and all(name.startswith(origin) for name in loaded)
        broken = await page.run(
            "new Promise((resolve) => {"
            ' document.addEventListener("securitypolicyviolation", (event) =>'
            "   resolve(event.effectiveDirective));"
            ' const script = document.createElement("script"); script.textContent = "1";'
            " document.body.append(script); })"
        )
        assert broken == "script-src-elem", "the policy is in force"


ATTACH = """{
  const files = new DataTransfer();
  for (const [name, type, content] of FILES) {
    const bytes = Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
    files.items.add(new File([bytes], name, { type }));
  }
  document.getElementById("picker").files = files.files;
  document.getElementById("picker").dispatchEvent(new Event("change"));
}"""
WATCH = """
window.sent = [];
const send = window.fetch;
window.fetch = (url, options) => {
  if (options?.method === "POST") window.sent.push(JSON.parse(options.body));
  return send(url, options);
};
"""
CHIPS = '[...document.querySelectorAll("#files li")].map((one) => one.firstChild.textContent)'
REFUSED = 'document.getElementById("refused").textContent'


async def attach(page: Page, *files: tuple[str, str, bytes]) -> None:
    shown = [[name, kind, base64.b64encode(content).decode()] for name, kind, content in files]
    await page.run(ATTACH.replace("FILES", json.dumps(shown)))


async def test_files_go_with_a_message(scripted_server: Rig, scripted_client: OpenAI) -> None:
    require_chromium()
    origin = scripted_server.url.removesuffix("/v1")
    image = picture("png")
    sound = wav_file(sine(440, 0.2, 16_000), 16_000)
    async with chromium() as page:
        await log_in(page, origin, scripted_client.api_key)
        await choose(page, "scripted")
        assert await page.run('document.getElementById("attach").hidden'), "it takes text only"
        await choose(page, "narrow")
        await until(page, '!document.getElementById("attach").hidden', "a button for files")
        await page.run(WATCH)

        await attach(
            page, ("page.pdf", "application/pdf", b"%PDF-"), ("cat.png", "image/png", image)
        )
        assert "page.pdf is left out" in await page.run(REFUSED)
        await attach(page, ("cat.png", "image/png", image), ("talk.wav", "audio/wav", sound))
        chips = await page.run(CHIPS)
        assert [chip.split(" ")[0] for chip in chips] == ["cat.png", "cat.png", "talk.wav"]
        await page.run('document.querySelector("#files button").click()')
        assert len(await page.run(CHIPS)) == 2

        await say(page, "What is it?")
        assert (await answered(page))["text"].strip() == SENTENCE
        assert await page.run(CHIPS) == [] and not await page.run(REFUSED)
        (sent,) = await page.run("window.sent")
        (turn,) = sent["messages"]
        data = base64.b64encode(image).decode()
        assert turn["content"] == [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
            {"type": "input_audio",
             "input_audio": {"data": base64.b64encode(sound).decode(), "format": "wav"}},
            {"type": "text", "text": "What is it?"},
        ]  # fmt: skip
        # The next turn has them too, and what is copied has not.
        await say(page, "And now?")
        assert (await answered(page))["text"].strip() == SENTENCE
        assert (await page.run("window.sent"))[1]["messages"][0] == turn
        await page.run(
            'Object.defineProperty(navigator, "clipboard", { value: undefined });'
            'document.getElementById("curl").click()'
        )
        copied = await until(page, 'document.getElementById("code").textContent', "the command")
        assert "data:image/png;base64,..." in copied and data not in copied

        # A file that is no picture is told as every error is.
        await attach(page, ("cat.png", "image/png", b"<svg/>"))
        await say(page, "")
        assert "invalid_media" in (await answered(page))["note"]


async def test_the_page_of_the_api_takes_a_file_for_a_transcription(scripted_server: Rig) -> None:
    require_chromium()
    origin = scripted_server.url.removesuffix("/v1")
    async with chromium() as page:
        await page.open(f"{origin}/docs")
        block = '[...document.querySelectorAll(".opblock-summary-path")]'
        path = "/v1/audio/transcriptions"
        find = f'{block}.find((one) => one.textContent.replaceAll("\\u200b", "") === "{path}")'
        await until(page, f"Boolean({find})", "the route")
        await page.run(f"{find}.click()")
        tried = 'document.querySelector(".opblock.is-open .try-out__btn")'
        await until(page, f"Boolean({tried})", "the button to try it")
        await page.run(f"{tried}.click()")
        await until(
            page,
            'document.querySelectorAll(".opblock.is-open input[type=file]").length === 1',
            "a field for the file",
        )
