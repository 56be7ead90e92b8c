"""Whom a process trusts over TLS, read when it is first needed."""

import ast
import asyncio
import os
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

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


@pytest.mark.parametrize(
    ("variable", "folder", "has_others"),
    [
        (None, None, True),
        (None, "empty", True),
        # A folder with anything is the machine's own choice, and so is one that can't be listed.
        (None, "full", False),
        (None, "full/one.pem", False),
        # Somebody's own authority is not replaced by public ones where its file is missing.
        ("SSL_CERT_FILE", None, False),
        ("SSL_CERT_DIR", None, False),
    ],
)
async def test_a_machine_whose_authorities_are_not_found_has_others_unless_they_are_chosen(
    variable: str | None,
    folder: str | None,
    has_others: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "one.pem").touch()
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, str(tmp_path / "none"))
    capath = None if folder is None else str(tmp_path / folder)
    paths = SimpleNamespace(cafile=None, capath=capath)
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda _: None)
    authorities = Authorities()
    await authorities.load()
    trusted = authorities.context.cert_store_stats()["x509"]
    assert (trusted > 50) if has_others else (trusted == 0)


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
