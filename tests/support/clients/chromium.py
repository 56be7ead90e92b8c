"""A headless Chromium, driven over its debugging protocol with the WebSocket client of aiohttp."""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

REQUIRE = "REQUIRE_BROWSER"
"""The variable with which a missing browser is an error, and no reason to skip a test."""

_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # which does not work as root, as CI is
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-first-run",
    "--remote-debugging-port=0",
)
_START_S = 180.0
_ANSWER_S = 180.0


def require_chromium() -> str:
    """The path of a Chromium; without one the test is skipped, or fails where it is required."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        reason = f"there is no Chromium on this machine (none of {', '.join(_NAMES[:3])})"
        if os.environ.get(REQUIRE):
            pytest.fail(f"{reason}, and {REQUIRE} is set")
        pytest.skip(reason)
    return found


_REPLACED = ("Inspected target navigated or closed", "Cannot find default execution context")
"""What an evaluation is answered while another document takes a tab's place."""


class DocumentReplaced(AssertionError):
    """The document in which a script ran has been replaced, as by a reload."""


class Page:
    """A tab, in which one script after another is run."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session_id: str) -> None:
        self._socket = socket
        self._session_id = session_id
        self._ids = itertools.count(1000)

    async def open(self, url: str) -> None:
        """Go there, and wait until it has loaded."""
        await self.ask("Page.enable")
        said = await self.ask("Page.navigate", url=url)
        assert "errorText" not in said, said
        async with asyncio.timeout(_ANSWER_S):
            while await self.run("document.readyState") != "complete" or (
                await self.run("location.href") == "about:blank"
            ):
                await asyncio.sleep(0.02)

    async def run(self, script: str) -> Any:
        """What a script comes to, or its promise; an exception is an error here."""
        said = await self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def ask(self, method: str, **params: Any) -> Any:
        """The answer to a command of the protocol."""
        return await _ask(self._socket, next(self._ids), method, params, self._session_id)


async def _ask(
    socket: aiohttp.ClientWebSocketResponse,
    number: int,
    method: str,
    params: dict[str, Any],
    session_id: str | None = None,
) -> Any:
    command = {"id": number, "method": method, "params": params}
    if session_id is not None:
        command["sessionId"] = session_id
    await socket.send_json(command)
    async with asyncio.timeout(_ANSWER_S):
        async for message in socket:
            said = json.loads(message.data)
            if said.get("id") == number:
                if said.get("error", {}).get("message", "").startswith(_REPLACED):
                    raise DocumentReplaced(said["error"]["message"])
                assert "error" not in said, said
                return said["result"]
    raise AssertionError("the browser has gone")


@contextlib.asynccontextmanager
async def chromium(*flags: str) -> AsyncIterator[Page]:
    """A fresh browser with one empty tab; it is ended with all its processes."""
    program = require_chromium()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            program, *_FLAGS, f"--user-data-dir={folder}", *flags, "about:blank",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
            # It is killed, and would leave its folders of sockets behind elsewhere.
            env={**os.environ, "TMPDIR": folder},
        )  # fmt: skip
        try:
            url = await _debugging_url(Path(folder))
            async with (
                aiohttp.ClientSession() as http,
                http.ws_connect(url, max_msg_size=2**26) as socket,
            ):
                made = await _ask(socket, 1, "Target.createTarget", {"url": "about:blank"})
                attached = await _ask(
                    socket, 2, "Target.attachToTarget",
                    {"targetId": made["targetId"], "flatten": True},
                )  # fmt: skip
                yield Page(socket, attached["sessionId"])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _debugging_url(folder: Path) -> str:
    reported = folder / "DevToolsActivePort"
    async with asyncio.timeout(_START_S):
        while not reported.exists() or reported.read_text().count("\n") < 1:
            await asyncio.sleep(0.05)
    port, path = reported.read_text().split("\n")[:2]
    return f"ws://127.0.0.1:{port}{path}"
