"""Take the pictures of ``docs/start/console``: ``python -m docs.make.pictures FOLDER``.

What they show happened: it runs an lmx with two copies of the demo model, whose folder the command
line names, has both answer in the chat, kills one of them on the page of models, and looks at the
pages meanwhile. The colours are cut to a palette, so that a picture is small.
"""

import asyncio
import base64
import io
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from PIL import Image

from tests.support.clients.chromium import Page, chromium
from tests.support.rigs.rig import PATIENT, Rig, http, rig, whole

FOLDER: Final = Path(__file__).resolve().parents[1] / "start" / "console"
MOST_BYTES: Final = 150_000
_COLOURS: Final = 128
_SIZES: Final = {
    "desktop": {"width": 1280, "height": 760, "deviceScaleFactor": 1, "mobile": False},
    "phone": {"width": 390, "height": 780, "deviceScaleFactor": 2, "mobile": True},
}
_QUESTION: Final = "Write a long story about a lighthouse keeper and the sea."
_DEADLINE_S: Final = 120.0
_SETTLED_S: Final = 1.0
"""How long colours change, and the bars of a page grow to their lengths."""


def main() -> None:
    """Take all pictures."""
    models = [
        {"id": name, "source": sys.argv[1], "context_length": 4096, "temperature": 0.7}
        for name in ("story", "agent")
    ]
    models.append({**models[0], "id": "night", "preload": False})
    FOLDER.mkdir(exist_ok=True)
    with rig({"models": models, "timing": PATIENT | {"shutdown_grace_s": 1.0}}) as lmx:
        for name in ("story", "agent"):
            lmx.wait_state(name, "ready", deadline_s=240)
        asyncio.run(_take(lmx))


async def _take(lmx: Rig) -> None:
    async with http() as session:
        for number in range(6):
            said = f"{_QUESTION} It has {number + 3} sentences."
            await whole(session, lmx.url, ("story", "agent")[number % 2], said, max_tokens=24)
    async with chromium() as page:
        origin = lmx.url.removesuffix("/v1")
        key = (lmx.home / "admin.key").read_text().strip()
        await page.ask("Emulation.setDeviceMetricsOverride", **_SIZES["desktop"])
        await page.open(f"{origin}/ping")
        await page.run(f"sessionStorage.setItem('lmx-admin-key', {json.dumps(key)})")
        await page.open(f"{origin}/")
        await _until(page, "document.getElementById('second').options.length > 2")
        await page.run(
            "for (const [id, model] of [['model', 'story'], ['second', 'agent']]) {"
            " const select = document.getElementById(id); select.value = model;"
            " select.dispatchEvent(new Event('change')); }"
            f" document.getElementById('say').value = {json.dumps(_QUESTION)};"
            " document.getElementById('form').requestSubmit()"
        )
        texts = "[...document.querySelectorAll('.pair .text')]"
        await _until(page, f"{texts}.every((one) => one.textContent.length > 300)")
        await page.run("location.hash = '#/requests'")
        await _shoot(page, "requests", "desktop", "light")
        await page.run("location.hash = '#/models'")
        kill = (
            "[...document.querySelectorAll('#view button')].filter("
            "(one) => one.textContent === 'Kill')[1]"
        )
        await _until(page, f"Boolean({kill})")
        await page.run(f"{kill}.click()")
        await _until(page, "document.getElementById('sure').open")
        await page.run("document.getElementById('sure-yes').click()")
        await _until(page, "document.getElementById('view').innerText.includes('came back')")
        await _shoot_all(page, "models")
        await page.run("location.hash = '#/chat'")
        await _until(page, "Boolean(document.querySelector('.pair .fault:not([hidden])'))")
        await _shoot_all(page, "chat")
        for view in ("usage", "connect"):
            await page.run(f"location.hash = '#/{view}'")
            await _shoot(page, view, "desktop", "light")


async def _shoot_all(page: Page, name: str) -> None:
    for size in _SIZES:
        for colours in ("light", "dark"):
            await _shoot(page, name, size, colours)


async def _shoot(page: Page, name: str, size: str, colours: str) -> None:
    await page.ask("Emulation.setDeviceMetricsOverride", **_SIZES[size])
    media = [{"name": "prefers-color-scheme", "value": colours}]
    await page.ask("Emulation.setEmulatedMedia", features=media)
    await asyncio.sleep(_SETTLED_S)
    taken: dict[str, Any] = await page.ask("Page.captureScreenshot", format="png")
    picture = Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB")
    path = FOLDER / f"{name}-{size}-{colours}.png"
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < MOST_BYTES, f"{path} has {path.stat().st_size} bytes"


async def _until(page: Page, condition: str) -> None:
    end_s = time.monotonic() + _DEADLINE_S
    while not await page.run(condition):
        assert time.monotonic() < end_s, condition
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    main()
