"""The page that describes the API, in a real browser."""

import pytest

from tests.support.clients.chromium import chromium, require_chromium
from tests.support.clients.console_page import until
from tests.support.rigs.rig import Rig

pytestmark = pytest.mark.long


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
