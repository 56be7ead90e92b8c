"""Finds the addresses of a URL's host, and keeps those that may be asked.

The connection goes to an address that was checked here: no name is looked up a second time, so that
a name service can't say one thing to the check and another to the connection.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from ipaddress import ip_address
from typing import Any, Final

import psutil
from aiohttp.abc import AbstractResolver, ResolveResult

from lmx.protocol.host.lasting import in_daemon_thread
from lmx.router.media.addresses import AddressRule, Network, literal_address, own_network
from lmx.router.media.fair_semaphore import FairSemaphore

Lookup = Callable[[str, int], Awaitable[Sequence[tuple[socket.AddressFamily, str]]]]
"""Returns the addresses of a host. Raises ``OSError`` if there are none."""

LOOKUP_OWNER: Final[ContextVar[str]] = ContextVar("lookup_owner", default="")
"""The client for whom a name is looked up: aiohttp does not pass it on."""

_LOOKUP_THREADS: Final = 32
"""A lookup can't be cancelled: one whose name service is silent holds its thread, and its client's
turn, for half a minute, longer than its fetch may take. So they are more than fetches."""

_NUMERIC: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class AddressRefusedError(Exception):
    """A host has only addresses that may not be asked."""


class Resolver(AbstractResolver):
    """Gives aiohttp the addresses of a host."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host. Raises ``OSError`` if there are none."""
        return [
            ResolveResult(hostname=host, host=text, port=port, family=kind, proto=0, flags=_NUMERIC)
            for kind, text in await self._lookup(host, port)
        ]

    async def close(self) -> None:
        """Do nothing: the look-up is not this resolver's."""


class CheckedResolver(Resolver):
    """Gives aiohttp the addresses of a host that the rule admits."""

    def __init__(
        self, rule: AddressRule, lookup: Lookup, own_networks: Callable[[], Sequence[Network]]
    ) -> None:
        super().__init__(lookup)
        self._rule = rule
        self._own_networks = own_networks

    def check_literal(self, host: str) -> None:
        """Raise :class:`AddressRefusedError` for a host that is an address which may not be asked,
        and ``ValueError`` for one in a form that only the system can read.

        aiohttp does not resolve such a host. So this comes before each request.
        """
        address = literal_address(host)
        if address is not None and not self._rule.admits(address, self._own_networks()):
            raise AddressRefusedError(host)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the admitted addresses of a host. Raises :class:`AddressRefusedError`, and
        ``OSError`` if it has none at all."""
        found = await super().resolve(host, port, family)
        own = self._own_networks()
        admitted = [one for one in found if self._rule.admits(ip_address(one["host"]), own)]
        if not admitted:
            raise AddressRefusedError(host)
        return admitted


class SystemLookup:
    """Asks the system's name service, in threads of its own, of which one client has half at
    most. The router's end does not wait for them."""

    def __init__(self) -> None:
        self._slots = FairSemaphore(_LOOKUP_THREADS)

    async def __call__(self, host: str, port: int) -> Sequence[tuple[socket.AddressFamily, str]]:
        """Return the addresses of a host, in the system's order of preference."""
        end = await self._slots.acquire(LOOKUP_OWNER.get())
        looking = asyncio.ensure_future(in_daemon_thread(_look_up, host, port))

        def ended(looked: asyncio.Future[Any]) -> None:
            # Its turn has lasted as long as its thread. Nobody may wait for it any more.
            end()
            if not looked.cancelled():
                looked.exception()

        looking.add_done_callback(ended)
        infos = await asyncio.shield(looking)
        return [
            (
                family,
                f"{address[0]}%{address[3]}" if len(address) > 3 and address[3] else address[0],
            )
            for family, _, _, _, address in infos
            if isinstance(address[0], str)
        ]


def _look_up(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)


def interface_networks() -> Sequence[Network]:
    """Return the networks of this machine's interfaces as they are now."""
    found = (
        own_network(one.address, one.netmask)
        for addresses in psutil.net_if_addrs().values()
        for one in addresses
        if one.family in (socket.AF_INET, socket.AF_INET6)
    )
    return [network for network in found if network is not None]
