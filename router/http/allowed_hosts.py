"""Checks the host names under which lmx answers. This keeps out web pages that use DNS rebinding.

The browser takes a page of ``evil.example`` whose name is made to point at this machine for one of
lmx's own origin. The name in its requests gives it away.

The module also collects this machine's names, as far as they are known without a name service.
"""

import plistlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.specs import RouterSpec
from lmx.protocol.web_origins import Authority, host_allowed, parse_authority

_HOSTS_FILE: Final = Path("/etc/hosts")
_MAC_NAMES_FILE: Final = Path("/Library/Preferences/SystemConfiguration/preferences.plist")
_MAX_FILE_BYTES: Final = 2**20

_NOWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104
"""Addresses to which a hosts file sends the names that it blocks."""

_PRIVATE: Final = ("local", "lan", "home", "internal", "home.arpa", "localdomain")
"""Endings that the public name service gives to nobody, so that a name below one can't be made to
point here by a stranger: mDNS, and what routers at home and in offices call their network."""


def machine_names() -> frozenset[str]:
    """Return this machine's names in lower case: its host name, whole and without its domain, with
    each ending of private networks; the name that Bonjour gives a Mac; and the names in /etc/hosts.

    On a Mac the host name's domain does not count, because the network chooses it: a stranger's
    network might name a page of its own.
    """
    name = socket.gethostname()
    if sys.platform == "darwin":
        name = name.partition(".")[0]
    return all_names({name, *_bonjour_names()}, _text(_HOSTS_FILE))


def all_names(names: set[str], hosts_file: str) -> frozenset[str]:
    """Return all names that follow from the machine's own ``names`` and its hosts file. Pure."""
    found: set[str] = set()
    for name in names:
        authority = parse_authority(name)
        if authority is None or authority.is_address or authority.host == "":
            continue
        short = authority.host.partition(".")[0]
        found |= {authority.host, short, *(f"{short}.{ending}" for ending in _PRIVATE)}
        found |= set(_called_too(short, hosts_file))
    return frozenset(found)


def _called_too(short: str, hosts_file: str) -> Iterator[str]:
    # Only what begins with the machine's name: such files list strangers too, to block them. One
    # of those may begin with it as well, so nothing counts that leads nowhere.
    for line in hosts_file.splitlines():
        address, *words = line.partition("#")[0].lower().split() or ("",)
        if address in _NOWHERE:
            continue
        for word in words:
            if word.startswith(f"{short}."):
                yield word.removesuffix(".")


def _bonjour_names() -> Iterator[str]:
    # Not the host name, which the network may give: what the sharing settings name.
    if sys.platform != "darwin":
        return
    try:
        with _MAC_NAMES_FILE.open("rb") as file:
            names = plistlib.load(file)["System"]["Network"]["HostNames"]
        yield str(names["LocalHostName"])
    except (OSError, ValueError, KeyError, TypeError, plistlib.InvalidFileException):
        return


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_FILE_BYTES)
    except OSError:
        return ""


_READ_AGAIN_S: Final = 10.0
"""A machine's name changes with its network. The names are looked up again only when a request is
about to be refused for its name."""

_SHOWN: Final = 100
"""Characters of a name that an error repeats."""


class HostCheck:
    """Judges the Host header of requests. It allows addresses, ``localhost`` and names below it,
    the machine's names, the name that lmx listens on, and ``allowed_hosts``."""

    def __init__(
        self, spec: RouterSpec, names: Callable[[], frozenset[str]] = machine_names
    ) -> None:
        self._patterns = (*spec.allowed_hosts, "localhost", "*.localhost", spec.host.lower())
        self._read_names = names
        self._names = names()
        self._read_at_s = time.monotonic()

    def check(self, request: web.Request) -> Authority | None:
        """Return the host that the request names; None if it names none (HTTP/1.0, so no browser).

        Raises :class:`RequestError`: HOST_NOT_ALLOWED.
        """
        # A target with a host of its own goes before the header (RFC 9112, 3.2.2); both count.
        named = {*request.headers.getall("Host", ()), *_of_target(request.raw_path)}
        found = None
        for text in named:
            found = parse_authority(text)
            if found is None or not self._is_allowed(found):
                raise RequestError(
                    ErrorCode.HOST_NOT_ALLOWED,
                    f"lmx does not answer under the name {text[:_SHOWN]!r}, so that no web page "
                    "gets to it under a name of its own (DNS rebinding): use an address, or add "
                    "the name to server.allowed_hosts if it is meant.",
                )
        return found

    def _is_allowed(self, host: Authority) -> bool:
        if host.is_address or host_allowed(host.host, self._patterns) or host.host in self._names:
            return True
        if time.monotonic() - self._read_at_s < _READ_AGAIN_S:
            return False
        self._names, self._read_at_s = self._read_names(), time.monotonic()
        return host.host in self._names


def _of_target(target: str) -> tuple[str, ...]:
    _, separator, rest = target.partition("://")
    if target.startswith("/") or not separator:
        return ()
    return (rest.partition("/")[0].partition("?")[0],)
