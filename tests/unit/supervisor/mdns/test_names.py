"""Under which names lmx is announced, who answers under them, and what keeps it from that."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from zeroconf import NonUniqueNameException, ServiceInfo

from lmx.protocol.messages.status import SystemStatus
from lmx.supervisor.cli.doctor.lines import Verdict
from lmx.supervisor.cli.doctor.setup import check_mdns
from lmx.supervisor.config.extras import missing_extras
from lmx.supervisor.config.schema import Config
from lmx.supervisor.control.status import with_urls
from lmx.supervisor.mdns import browse
from lmx.supervisor.mdns.announce_main import (
    SERVICE,
    Announcement,
    _register,
    read_announcement,
)
from lmx.supervisor.processes.announcer import Announcer
from lmx.supervisor.processes.specs import _answers_under
from lmx.supervisor.service.parts import _announcement
from lmx.supervisor.sockets.reachable import mdns_labels
from tests.support.fakes.admin_lines import reported_status

LAN = {"host": "0.0.0.0", "allow_lan_without_key": True, "advertise": True}


@pytest.mark.parametrize(
    ("machine", "host", "first"),
    [
        ("studio", "mac-1", "studio"),
        ("Anna's.Studio_2", "mac-1", "anna-s-studio-2"),
        ("mac-1", "mac-1", "mac-1-lmx"),
        ("Mac-1", "mac-1", "mac-1-lmx"),
        ("x" * 60, "mac-1", "x" * 50),
    ],
)
def test_the_system_s_own_name_is_left_to_it(machine: str, host: str, first: str) -> None:
    labels = mdns_labels(machine, host)
    assert labels[:2] == (first, f"{first}-2")
    assert len(labels) == 9
    assert max(map(len, labels)) <= 63


def test_what_nobody_could_reach_is_not_announced() -> None:
    with pytest.raises(ValueError, match="need not find it"):
        Config.model_validate({"server": {"advertise": True}})
    Config.model_validate({"server": LAN})


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.model_validate({"server": LAN})
    assert missing_extras(config) == []
    monkeypatch.setattr("lmx.supervisor.config.extras._is_installed", lambda name: name == "pip")
    (words,) = missing_extras(config)
    assert words.endswith(f": {sys.executable} -m pip install 'zeroconf>=0.154'")
    assert missing_extras(Config()) == []


def test_an_announcement_crosses_a_pipe() -> None:
    said = Announcement(("a", "b"), 1, ("::1",), (("key", "yes"),))
    line = said.line()
    assert line.count(b"\n") == 1
    assert read_announcement(line) == said


@pytest.mark.parametrize(
    ("server", "port", "addresses"),
    [
        ({}, 8000, None),
        (LAN, None, None),
        (LAN, 8000, ()),
        ({**LAN, "host": "192.168.1.9"}, 8000, ("192.168.1.9",)),
        ({**LAN, "host": "studio.lan"}, 8000, ()),
    ],
)
def test_what_is_announced_is_where_lmx_listens(
    server: dict[str, object], port: int | None, addresses: tuple[str, ...] | None
) -> None:
    config = Config.model_validate({"server": {**server, "name": "studio"}})
    found = _announcement(config, Mock(port=port), "1.2.3", keyed=True)
    if addresses is None:
        assert found is None
        return
    assert found is not None
    assert (found.labels[0], found.port, found.addresses) == ("studio", port, addresses)
    assert dict(found.facts) == {"version": "1.2.3", "path": "/v1", "key": "yes", "tls": "no"}
    # And routers answer under the name, also where a number was added.
    names = _answers_under(config, "studio")
    assert {"studio.local", "studio-2.local"} <= set(names)
    assert _answers_under(Config(), "studio") == ()


def test_the_status_has_the_url() -> None:
    router = replace(reported_status().router, host="0.0.0.0", port=8000)
    shown = with_urls(router, lambda: ("192.168.1.9",), "studio-2")
    assert shown.announced_url == "http://studio-2.local:8000/v1"
    assert with_urls(router, tuple, None).announced_url is None


def status(url: str | None) -> SystemStatus:
    return reported_status(router={"announced_url": url})


@pytest.mark.parametrize(
    ("installed", "found", "verdict"),
    [
        (True, status("http://studio.local:8000/v1"), Verdict.OK),
        (True, status(None), Verdict.WARNING),
        (True, None, Verdict.NOTE),
        (False, None, Verdict.WARNING),
    ],
)
def test_doctor_says_the_name(
    installed: bool, found: SystemStatus | None, verdict: Verdict
) -> None:
    line = check_mdns(installed, found)
    assert line.verdict is verdict
    if verdict is Verdict.OK:
        assert line.measured == "http://studio.local:8000/v1"


def test_nobody_imports_zeroconf_who_does_not_announce() -> None:
    code = (
        "import sys, lmx.supervisor.service.parts, lmx.supervisor.cli.main\n"
        "sys.exit('zeroconf' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=90).returncode == 0


def test_a_name_is_withdrawn_before_it_is_announced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next program finds that somebody has the name: the one before it."""
    program, began, withdrawn = (tmp_path / name for name in ("program", "began", "withdrawn"))
    program.write_text(
        f'#!/bin/sh\nread line\necho \'{{"label": "studio"}}\'\necho x >> {began}\n'
        f"read line\nwhile ! test -e {withdrawn}; do sleep 0.01; done\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setattr("lmx.supervisor.processes.announcer._GOODBYE_S", 600.0)
    wanted = [Announcement(("studio",), 8000, (), ())]
    notices: list[str] = []
    announcer = Announcer(lambda: wanted[0], notices.append)
    now_s = 0.0

    def ticks_until(condition: Callable[[], bool]) -> None:
        nonlocal now_s
        deadline_s = time.monotonic() + 90
        while not condition():
            assert time.monotonic() < deadline_s
            now_s += 1.0
            announcer.tick(now_s)
            time.sleep(0.01)

    try:
        ticks_until(lambda: announcer.label == "studio")
        wanted[0] = Announcement(("studio",), 8001, (), ())
        for _ in range(5):
            now_s += 1.0
            announcer.tick(now_s)
        assert announcer.label is None
        assert announcer._process is None, "the first one is still leaving"
        withdrawn.touch()
        ticks_until(lambda: announcer.label == "studio")
    finally:
        withdrawn.touch()
        announcer.close()
    assert (began.read_text(), notices) == ("x\nx\n", [])


class _Network:
    """Takes announcements: those of the first service fail, and the others take a while."""

    def __init__(self) -> None:
        self.zeroconf = None
        self.announced: set[str] = set()
        self.withdrawals = 0

    async def async_register_service(self, info: ServiceInfo) -> asyncio.Task[None]:
        if info.type == SERVICE:
            raise NonUniqueNameException
        for _ in range(10):
            await asyncio.sleep(0)
        return asyncio.create_task(self._announce(info.name))

    async def _announce(self, name: str) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
            self.announced.add(name)

    async def async_unregister_all_services(self) -> None:
        self.withdrawals += 1
        self.announced.clear()


class _Resolver:
    def __init__(self, _: str) -> None: ...

    async def async_request(self, *_: object, **__: object) -> bool:
        return False


async def test_nothing_stays_announced_under_a_name_that_another_one_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zeroconf.AddressResolver", _Resolver)
    network: Any = _Network()
    announcement = Announcement(("studio",), 8000, ("127.0.0.1",), ())
    assert await _register(network, announcement, announcement.addresses, "studio") is False
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    assert (network.announced, network.withdrawals) == (set(), 1)


def test_the_machines_of_a_network_are_asked_at_once_whatever_else_is_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    all_asked = threading.Barrier(3)

    class Info(ServiceInfo):
        def request(self, *_: Any, **__: Any) -> bool:
            all_asked.wait(180)
            self.server, self.port = "studio.local.", 8000
            return not self.name.startswith("silent")

    def announces(network: Any, service: str, names: Any) -> Mock:
        others = ("a._http._tcp.local.", "nonsense", "x" * 64 + f".{service}", "")
        for name in (*others, f"studio.{service}", f"silent.{service}", f"b.c.{service}"):
            names.add_service(network, service, name)
        return Mock()

    monkeypatch.setattr(browse, "Zeroconf", Mock())
    monkeypatch.setattr(browse, "ServiceBrowser", announces)
    monkeypatch.setattr(browse, "ServiceInfo", Info)
    assert [machine.name for machine in browse.find_machines(0.0)] == ["b.c", "studio"]
