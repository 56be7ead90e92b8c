"""TLS on the port where HTTP is answered, for peers that were paired: they believe this machine by
its certificate alone. A connection whose first byte is one of TLS gets it, any other one is plain;
so no other port has to be known, opened or handed over.
"""

import asyncio
import os
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from lmx.protocol.host.lasting import begin

_HANDSHAKE: Final = 0x16
"""The first byte of TLS. HTTP begins with a letter."""

_HANDSHAKE_S: Final = 10

_log = structlog.get_logger()


class OwnCertificate:
    """Reads the certificate of this machine, which is made when it is paired for the first time,
    and again when its file has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._context: ssl.SSLContext | None = None

    async def context(self) -> ssl.SSLContext | None:
        """Return what a connection needs to show it; None if there is none that can be read."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> ssl.SSLContext | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116
            seen = found.st_ino, found.st_mtime_ns, found.st_size
            if seen != self._seen:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.set_alpn_protocols(["http/1.1"])
                context.load_cert_chain(self._path)
                self._context, self._seen = context, seen
        except FileNotFoundError:
            self._context = self._seen = None
        except OSError as error:  # An SSLError is one.
            _log.warning("tls.certificate_unreadable", path=str(self._path), error=str(error))
            self._context = self._seen = None
        return self._context


class FirstByte(asyncio.Protocol):
    """Has a connection until its first bytes have come, and then leaves it to the server's own
    protocol, with TLS between them if these bytes are TLS. Until then, and for the time of a
    handshake, a protocol of the server counts it, and closes it when the server ends."""

    def __init__(self, make: Callable[[], web.RequestHandler], certificate: OwnCertificate) -> None:
        self._make = make
        self._certificate = certificate
        self._plain = make()
        self._transport: asyncio.Transport | None = None
        self._work: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._plain.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if data[0] == _HANDSHAKE:
            self._transport.pause_reading()
            self._work = begin(self._secured(self._transport, data), "a TLS handshake")
            return
        self._transport.set_protocol(self._plain)
        self._plain.data_received(data)

    def eof_received(self) -> None:
        self._plain.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._plain.connection_lost(exc)

    async def _secured(self, transport: asyncio.Transport, data: bytes) -> None:
        context = await self._certificate.context()
        if transport.is_closing():
            return
        if context is None:
            transport.set_protocol(self._plain)
            self._plain.data_received(data)
            transport.resume_reading()
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        secured = SSLProtocol(
            loop,
            self._make(),
            context,
            done,
            server_side=True,
            ssl_handshake_timeout=_HANDSHAKE_S,
        )
        transport.set_protocol(secured)
        secured.connection_made(transport)
        while data:
            room = secured.get_buffer(len(data))
            size = min(len(room), len(data))
            room[:size] = data[:size]
            secured.buffer_updated(size)
            data = data[size:]
        transport.resume_reading()
        try:
            await done
        except OSError as error:
            _log.debug("tls.handshake_failed", error=str(error))
        finally:
            # It would close the transport, which is another protocol's now.
            self._plain.transport = None
            self._plain.connection_lost(None)
