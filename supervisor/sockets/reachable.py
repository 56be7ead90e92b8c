"""The URLs at which the API can be reached. For a listener on all addresses these are the addresses
that this machine has."""

import ipaddress
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import psutil

_ALL: Final = {"0.0.0.0": 4, "::": 6}  # noqa: S104  recognised here, not listened on
_LOOPBACK: Final = "127.0.0.1"
_INNER: Final = ("docker", "br-", "veth", "virbr", "vmnet", "vboxnet", "bridge", "lxc", "cni")
"""How the names of networks begin that are within this machine. Their addresses come last."""

_MOST: Final = 6


def api_urls(host: str, port: int, addresses: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """Return the base URLs of the API, the best one for people first.

    ``addresses`` returns the machine's own addresses, as :func:`own_addresses` does. It is called
    only if lmx listens on all of them.
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
    """Return the addresses of this machine that others may reach, IPv4 first. They are of networks
    that are up. Link-local addresses, which hold for one cable only, are left out."""
    return ordered(_up())


def ordered(found: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the addresses of pairs of an interface and an address, in the order in which people
    see them. Pure."""
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
