"""The page at / in a real browser: a chat, a model killed in the middle of its answer, and back."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from chromium import Page, chromium, require_chromium
from openai import OpenAI
from rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.process, pytest.mark.timeout(240)]

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
        await page.open(f"{origin}/")
        await until(page, '!document.getElementById("keys").hidden', "the field for the key")
        await page.run(
            f'const key = document.getElementById("key"); key.value = "{scripted_client.api_key}";'
            'key.dispatchEvent(new Event("change"))'
        )
        await until(
            page,
            '[...document.getElementById("model").options].some((one) => one.value === "scripted")',
            "the models",
        )
        await page.run('document.getElementById("model").value = "scripted"')

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
    scripted_server.wait_state("scripted", "ready", deadline_s=60)


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
