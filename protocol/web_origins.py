"""Host names and origins of web pages as HTTP writes them, and patterns that allow some of them.
This module is pure.

A browser sends `Host` with the name under which a page was found, and `Origin` with the place from
which the asking page comes. Only the person who configures lmx knows which names and pages are
meant.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

ANY: Final = "*"
NULL_ORIGIN: Final = "null"
"""What a page without an origin of its own sends: a page from a file, or in a sandbox."""

_MAX_NAME: Final = 253
_NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.(?!-)[a-z0-9_-]{1,63})*")
_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]+(?:%[a-z0-9%._~-]+)?\]|[^:\[\]]*)(?::([0-9]{1,5}))?")
_PATTERN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#@]*)")
_WEB_PORTS: Final = {"http": 80, "https": 443}
_MAX_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class Authority:
    """A host and its port."""

    host: str
    """In lower case, without a dot at the end and without the brackets of IPv6."""
    port: int | None
    """None if no port is written."""

    @property
    def is_address(self) -> bool:
        """Whether the host is an IP address, which no name service can make point elsewhere."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True


def parse_authority(text: str) -> Authority | None:
    """Return what a Host header says, None if it is not a host."""
    found = _AUTHORITY.fullmatch(text.lower())
    if found is None:
        return None
    host, digits = found.groups()
    port = None if digits is None else int(digits)
    if port is not None and port > _MAX_PORT:
        return None
    if host.startswith("["):
        known = Authority(host[1:-1].partition("%")[0], port)
        return known if known.is_address else None
    host = host.removesuffix(".")
    return Authority(host, port) if _is_name(host) else None


def _is_name(text: str) -> bool:
    return len(text) <= _MAX_NAME and _NAME.fullmatch(text) is not None


def parse_host_pattern(text: str) -> str:
    """Return a pattern of ``server.allowed_hosts`` in the form that :func:`host_allowed` takes.

    Raises ``ValueError`` with what is wrong with it.
    """
    pattern = text.strip().lower().removesuffix(".")
    if pattern == ANY:
        return ANY
    if not pattern.isascii():
        raise ValueError("write the name as browsers send it, in its ASCII form (xn--...)")
    if "/" in pattern:
        raise ValueError("is a name alone, without http:// and without a path")
    if ":" in pattern and not Authority(pattern.strip("[]"), None).is_address:
        raise ValueError("is a name without a port: every port of it is allowed")
    if not _is_name(pattern.removeprefix("*.")) and ":" not in pattern:
        raise ValueError(
            "is not a host name: write lmx.example.com, *.example.com for all names below it, or "
            "* for any"
        )
    return pattern.strip("[]")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_allowed(host: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a host, as in :class:`Authority`, is among ``patterns``."""
    return any(
        pattern in (ANY, host) or (pattern.startswith("*.") and host.endswith(pattern[1:]))
        for pattern in patterns
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """The place from which a page comes."""

    scheme: str
    host: str
    port: int | None
    """None: the port of the scheme."""

    def is_at(self, there: Authority) -> bool:
        """Return whether the page is from the server that ``there`` names. The scheme does not
        count, because a client that comes through a proxy may have used https."""
        usual = _WEB_PORTS.get(self.scheme)
        if usual is None or self.host != there.host:
            return False
        return (self.port or usual) == (there.port or usual)


def parse_origin(text: str) -> Origin | None:
    """Return what an Origin header says, None for `null` and if it is not an origin."""
    found = _PATTERN.fullmatch(text.lower())
    if found is None:
        return None
    scheme, rest = found.groups()
    if not rest:
        return Origin(scheme, "", None)  # file:// as Electron sends it
    authority = parse_authority(rest)
    if authority is None:
        return None
    port = None if authority.port == _WEB_PORTS.get(scheme) else authority.port
    return Origin(scheme, authority.host, port)


@dataclass(frozen=True, slots=True)
class OriginPattern:
    """One entry of ``server.cors_origins``."""

    scheme: str
    """`*` allows any origin at all, `null` too."""
    host: str = ""
    port: int | None = None
    any_port: bool = False

    def allows(self, origin: Origin | None) -> bool:
        """Return whether an origin is allowed. None stands for `null`, and for an origin that can't
        be read."""
        if self.scheme == ANY:
            return True
        if origin is None:
            return self.scheme == NULL_ORIGIN
        return (
            self.scheme == origin.scheme
            and host_allowed(origin.host, (self.host,))
            and (self.any_port or self.port == origin.port)
        )


def parse_origin_pattern(text: str) -> OriginPattern:
    """Return a pattern of ``server.cors_origins``: an exact origin (`https://app.example`), one
    with any port (`http://localhost:*`), all names below one (`https://*.example.com`), a whole
    scheme (`app://*`), `null`, or `*`. Raises ``ValueError`` with what is wrong with it."""
    pattern = text.strip().lower()
    if pattern in (ANY, NULL_ORIGIN):
        return OriginPattern(pattern)
    found = _PATTERN.fullmatch(pattern)
    if found is None:
        reason = "without a path and without a slash at its end" if "://" in pattern else ""
        raise ValueError(
            "is not an origin"
            + (f": write it {reason}" if reason else "")
            + ". Examples: https://app.example, http://localhost:*, app://*, *"
        )
    scheme, rest = found.groups()
    if rest == ANY:
        return OriginPattern(scheme, ANY, any_port=True)
    any_port = rest.endswith(":*")
    rest = rest.removesuffix(":*")
    below = rest.startswith("*.")
    if not rest and scheme not in _WEB_PORTS:
        return OriginPattern(scheme)
    authority = parse_authority(rest.removeprefix("*."))
    if authority is None:
        raise ValueError(
            "has no host that can be one: write https://app.example, http://localhost:*, "
            "https://*.example.com, app://* or *"
        )
    port = None if authority.port == _WEB_PORTS.get(scheme) else authority.port
    return OriginPattern(scheme, ("*." if below else "") + authority.host, port, any_port)
