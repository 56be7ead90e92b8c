"""Whom a process trusts over TLS, read when it is first needed."""

import ast
import asyncio
import os
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import certifi
import pytest

from lmx.protocol.host.python_source import python_tree
from lmx.router.authorities import Authorities

ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, ssl
from lmx.router.authorities import without_authorities
ours = dict(os.environ)
with without_authorities():
    assert ssl.create_default_context().cert_store_stats()["x509"] == 0
assert dict(os.environ) == ours
print(ssl.create_default_context().cert_store_stats()["x509"])
"""


def test_no_certificates_are_read_within_the_block_and_all_after_it() -> None:
    environment = os.environ | {"SSL_CERT_FILE": certifi.where()}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


async def test_they_are_read_once_and_servers_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certifi.where())
    authorities = Authorities()
    assert authorities.context.cert_store_stats()["x509"] == 0
    await authorities.load()
    trusted = authorities.context.cert_store_stats()["x509"]
    assert trusted > 50
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    await authorities.load()
    assert authorities.context.cert_store_stats()["x509"] == trusted
    assert authorities.context.check_hostname
    assert authorities.context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("has_folder", [False, True])
async def test_a_machine_whose_authorities_are_not_found_has_others(
    has_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing, folder = tmp_path / "none", tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(nothing))
    monkeypatch.setenv("SSL_CERT_DIR", str(folder if has_folder else nothing))
    authorities = Authorities()
    await authorities.load()
    assert authorities.context.cert_store_stats()["x509"] > 50
    # A folder with anything is the machine's own choice.
    (folder / "one.pem").touch()
    authorities = Authorities()
    await authorities.load()
    assert (authorities.context.cert_store_stats()["x509"] > 50) is not has_folder


class SlowContext:
    """Notes how many threads read at a time; the first one finds nothing to read."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.reading = self.most = self.reads = 0

    def load_default_certs(self) -> None:
        self.reading += 1
        self.reads += 1
        self.most = max(self.most, self.reading)
        self.go.wait(180)
        self.reading -= 1
        if self.reads == 1:
            raise OSError("no such file")

    def load_verify_locations(self, _: str) -> None:
        """It is called on a machine without authorities."""


async def test_one_thread_reads_for_all_who_wait() -> None:
    """Two that read into one context end the process. Seen with sixty images in one request."""
    authorities, context = Authorities(), SlowContext()
    authorities.context = context  # type: ignore[assignment]

    async def several() -> list[object]:
        """What became of five calls, two of which nobody waits for any more."""
        calls = [asyncio.create_task(authorities.load()) for _ in range(5)]
        await asyncio.sleep(0)
        for call in calls[:2]:
            call.cancel()
        await asyncio.wait(calls[:2])
        calls.append(asyncio.create_task(authorities.load()))
        await asyncio.sleep(0)
        context.go.set()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        context.go.clear()
        return [type(one) for one in ended[2:]]

    assert await several() == [OSError] * 4
    assert await several() == [type(None)] * 4
    await authorities.load()
    assert (context.reads, context.most) == (2, 1)


def test_every_connector_of_the_router_names_whom_it_trusts() -> None:
    """aiohttp's own context trusts nobody in a router, so that it would refuse every server."""
    calls = [
        (path.name, {keyword.arg for keyword in node.keywords}, name)
        for path in (ROOT / "router").rglob("*.py")
        for node in ast.walk(python_tree(path.read_text()))
        if isinstance(node, ast.Call)
        and (name := getattr(node.func, "attr", None)) in ("ClientSession", "TCPConnector")
    ]
    assert len(calls) >= 4
    for file, given, name in calls:
        assert ("ssl" if name == "TCPConnector" else "connector") in given, file
