"""Which names lmx answers under: the check that keeps web pages out by DNS rebinding.

A page of ``evil.example`` whose name is made to point at this machine is of one origin with lmx in
the eyes of its browser; what gives it away is the name in its requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.specs import RouterSpec
from lmx.protocol.web_origins import Authority, host_allowed, parse_authority
from lmx.router.machine_names import machine_names

_READ_AGAIN_S: Final = 10.0
"""A machine's name changes with its network. Looked up again for names that are refused alone."""

_SHOWN: Final = 100
"""Characters of a name that an error repeats."""


class HostCheck:
    """Judges the Host of requests. Allowed are addresses, ``localhost`` and what is below it, the
    machine's names, the name that lmx listens on, and ``allowed_hosts``."""

    def __init__(
        self, spec: RouterSpec, names: Callable[[], frozenset[str]] = machine_names
    ) -> None:
        self._patterns = (*spec.allowed_hosts, "localhost", "*.localhost", spec.host.lower())
        self._read_names = names
        self._names = names()
        self._read_at_s = time.monotonic()

    def check(self, request: web.Request) -> Authority | None:
        """Return the host that the request names, None for none (HTTP/1.0, no browser).

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
