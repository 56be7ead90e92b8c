"""A network between processes of a test that can be cut: its connections stay open, and nothing
comes through any more, not even their ends."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HOOK: Final = Path(__file__).parent / "between_ranks"
_PIECE_BYTES: Final = 1 << 16


class CutNetwork:
    """Passes connections on. Its own thread runs it; :meth:`cut` and :meth:`heal` are for any."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._whole = asyncio.Event()
        self._whole.set()
        self.address = ""

    @property
    def variables(self) -> dict[str, str]:
        """The environment of an lmx whose ranks use it."""
        return {"NETWORK_OF_RANKS": self.address, "PYTHONPATH": str(HOOK)}

    def cut(self) -> None:
        """Let nothing through, of what is connected and of what will be."""
        self._loop.call_soon_threadsafe(self._whole.clear)

    def heal(self) -> None:
        """Let everything through again."""
        self._loop.call_soon_threadsafe(self._whole.set)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run it."""
        opened = threading.Event()
        thread = threading.Thread(target=self._run, args=(opened,), daemon=True)
        thread.start()
        assert opened.wait(180)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(60)

    def _run(self, opened: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._name, "127.0.0.1", 0))
        self._servers.append(server)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        opened.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    async def _name(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer with the port that leads to an address."""
        host, _, port = (await reader.readline()).decode().strip().rpartition(":")

        async def enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._pass(host, int(port), reader, writer)

        server = await asyncio.start_server(enter, "127.0.0.1", 0)
        self._servers.append(server)
        writer.write(f"{server.sockets[0].getsockname()[1]}\n".encode())
        await writer.drain()
        writer.close()

    async def _pass(
        self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        end_s = time.monotonic() + 60
        while True:
            await self._whole.wait()
            try:
                there = await asyncio.open_connection(host, port)
                break
            except OSError:
                # Whoever listens there may not have begun.
                if time.monotonic() > end_s:
                    writer.close()
                    return
                await asyncio.sleep(0.02)
        await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE_BYTES):
                await self._whole.wait()
                writer.write(piece)
                await writer.drain()
        await self._whole.wait()
        writer.close()
