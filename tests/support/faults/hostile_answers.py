"""What servers say that mean no good to whoever fetches from them, and addresses that nobody should
be led to."""

import asyncio
import gzip
from typing import Final

from lmx.protocol.errors import ErrorCode
from tests.support.faults.hostile_server import Answer, answer

NOT_PUBLIC: Final = (
    "http://127.0.0.2/", "http://[::1]/", "http://10.0.0.1/", "http://172.16.0.1/",
    "http://192.168.1.1/", "http://0.0.0.0/", "http://[::ffff:127.0.0.1]/", "http://[fe80::1]/",
    "http://[64:ff9b::7f00:1]/", "http://[2002:7f00:1::]/", "http://100.64.0.1/",
    "http://224.0.0.1/", "http://169.254.169.254/latest/", "http://[fd00:ec2::254]/latest/",
    "http://100.100.100.200/latest/", "http://168.63.129.16/metadata/",
)  # fmt: skip
"""This machine, its neighbours, and the keys that clouds give to their machines."""

OTHER_SPELLINGS: Final = (
    "http://2130706434/", "http://127.2/", "http://0x7f.0.0.2/", "http://0177.0.0.2/",
)  # fmt: skip
"""Of 127.0.0.2."""

NOT_TO_BE_ASKED: Final = (
    "file:///etc/passwd", "data:image/png;base64,AAAA", "ftp://a/", "gopher://a/", "javascript:1",
    "http://", "http://user:secret@127.0.0.1/", "//user@127.0.0.1/", "http://[::", "http://a:99999/",
    "http://a b/",
)  # fmt: skip
"""URLs that are none, or none that may be fetched."""


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(10_000))
        await writer.drain()


async def _dripping(writer: asyncio.StreamWriter, begin: bytes) -> None:
    writer.write(begin)
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def trickle(writer: asyncio.StreamWriter) -> None:
    await _dripping(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n")


async def trickling_head(writer: asyncio.StreamWriter) -> None:
    await _dripping(writer, b"HTTP/1.1 200 OK\r\nX: ")


async def endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X: " + b"y" * 1000 + b"\r\n")
        await writer.drain()


async def silence(writer: asyncio.StreamWriter) -> None:
    await writer.drain()
    await asyncio.Event().wait()


def chunked(*chunks: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in (*chunks, b""))


def bad_answers(most_bytes: int) -> dict[str, tuple[Answer, ErrorCode]]:
    """Return answers by name, each with the code of the refusal that follows; an item may have
    ``most_bytes``."""
    not_fetched = ErrorCode.MEDIA_NOT_FETCHED
    return {
        "endless": (endless, ErrorCode.MEDIA_TOO_LARGE),
        "announced too large": (
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (most_bytes + 1),
            ErrorCode.MEDIA_TOO_LARGE),
        "announced far too large": (
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999\r\n\r\n",
            ErrorCode.MEDIA_TOO_LARGE),
        "too large in chunks": (
            chunked(*[bytes(most_bytes // 10)] * 11), ErrorCode.MEDIA_TOO_LARGE),
        "trickle": (trickle, ErrorCode.MEDIA_TIMEOUT),
        "trickling head": (trickling_head, ErrorCode.MEDIA_TIMEOUT),
        "silence": (silence, ErrorCode.MEDIA_TIMEOUT),
        "endless head": (endless_head, not_fetched),
        "shorter than announced": (
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc", not_fetched),
        "a length that is none": (
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabc", not_fetched),
        "two lengths": (
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", not_fetched),
        "a broken chunk": (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc", not_fetched),
        "gzip bomb": (
            answer(gzip.compress(bytes(900_000)), "Content-Encoding: gzip"), not_fetched),
        "brotli": (answer(b"x", "Content-Encoding: br"), not_fetched),
        "not found": (answer(b"x", status="404 Not Found"), not_fetched),
        "a part": (answer(b"x", status="206 Partial Content"), not_fetched),
        "not modified": (answer(b"", status="304 Not Modified"), not_fetched),
        "an error": (answer(b"x", status="500 Error"), not_fetched),
        "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", not_fetched),
        "nothing": (b"", not_fetched),
    }  # fmt: skip
