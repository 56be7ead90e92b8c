"""The page at / as tests drive it: its sizes, its state, and what becomes of it."""

import asyncio
import contextlib
import json
import time
from typing import Any

from tests.support.clients.chromium import DocumentReplaced, Page
from tests.support.clients.client_packages import node_folder
from tests.support.rigs.rig import ROOT

PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
DESKTOP = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
CHECKS = ROOT / "tests" / "e2e" / "pages" / "page_checks"

STATE = """(() => {
  const last = [...document.querySelectorAll("#turns article")].at(-1);
  const text = (found) => found && !found.hidden ? found.textContent : "";
  return {
    text: text(last?.querySelector(".text")),
    fault: text(last?.querySelector(".fault")),
    figures: text(last?.querySelector(".figures")),
    wait: text(last?.querySelector(".wait")),
    turns: document.querySelectorAll("#turns article").length,
    runs: document.getElementById("send").dataset.does === "stop",
    ready: document.body.classList.contains("ready"),
  };
})()"""

AXE = """(async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.map(({ id, nodes }) => [id, ...nodes.map(({ html }) => html)]);
})()"""

COLOURS_CHANGED = """new Promise((over) => requestAnimationFrame(() => requestAnimationFrame(over)))
  .then(() => Promise.all(document.getAnimations()
    .filter((one) => Number.isFinite(one.effect.getComputedTiming().endTime))
    .map((one) => one.finished.catch(() => null))))
  .then(() => 0)"""
"""What is over when the colours, and what else moves for a moment, have changed."""


def at(name: str) -> str:
    return f'document.getElementById("{name}")'


async def until(page: Page, script: str, what: str, deadline_s: float = 90.0) -> Any:
    """What a script comes to, as soon as that is true; also while another document takes the place
    of the tab's."""
    end_s = time.monotonic() + deadline_s
    while True:
        with contextlib.suppress(DocumentReplaced):
            if value := await page.run(script):
                return value
        assert time.monotonic() < end_s, f"{what}: {await page.run(STATE)}"
        await asyncio.sleep(0.05)


async def press(page: Page, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        await page.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key)


async def reopen(page: Page, origin: str, path: str = "/") -> None:
    await page.open("about:blank#")
    await page.open(f"{origin}{path}")
    await until(page, f"({STATE}).ready", "the page")


async def keep_keys(page: Page, origin: str, *, api_key: str = "", admin_key: str = "") -> None:
    """Have the tab keep these keys, and nothing else of before but conversations."""
    kept = [("localStorage", "lmx-key", api_key), ("sessionStorage", "lmx-admin-key", admin_key)]
    await page.open(f"{origin}/ping")
    await page.run(
        "sessionStorage.clear(); localStorage.clear();"
        + "".join(
            f"{store}.setItem('{name}', {json.dumps(key)});" for store, name, key in kept if key
        )
    )


async def load_axe(page: Page) -> None:
    """Load axe-core into the page, for :data:`AXE`."""
    axe = node_folder(CHECKS) / "node_modules" / "axe-core" / "axe.min.js"
    await page.run(axe.read_text())
