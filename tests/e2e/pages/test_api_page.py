"""The page that describes the API, in a real browser."""

import asyncio
import time
from typing import Any

import pytest

from tests.support.clients.chromium import Page, chromium, require_chromium
from tests.support.rigs.rig import Rig

pytestmark = pytest.mark.long


async def until(page: Page, script: str, what: str, deadline_s: float = 90.0) -> Any:
    """What a script comes to, as soon as that is true."""
    end_s = time.monotonic() + deadline_s
    while not (value := await page.run(script)):
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.05)
    return value


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
