"""Makes bytes of the images, sounds and videos of a request: it fetches, decodes, and detects what
they are."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.messages.specs import MediaLimits
from lmx.protocol.states import MediaForm, MediaKind
from lmx.router.byte_budget import ByteBudget, ByteShare
from lmx.router.event_loop import yield_to_loop
from lmx.router.media.fetch import Fetcher
from lmx.router.media.inline import decoded, too_large
from lmx.router.media.sniff import detected_form
from lmx.router.media.source import (
    HeldFile,
    HeldMedia,
    MediaSource,
    PartSource,
    is_url,
)

_AT_A_TIME: Final = 4
"""How many media of one request are fetched at a time."""

_PIECE_BYTES: Final = 2**20
"""How much is hashed at a time, a millisecond's work or two."""


class MediaReader:
    """Reads the media of all requests, within the limits of the configuration."""

    def __init__(self, limits: MediaLimits, fetcher: Fetcher) -> None:
        self._limits = limits
        self._fetcher = fetcher
        self._budget = ByteBudget(
            limits.max_held_bytes, "images, sounds and videos of requests", "media.max_held_bytes"
        )

    @property
    def held_bytes(self) -> int:
        """How many bytes of media the router holds."""
        return self._budget.held_bytes

    def check_number(self, sources: Sequence[PartSource]) -> None:
        """Raise :class:`RequestError` for too many media and files."""
        most = self._limits.max_items
        if len(sources) > most:
            param = sources[most].param
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"`{param}` is one too many: a request may have {most} images, sounds, videos and "
                f"files (media.max_items), and has {len(sources)}.",
                param=param,
            )

    def check(self, sources: Sequence[MediaSource]) -> None:
        """Raise :class:`RequestError` for what is wrong before anything is fetched: too many media,
        and a URL of a foreign scheme."""
        self.check_number(sources)
        for source in sources:
            is_url(source)

    @asynccontextmanager
    async def read(
        self, sources: Sequence[MediaSource], owner: str = ""
    ) -> AsyncIterator[HeldMedia]:
        """Hold the media of one request, which is that of ``owner``, within the block. What of them
        stands in the request itself is held twice, and counted twice: as text, for another attempt,
        and as bytes.

        Leaving it while they are read ends what is under way. Raises :class:`RequestError` that
        names the part, and QUEUE_FULL.
        """
        with self._budget.share() as share:
            share.grow(sum(len(source.text) for source in sources))
            # This frame lives as long as the answer: any name in it would keep the bytes.
            yield await self._all(sources, share, owner)

    @asynccontextmanager
    async def hold(self, content: bytes, kind: MediaKind, param: str) -> AsyncIterator[HeldMedia]:
        """Hold one item within the block whose bytes came with the request itself, as a file of a
        form. Raises :class:`RequestError` that names ``param``, and QUEUE_FULL."""
        with self._budget.share() as share:
            share.grow(len(content))
            form = detected_form(content, kind, param)
            digest = await _sha256(content)
            item = MediaItem(kind, form, param, len(content), digest)
            yield HeldMedia((item,), (content,), share)

    async def _all(self, sources: Sequence[MediaSource], share: ByteShare, owner: str) -> HeldMedia:
        turns = asyncio.Semaphore(_AT_A_TIME)
        tasks = [asyncio.create_task(self._one(source, share, turns, owner)) for source in sources]
        try:
            read = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            # A share may not grow after it was given back.
            await asyncio.gather(*tasks, return_exceptions=True)
        return HeldMedia(tuple(item for item, _ in read), tuple(blob for _, blob in read), share)

    async def _one(
        self, source: MediaSource, share: ByteShare, turns: asyncio.Semaphore, owner: str
    ) -> tuple[MediaItem, bytes]:
        async with turns:
            if source.file is not None:
                content = await self._of_file(source.file, source.param, share)
            elif is_url(source):
                content = await self._fetcher.fetch(source.text, source.param, share, owner)
            else:
                content = await self._decode(source, share)
            form = detected_form(content, source.kind, source.param)
            digest = await _sha256(content)
        return _item(source, form, content, digest), content

    async def _of_file(self, file: HeldFile, param: str, share: ByteShare) -> bytes:
        if file.size_bytes > self._limits.max_item_bytes:
            raise too_large(param, self._limits.max_item_bytes)
        share.grow(file.size_bytes)
        return await file.read()

    async def _decode(self, source: MediaSource, share: ByteShare) -> bytes:
        pieces: list[bytes] = []
        for piece in decoded(source.text, source.param, self._limits.max_item_bytes):
            share.grow(len(piece))
            pieces.append(piece)
            await yield_to_loop()
        return b"".join(pieces)


async def _sha256(content: bytes) -> bytes:
    digest = hashlib.sha256()
    view = memoryview(content)
    for begin in range(0, len(content), _PIECE_BYTES):
        digest.update(view[begin : begin + _PIECE_BYTES])
        await yield_to_loop()
    return digest.digest()


def _item(source: MediaSource, form: MediaForm, content: bytes, digest: bytes) -> MediaItem:
    return MediaItem(
        source.kind,
        form,
        source.param,
        len(content),
        digest,
        source.detail,
        source.fps,
        source.min_pixels,
        source.max_pixels,
        source.max_frames,
        source.use_audio_in_video,
    )
