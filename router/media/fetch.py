"""Fetches what the URLs of requests lead to, from servers that nobody trusts.

No proxy of the environment, no cookie, no user name or password, no compressed content: a request
has a Host, and that is all that the other side learns. Redirects are followed here and not by the
HTTP library, so that each hop is checked as the first URL was.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import aiohttp
import structlog
from yarl import URL

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.protocol.messages.specs import MediaLimits
from lmx.router.authorities import Authorities
from lmx.router.byte_budget import ByteShare
from lmx.router.media.addresses import AddressRule, Network
from lmx.router.media.fair_semaphore import FairSemaphore
from lmx.router.media.inline import too_large
from lmx.router.media.resolver import (
    LOOKUP_OWNER,
    AddressRefusedError,
    CheckedResolver,
    Lookup,
    SystemLookup,
    interface_networks,
)

MOST_REDIRECTS: Final = 5

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_SCHEMES: Final = frozenset({"http", "https"})
_MOST_URL: Final = 8192
_PLAIN: Final = frozenset({"", "identity"})
_MOST_HEADER_BYTES: Final = 16 * 1024

_log = structlog.get_logger()


class Fetcher:
    """Fetches for all requests, a few at a time. It belongs to one event loop."""

    def __init__(
        self,
        limits: MediaLimits,
        user_agent: str,
        lookup: Lookup | None = None,
        own_networks: Callable[[], Sequence[Network]] = interface_networks,
    ) -> None:
        self._limits = limits
        self._user_agent = user_agent
        self._resolver = CheckedResolver(
            AddressRule(limits.allowed_networks), lookup or SystemLookup(), own_networks
        )
        self._slots = FairSemaphore(limits.max_fetches)
        self._session: aiohttp.ClientSession | None = None
        self._authorities = Authorities()

    async def fetch(self, url: str, param: str, share: ByteShare, owner: str = "") -> bytes:
        """Return what a URL leads to. ``share`` grows with each piece that comes. ``owner`` names
        the client whose turn it is.

        Raises :class:`RequestError` that names ``param``: MEDIA_NOT_FETCHED, MEDIA_TOO_LARGE or
        MEDIA_TIMEOUT. Raises QUEUE_FULL if the router holds too many media.
        """
        total_s = self._limits.total_timeout_s
        LOOKUP_OWNER.set(owner)
        try:
            async with asyncio.timeout(total_s), self._slots.hold(owner):
                return await self._follow(url, param, share)
        except aiohttp.ConnectionTimeoutError as error:
            raise _late(param, f"was not connected in {self._limits.connect_timeout_s:g} s") from (
                error
            )
        except aiohttp.SocketTimeoutError as error:
            raise _late(param, f"sent nothing for {self._limits.read_timeout_s:g} s") from error
        except TimeoutError as error:
            raise _late(param, f"did not send all of it in {total_s:g} s") from error
        except AddressRefusedError as error:
            raise _refused(
                param,
                f"leads to {error}, which has no address that may be asked: only public addresses "
                "are, and those in media.allowed_networks",
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            _log.info("media.fetch_failed", param=param, error=repr(error)[:200])
            raise _refused(param, f"could not be fetched: {_in_words(error)}") from error

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def _follow(self, text: str, param: str, share: ByteShare) -> bytes:
        url = _checked(text, None, param)
        for _ in range(MOST_REDIRECTS + 1):
            async with self._get(url) as response:
                if response.status not in _REDIRECTS:
                    return await self._content(response, param, share)
                url = _checked(response.headers.get("Location", ""), url, param)
        raise _refused(param, f"redirects more than {MOST_REDIRECTS} times")

    @asynccontextmanager
    async def _get(self, url: URL) -> AsyncIterator[aiohttp.ClientResponse]:
        assert url.host is not None
        self._resolver.check_literal(url.host)
        async with AsyncExitStack() as opened:
            response = await opened.enter_async_context(
                (await self._open_session()).get(url, allow_redirects=False)
            )
            # What was not read is not wanted: the connection is closed and not drained.
            opened.callback(response.close)
            yield response

    async def _content(
        self, response: aiohttp.ClientResponse, param: str, share: ByteShare
    ) -> bytes:
        if response.status != 200:
            raise _refused(param, f"could not be fetched: its server answered {response.status}")
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in _PLAIN:
            raise _refused(param, f"comes compressed ({encoding[:40]!r}), which is not taken")
        most_bytes = self._limits.max_item_bytes
        if response.content_length is not None and response.content_length > most_bytes:
            raise too_large(param, most_bytes)
        pieces: list[bytes] = []
        size_bytes = 0
        async for piece in response.content.iter_any():
            size_bytes += len(piece)
            if size_bytes > most_bytes:
                raise too_large(param, most_bytes)
            share.grow(len(piece))
            pieces.append(piece)
        return b"".join(pieces)

    async def _open_session(self) -> aiohttp.ClientSession:
        await self._authorities.load()
        if self._session is None:
            limits = self._limits
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=self._resolver,
                    ssl=self._authorities.context,
                    use_dns_cache=False,
                    force_close=True,
                    limit=0,
                ),
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    connect=limits.connect_timeout_s,
                    sock_connect=limits.connect_timeout_s,
                    sock_read=limits.read_timeout_s,
                ),
                headers={"User-Agent": self._user_agent, "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                max_line_size=_MOST_HEADER_BYTES,
                max_field_size=_MOST_HEADER_BYTES,
            )
        return self._session


def _checked(text: str, base: URL | None, param: str) -> URL:
    """Return the URL of a request (``base`` is None), or of a redirect that ``base`` gave. Raises
    :class:`RequestError` if it may not be asked, and ``ValueError`` if it is no URL."""
    if len(text) > _MOST_URL:
        raise _refused(param, f"is or leads to a URL of more than {_MOST_URL} characters")
    url = URL(text) if base is None else base.join(URL(text))
    which = "is" if base is None else "redirects to"
    if url.scheme not in _SCHEMES:
        raise _refused(param, f"{which} a URL of the scheme {url.scheme[:40]!r}, not http or https")
    if not url.host:
        raise _refused(param, f"{which} a URL without a host")
    if url.user is not None or url.password is not None:
        raise _refused(param, f"{which} a URL with a user name or a password, which are not sent")
    return url.with_fragment(None)


def _in_words(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "its host has no address"
        case aiohttp.ClientSSLError():
            return "the certificate of its server is not valid"
        case aiohttp.ClientConnectorError():
            return "its server can't be reached"
        case aiohttp.InvalidURL() | ValueError():
            return "it is no URL"
        case _:
            return "its server broke off, or does not speak HTTP"


def _refused(param: str, problem: str) -> RequestError:
    return RequestError(ErrorCode.MEDIA_NOT_FETCHED, f"`{param}` {problem}.", param=param)


def _late(param: str, problem: str) -> LmxError:
    return RequestError(
        ErrorCode.MEDIA_TIMEOUT,
        f"`{param}` could not be fetched: its server {problem}. Try again, or send the content "
        "itself.",
        param=param,
    )
