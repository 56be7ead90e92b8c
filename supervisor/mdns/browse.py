"""Finds the machines in the local network that announce lmx. It is for a program that ends soon."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from zeroconf import (
    BadTypeInNameException,
    ServiceBrowser,
    ServiceInfo,
    ServiceListener,
    Zeroconf,
)

from lmx.protocol.free_text import text_of
from lmx.supervisor.mdns.announce_main import SERVICE

_ANSWER_MS = 3000
_MOST = 64
"""More machines than one network has. They are asked at the same time."""


@dataclass(frozen=True, slots=True)
class FoundMachine:
    """A machine, as it says itself: nobody has checked it."""

    name: str
    url: str
    version: str
    needs_key: bool


class _Names(ServiceListener):
    def __init__(self) -> None:
        self.found: set[str] = set()

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.found.add(name)

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.found.add(name)

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        self.found.discard(name)


def find_machines(for_s: float, interfaces: Sequence[str] | None = None) -> list[FoundMachine]:
    """Return the machines that say within ``for_s`` that they are there, by name. ``interfaces``
    are the addresses to listen on; None: all."""
    options: dict[str, Any] = {} if interfaces is None else {"interfaces": list(interfaces)}
    network, names = Zeroconf(**options), _Names()
    try:
        browser = ServiceBrowser(network, SERVICE, names)
        time.sleep(for_s)
        browser.cancel()
        infos = [info for info in map(_info, sorted(names.found)[:_MOST]) if info is not None]
        with ThreadPoolExecutor(_MOST) as asking:
            answered = list(asking.map(lambda info: info.request(network, _ANSWER_MS), infos))
        return [
            _machine(info)
            for info, answers in zip(infos, answered, strict=True)
            if answers and info.server and info.port
        ]
    finally:
        network.close()


def _info(name: str) -> ServiceInfo | None:
    """Return what is to be asked under a name; None for a name of something else. Anybody in the
    network may announce any name."""
    try:
        return ServiceInfo(SERVICE, name)
    except BadTypeInNameException:
        return None


def _machine(info: ServiceInfo) -> FoundMachine:
    said = info.decoded_properties
    return FoundMachine(
        _plain(info.name.removesuffix(f".{SERVICE}")),
        f"http://{_plain(str(info.server).rstrip('.'))}:{info.port}",
        _plain(said.get("version") or "?"),
        said.get("key") != "no",
    )


def _plain(text: str) -> str:
    """Return what a stranger wrote, without what a terminal would obey."""
    return "".join(one if one.isprintable() else "?" for one in text_of(text))[:80]
