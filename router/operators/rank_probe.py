"""The route by which a paired machine measures the way to this one, as ranks would use it: straight
from one to the other, on a port that is free."""

import asyncio
import contextlib
import time
from typing import Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.host.lasting import begin
from lmx.protocol.host.same_model import versions
from lmx.router.http.responses import Answer, json_value
from lmx.router.operators.ranks import machine_key

PROBE: Final = web.AppKey("rank_probe", asyncio.Semaphore)
"""Taken while a port is open: there is one at a time."""

PROBE_BYTES: Final = 16 * 1024**2
"""How much is sent for ``b``. Every other byte is sent back."""

_OPEN_S: Final = 10.0
_PIECE: Final = bytes(256 * 1024)


class RankProbeAnswer(Answer):
    """The answer of POST /admin/ranks/probe."""

    port: int
    """It is open until the machine that asked has measured, for ten seconds at most."""
    versions: dict[str, str]
    """What computes models here, by package."""
    time_s: float
    """What this machine's clock shows, in Unix time."""


async def probe_way(request: web.Request) -> web.Response:
    """Open a port for a moment, on the address by which the machine reaches this one."""
    machine_key(request)
    busy = request.app[PROBE]
    if busy.locked():
        raise RequestError(ErrorCode.RATE_LIMIT_EXCEEDED, "Another machine measures: try again.")
    assert request.transport is not None
    own, theirs = request.transport.get_extra_info("sockname"), request.remote
    await busy.acquire()
    measured = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if writer.get_extra_info("peername")[0] == theirs:
                await _answer(reader, writer)
                measured.set()
        except OSError:
            pass  # Who measures has what there was.
        finally:
            writer.transport.abort()

    try:
        server = await asyncio.start_server(answer, own[0], 0)
    except (OSError, TypeError) as error:
        busy.release()
        raise RequestError(
            ErrorCode.UNSUPPORTED_VALUE, f"No port can be opened for it here ({error})."
        ) from error
    except BaseException:  # The client has disconnected.
        busy.release()
        raise

    async def close() -> None:
        try:
            async with asyncio.timeout(_OPEN_S):
                await measured.wait()
        except TimeoutError:
            pass
        finally:
            server.close()
            busy.release()

    begin(close(), "the end of a measurement")
    port = server.sockets[0].getsockname()[1]
    found = await asyncio.to_thread(versions)
    return json_value(RankProbeAnswer(port=port, versions=found, time_s=time.time()))


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer for ten seconds at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_OPEN_S):
            await _echo(reader, writer)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while byte := await reader.read(1):
        if byte == b"b":
            for _ in range(PROBE_BYTES // len(_PIECE)):
                writer.write(_PIECE)
                await writer.drain()
        else:
            writer.write(byte)
            await writer.drain()
