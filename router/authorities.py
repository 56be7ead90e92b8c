"""Whom this process trusts over TLS. The certificates of all authorities of the machine take 25 to
50 ms to read, so that they are read when they are first needed."""

import asyncio
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_AUTHORITIES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class Authorities:
    """Belongs to one event loop. ``context`` checks the certificate and the name of a server, and
    refuses every one before :meth:`load`."""

    def __init__(self) -> None:
        self.context = ssl.create_default_context(capath=os.devnull)
        self.context.set_alpn_protocols(["http/1.1"])
        self._load: asyncio.Future[None] | None = None

    async def load(self) -> None:
        """Read the certificates, in a thread, once for all who wait: two threads that read into one
        context end the process. It must be awaited before a connection. Raises ``OSError`` if they
        can't be read; the next call tries again."""
        load = self._load
        if load is None:
            loop = asyncio.get_running_loop()
            load = self._load = loop.run_in_executor(None, _read, self.context)
        try:
            await asyncio.shield(load)
        except OSError:
            if self._load is load:
                self._load = None
            raise


def _read(context: ssl.SSLContext) -> None:
    """Let a context trust the authorities of the machine. Where its TLS library finds none, as that
    of python.org's Python on macOS does, they are those that the client of the hub trusts."""
    context.load_default_certs()
    if not _are_chosen():
        import certifi

        context.load_verify_locations(certifi.where())


def _are_chosen() -> bool:
    """Return whether somebody has chosen whom this machine trusts: a private authority whose file
    is missing, or can't be read, is not replaced by public ones."""
    if any(name in os.environ for name in _AUTHORITIES):
        return True
    paths = ssl.get_default_verify_paths()
    if paths.cafile is not None:
        return True
    try:
        return paths.capath is not None and any(Path(paths.capath).iterdir())
    except OSError:
        return True


@contextmanager
def without_authorities() -> Iterator[None]:
    """Let a TLS context that is made within the block trust no authority. aiohttp makes two when it
    is imported: who uses it gives its connector a context of :class:`Authorities`."""
    before = {name: os.environ.get(name) for name in _AUTHORITIES}
    os.environ.update(dict.fromkeys(_AUTHORITIES, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
