"""A browser for each file here, and its page."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.conftest import API_KEY
from tests.support.clients.chromium import Page, chromium, require_chromium
from tests.support.clients.console_page import DESKTOP, reopen
from tests.support.rigs.rig import Rig


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Page]:
    require_chromium()
    fakes = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    async with chromium(*fakes) as page:
        yield page


@pytest.fixture
def origin(scripted_server: Rig) -> str:
    return scripted_server.url.removesuffix("/v1")


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Page, origin: str) -> Page:
    """A page of a browser that has kept nothing but the key."""
    await browser.ask("Emulation.setDeviceMetricsOverride", **DESKTOP)
    await browser.open(f"{origin}/ping")
    await browser.run(
        "(async () => { sessionStorage.clear(); localStorage.clear();"
        f' localStorage.setItem("lmx-key", "{API_KEY}"); localStorage.setItem("lmx-model",'
        ' "scripted"); for (const one of await indexedDB.databases())'
        " await new Promise((done) => { const gone = indexedDB.deleteDatabase(one.name);"
        " gone.onsuccess = gone.onerror = gone.onblocked = done; }); })()"
    )
    await reopen(browser, origin)
    return browser
