"""Where the API can be reached: of a listener on all addresses, those that this machine has."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import psutil

_ALL: Final = {"0.0.0.0": 4, "::": 6}  # noqa: S104  recognised here, not listened on
_LOOPBACK: Final = "127.0.0.1"
_INNER: Final = ("docker", "br-", "veth", "virbr", "vmnet", "vboxnet", "bridge", "lxc", "cni")
"""Beginnings of the names of networks that are within this machine: named last."""

_MOST: Final = 6


def api_urls(host: str, port: int, addresses: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """Return the base URLs of the API, the one to tell people first.

    ``addresses`` gives the machine's own, as :func:`own_addresses` does, and is asked only where
    lmx listens on all of them.
    """
    version = _ALL.get(host)
    if version is None:
        return (_url(host, port),)
    hosts = [
        address
        for address in addresses()
        if version == 6 or ipaddress.ip_address(address).version == 4
    ]
    return tuple(_url(address, port) for address in [*hosts[:_MOST], _LOOPBACK])


def own_addresses() -> tuple[str, ...]:
    """Return this machine's addresses that others may reach: IPv4 first, of networks that are up,
    without those that hold for one cable alone."""
    return ordered(_up())


def ordered(found: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the addresses of pairs of an interface and an address, in the order to tell them.
    Pure."""
    kept = []
    for interface, text in found:
        address = ipaddress.ip_address(text)
        if not (address.is_loopback or address.is_link_local or address.is_unspecified):
            kept.append((interface.startswith(_INNER), address.version, text))
    return tuple(text for _, _, text in sorted(kept, key=lambda one: one[:2]))


def _up() -> Iterator[tuple[str, str]]:
    stats = psutil.net_if_stats()
    for interface, addresses in psutil.net_if_addrs().items():
        if interface in stats and not stats[interface].isup:
            continue
        for one in addresses:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                yield interface, one.address.partition("%")[0]


def _url(host: str, port: int) -> str:
    named = f"[{host}]" if ":" in host else host
    return f"http://{named}:{port}/v1"
