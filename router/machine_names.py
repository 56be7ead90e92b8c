"""The names of this machine, as far as they are known without asking a name service."""

from __future__ import annotations

import plistlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lmx.protocol.web_origins import parse_authority

_HOSTS_FILE: Final = Path("/etc/hosts")
_MAC_NAMES_FILE: Final = Path("/Library/Preferences/SystemConfiguration/preferences.plist")
_MAX_FILE_BYTES: Final = 2**20

_PRIVATE: Final = ("local", "lan", "home", "internal", "home.arpa", "localdomain")
"""Endings that the public name service gives to nobody, so that a name below one can't be made to
point here by a stranger: mDNS, and what routers at home and in offices call their network."""


def machine_names() -> frozenset[str]:
    """Return this machine's names in lower case: its host name as it is and alone, each with the
    endings of private networks, Bonjour's name on a Mac, and what /etc/hosts calls it besides.

    On a Mac the host name's domain does not count: it is what the network there says, and that of
    a stranger might name a page of its own.
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
    # Only what begins with the machine's name: such files list strangers too, to block them.
    for line in hosts_file.splitlines():
        for word in line.partition("#")[0].lower().split()[1:]:
            if word.startswith(f"{short}."):
                yield word.removesuffix(".")


def _bonjour_names() -> Iterator[str]:
    # Not the host name, which the network may give: what the sharing settings say.
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
