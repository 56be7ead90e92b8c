"""The bytes of a file that a request names: they are its own, whatever becomes of the file."""

import asyncio
import contextlib
import os
from pathlib import Path

from lmx.protocol.errors import ErrorCode, LmxError


class StoredBytes:
    """An open file, which is read once, as a whole. Its descriptor is closed then, or with the last
    reference to this."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Raises ``FileNotFoundError``."""
        self.size_bytes = size_bytes
        self._content: bytes | None = None
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # It was never opened.
            self._close()

    def head(self, size_bytes: int) -> bytes:
        """Return the first bytes. Only before :meth:`read`."""
        return os.pread(self._descriptor, size_bytes, 0)

    async def read(self) -> bytes:
        """Return all bytes, the same object each time. Raises :class:`LmxError` if the disk does
        not give them."""
        if self._content is None:
            self._content = await asyncio.to_thread(self._read)
        return self._content

    def _close(self) -> None:
        # Nobody else closes it: a thread may still be reading for a request that has ended.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _read(self) -> bytes:
        with os.fdopen(self._descriptor, "rb", closefd=False) as file:
            content = file.read(self.size_bytes + 1)
        self._close()
        if len(content) != self.size_bytes:
            raise LmxError(
                ErrorCode.FILES_UNAVAILABLE,
                f"A file should have {self.size_bytes} bytes, and has {len(content)} on the disk.",
            )
        return content
