"""lmx is announced on loopback, found there, and withdrawn."""

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from zeroconf import DNSQuestionType, ServiceStateChange
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from lmx.supervisor.mdns.announce_main import SERVICE, Announcement
from lmx.supervisor.mdns.browse import FoundMachine, find_machines
from lmx.supervisor.processes.announcer import Announcer

FACTS = (("version", "1.2.3"), ("path", "/v1"), ("key", "yes"), ("tls", "no"))


LABEL = f"lmx-test-{secrets.token_hex(4)}"
LABELS = (LABEL, f"{LABEL}-2", f"{LABEL}-3")
"""Names that nobody else announces, such as these tests of another checkout."""


def announcement(port: int = 8123) -> Announcement:
    return Announcement(LABELS, port, ("127.0.0.1",), FACTS)


class Owner:
    """An announcer whose clock can be set forward, and what it has notified."""

    def __init__(self, wanted: Announcement | None) -> None:
        self.wanted = wanted
        self.notices: list[str] = []
        self.announcer = Announcer(lambda: self.wanted, self.notices.append)
        self.ahead_s = 0.0

    def tick(self) -> None:
        self.announcer.tick(time.monotonic() + self.ahead_s)

    async def until(self, condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + 90
        while not condition():
            assert time.monotonic() < deadline_s, (self.announcer.label, self.notices)
            self.tick()
            await asyncio.sleep(0.05)


@contextlib.contextmanager
def owner(wanted: Announcement | None) -> Iterator[Owner]:
    made = Owner(wanted)
    try:
        yield made
    finally:
        made.announcer.close()


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[tuple[AsyncZeroconf, list[tuple[str, str]]]]:
    """Somebody else in the network, and what came and went."""
    seen: list[tuple[str, str]] = []

    def changed(name: str, state_change: ServiceStateChange, **_: object) -> None:
        seen.append((name.partition(".")[0], state_change.name))

    network = AsyncZeroconf(interfaces=["127.0.0.1"])
    browsing = AsyncServiceBrowser(network.zeroconf, SERVICE, handlers=[changed])
    try:
        yield network, seen
    finally:
        await browsing.async_cancel()
        await network.async_close()


async def test_it_is_found_has_another_name_where_it_is_taken_and_is_withdrawn() -> None:
    async with browser() as (network, seen):
        with owner(announcement()) as first, owner(announcement(8124)) as second:
            await first.until(lambda: first.announcer.label)
            assert first.announcer.label == LABELS[0]
            found = AsyncServiceInfo(SERVICE, f"{LABELS[0]}.{SERVICE}")
            assert await found.async_request(
                network.zeroconf, 60_000, question_type=DNSQuestionType.QM
            )
            assert (found.parsed_addresses(), found.port) == (["127.0.0.1"], 8123)
            assert found.server == f"{LABELS[0]}.local."
            assert found.decoded_properties == dict(FACTS), "neither models nor keys"
            machines: list[FoundMachine] = []
            async with asyncio.timeout(90):
                # Who announces may be slower than that.
                while not machines:
                    every = await asyncio.to_thread(find_machines, 2.0, ["127.0.0.1"])
                    machines = [one for one in every if one.name == LABELS[0]]
            assert machines == [
                FoundMachine(LABELS[0], f"http://{LABELS[0]}.local:8123", "1.2.3", True)
            ]
            await second.until(lambda: second.announcer.label)
            assert second.announcer.label == LABELS[1]
            await second.until(lambda: (LABELS[1], "Added") in seen)
            first.wanted = None
            await first.until(lambda: (LABELS[0], "Removed") in seen)
            assert first.announcer.label is None
            second.announcer.close()
            await first.until(lambda: (LABELS[1], "Removed") in seen)
            assert first.notices == second.notices == []


def program(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let announcers run this in place of Python."""
    file = folder / "python"
    file.write_text(f"#!{sys.executable} -IS\n{code}")
    file.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(file))


async def test_one_that_ends_is_reported_once_and_started_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, 'print(\'{"label": "a"}\')', monkeypatch)
    with owner(announcement()) as made:
        await made.until(lambda: made.notices)
        assert made.announcer._process is None
        assert made.announcer.label is None
        made.ahead_s += 61
        made.tick()
        assert made.announcer._process is not None
        await made.until(lambda: made.announcer._process is None)
    assert made.notices == [
        "lmx is not announced in the network (server.advertise): its program has ended"
    ] * len(made.notices)


async def test_what_it_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zeroconf.py").write_text("raise ImportError('no zeroconf')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
    with owner(announcement()) as made:
        await made.until(lambda: made.notices)
        await made.until(lambda: made.announcer._process is None)
    (notice,) = made.notices
    assert notice.endswith("'zeroconf>=0.154'")


async def test_one_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = 'import time\nprint(\'{"label": "a"}\', flush=True)\ntime.sleep(600)'
    program(tmp_path, code, monkeypatch)
    with owner(announcement()) as made:
        await made.until(lambda: made.announcer.label)
        process = made.announcer._process
        assert process is not None
        made.wanted = None
        made.tick()
        assert process.poll() is None
        made.ahead_s += 4
        await made.until(lambda: process.poll() is not None)
        assert made.notices == []
