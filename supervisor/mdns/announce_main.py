"""A program that announces lmx in the local network until its stdin is closed, and then withdraws
the announcement:

    python -m lmx.supervisor.mdns.announce_main

Packets of strangers are read here, and not in a process that others need. A line of stdin is an
:class:`Announcement` in JSON. Each line of stdout is JSON too: ``{"label": ...}`` for what is
announced from now on, null for nothing; ``{"problem": ...}`` for why nothing is, for people.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from lmx.supervisor.config.extras import install_line
from lmx.supervisor.sockets.reachable import lan_addresses

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

SERVICE: Final = "_lmx._tcp.local."
_WEB: Final = "_http._tcp.local."

_LOOK_AGAIN_S: Final = 10.0
"""How often the addresses are read. With others, all is announced again."""

_ANSWER_MS: Final = 3000
"""How long somebody who has a name gets to say so: what was said just before is repeated a second
later at the earliest (RFC 6762, 6)."""

_GOODBYE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Announcement:
    """What is announced."""

    labels: tuple[str, ...]
    """The names to try, one after the other: ``studio`` is for ``studio.local``."""
    port: int
    addresses: tuple[str, ...]
    """The addresses that lmx listens on. None: all that others may reach."""
    facts: tuple[tuple[str, str], ...]
    """What the announcement says besides."""

    def line(self) -> bytes:
        """Return it as the line for the program."""
        return json.dumps(asdict(self)).encode() + b"\n"


def read_announcement(line: bytes) -> Announcement:
    """Return what :meth:`Announcement.line` has made."""
    found = json.loads(line)
    return Announcement(
        tuple(found["labels"]),
        found["port"],
        tuple(found["addresses"]),
        tuple((name, value) for name, value in found["facts"]),
    )


def main() -> None:
    """Announce what stdin says."""
    for number in (signal.SIGINT, signal.SIGHUP):
        # A Ctrl-C reaches the whole process group. The supervisor decides when this ends.
        signal.signal(number, signal.SIG_IGN)
    announcement = read_announcement(sys.stdin.buffer.readline())
    try:
        import zeroconf.asyncio  # noqa: F401
    except ImportError:
        _say(problem=f"nothing is announced without zeroconf: {install_line('mdns')}")
        return
    asyncio.run(_announce_until_closed(announcement))


def _say(**fact: str | None) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


async def _announce_until_closed(announcement: Announcement) -> None:
    closed = asyncio.Event()
    await asyncio.get_running_loop().connect_read_pipe(lambda: _Closing(closed), sys.stdin.buffer)
    while not closed.is_set():
        addresses = announcement.addresses or lan_addresses()
        try:
            if addresses:
                await _announce(announcement, addresses, closed)
            else:
                _say(problem="this machine is in no network")
        except OSError as error:
            _say(problem=f"the network refuses it ({error.strerror or error})")
        await _wait(closed)


class _Closing(asyncio.Protocol):
    def __init__(self, closed: asyncio.Event) -> None:
        self._closed = closed

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()


async def _wait(closed: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(closed.wait(), _LOOK_AGAIN_S)
    except TimeoutError:
        return


async def _announce(
    announcement: Announcement, addresses: Sequence[str], closed: asyncio.Event
) -> None:
    """Announce until stdin is closed or the machine has other addresses."""
    from zeroconf.asyncio import AsyncZeroconf

    # Only where lmx listens, and neither into containers nor on other networks.
    fourth = [address for address in addresses if ":" not in address]
    network = AsyncZeroconf(interfaces=fourth or list(addresses))
    try:
        for label in announcement.labels:
            if await _register(network, announcement, addresses, label):
                break
        else:
            _say(problem=f"others have the names {' and '.join(announcement.labels)}")
            return
        _say(label=label)
        while not closed.is_set() and (announcement.addresses or lan_addresses()) == addresses:
            await _wait(closed)
        _say(label=None)
    finally:
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await network.async_unregister_all_services()
        finally:
            await network.async_close()


async def _register(
    network: "AsyncZeroconf", announcement: Announcement, addresses: Sequence[str], label: str
) -> bool:
    """Announce under a name. Returns False if somebody else has it."""
    import zeroconf

    server = f"{label}.local."
    # An answer to this machine alone could reach another program on the same port (avahi, Bonjour).
    resolver = zeroconf.AddressResolver(server)  # type: ignore[attr-defined]  # not in __all__
    asked = resolver.async_request(
        network.zeroconf, _ANSWER_MS, question_type=zeroconf.DNSQuestionType.QM
    )
    if await asked:
        return False
    details: dict[str, Any] = {
        "server": server,
        "port": announcement.port,
        "parsed_addresses": list(addresses),
    }
    services = (
        zeroconf.ServiceInfo(
            SERVICE, f"{label}.{SERVICE}", properties=dict(announcement.facts), **details
        ),
        # Browsers and file managers list these.
        zeroconf.ServiceInfo(_WEB, f"lmx on {label}.{_WEB}", properties={"path": "/"}, **details),
    )
    begun = await asyncio.gather(
        *map(network.async_register_service, services), return_exceptions=True
    )
    # If one has failed, the other one is withdrawn: so its announcement must have ended.
    await asyncio.gather(*(one for one in begun if not isinstance(one, BaseException)))
    for one in begun:
        if isinstance(one, zeroconf.NonUniqueNameException):
            await network.async_unregister_all_services()
            return False
        if isinstance(one, BaseException):
            raise one
    return True


if __name__ == "__main__":
    main()
