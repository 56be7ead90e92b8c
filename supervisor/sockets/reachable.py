"""The URLs at which the API can be reached. For a listener on all addresses these are the addresses
that this machine has."""

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import psutil

ALL_ADDRESSES: Final = {"0.0.0.0": 4, "::": 6}  # noqa: S104  recognised here, not listened on
_LOOPBACK: Final = "127.0.0.1"
_INNER: Final = ("docker", "br-", "veth", "virbr", "vmnet", "vboxnet", "bridge1", "lxc", "cni")
"""How the names of networks begin that are within this machine. Their addresses come last. On a Mac
those of virtual machines are bridge100 and so on; bridge0 is the Thunderbolt bridge."""

_MOST: Final = 6
_MOST_LABELS: Final = 9
_LABEL_CHARACTERS: Final = 50
"""A name in the DNS has 63 at most, of which some are for what is added."""


def api_urls(host: str, port: int, addresses: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """Return the base URLs of the API, the best one for people first.

    ``addresses`` returns the machine's own addresses, as :func:`own_addresses` does. It is called
    only if lmx listens on all of them.
    """
    version = ALL_ADDRESSES.get(host)
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


def lan_addresses() -> tuple[str, ...]:
    """Return the addresses under which other machines find this one: those of
    :func:`own_addresses` without networks that are within this machine."""
    return ordered(pair for pair in _up() if not pair[0].startswith(_INNER))


def host_name() -> str:
    """Return this machine's host name without its domain, in the letters that a machine's name
    has."""
    short = socket.gethostname().partition(".")[0]
    return re.sub(r"[^A-Za-z0-9-]+", "-", short).strip("-")[:60] or "lmx"


def mdns_labels(machine: str, host: str) -> tuple[str, ...]:
    """Return the names to announce a machine under, the best first: ``studio`` for
    ``studio.local``. The system itself may have its host name, so that one of that name is
    announced as ``studio-lmx``. Pure."""
    plain = _label(machine)
    first = f"{plain}-lmx" if plain == _label(host) else plain
    return (first, *(f"{first}-{number}" for number in range(2, _MOST_LABELS + 1)))


def _label(name: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:_LABEL_CHARACTERS]


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
