"""What an open console costs the router: processor time, with answers under way and without.

The router's processor time in windows of some seconds, with no, one and fifty readers of GET
/admin/live, in turns, so that what else the machine does is the same for all of them. ``make
bench-console`` prints the medians.
"""

import asyncio
import json
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.bench.rigs.report import Section
from tests.support.rigs.rig import Rig, rig, scripted

TURNS = 3
WINDOW_S = 5.0
STREAMS = 50
STEP_S = 0.01
READERS = (0, 1, 50)
MODELS = (3, 500)

_TEXT = (
    "Processor time of the router in a second (`make bench-console`), with fifty answers of 100 "
    "tokens a second under way and without, by the number of open consoles (readers of "
    "`GET /admin/live`), in turns. Models: all that are configured; one of them is loaded."
)


def measure(_model: Path) -> Section:
    """Measure this checkout; no model is needed."""
    rows = [["models", "answers", "consoles", "router, ms of a second", "more, %"]]
    for models in MODELS:
        for streams, found in _measured(models).items():
            for readers, cpu_ms in found.items():
                more = 100 * (cpu_ms / found[0] - 1)
                rows.append(
                    [str(models), str(streams), str(readers), f"{cpu_ms:.1f}", f"{more:.1f}"]
                )
                print(*rows[-1], flush=True)
    return Section("What an open console costs the router", _TEXT, rows)


def _measured(models: int) -> dict[int, dict[int, float]]:
    """Return the router's processor time in milliseconds a second, by answers and consoles."""
    others = [scripted(f"org/model-{number}", preload=False) for number in range(models - 1)]
    loaded = scripted("m", max_rows=STREAMS, options={"context_length": 200_000})
    with rig({"models": [loaded, *others]}) as lmx:
        lmx.wait_state("m", "ready")
        return asyncio.run(_in_turns(lmx))


async def _in_turns(lmx: Rig) -> dict[int, dict[int, float]]:
    router = psutil.Process(lmx.status()["router"]["pid"])
    found = {0: await _turns(lmx, router)}
    async with _following(lmx) as follow:
        for _ in range(STREAMS):
            await follow(_answer)
        found[STREAMS] = await _turns(lmx, router)
    return found


async def _turns(lmx: Rig, router: psutil.Process) -> dict[int, float]:
    turns: dict[int, list[float]] = {readers: [] for readers in READERS}
    for _ in range(TURNS):
        for readers in READERS:
            async with _following(lmx) as follow:
                for _ in range(readers):
                    await follow(_console)
                await asyncio.sleep(1.5)  # the first, whole values
                before_s = _cpu_s(router)
                await asyncio.sleep(WINDOW_S)
                turns[readers].append(1000 * (_cpu_s(router) - before_s) / WINDOW_S)
    return {readers: statistics.median(values) for readers, values in turns.items()}


_Open = Callable[[aiohttp.ClientSession, Rig], Awaitable[aiohttp.ClientResponse]]


@asynccontextmanager
async def _following(lmx: Rig) -> AsyncIterator[Callable[[_Open], Awaitable[None]]]:
    """Read streams in the background for the duration of the block."""
    tasks: list[asyncio.Task[None]] = []
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def follow(begin: _Open) -> None:
            response = await begin(session, lmx)
            response.raise_for_status()
            tasks.append(asyncio.create_task(_read(response)))

        try:
            yield follow
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _read(response: aiohttp.ClientResponse) -> None:
    try:
        async for _ in response.content.iter_any():
            pass
    finally:
        response.close()


async def _answer(session: aiohttp.ClientSession, lmx: Rig) -> aiohttp.ClientResponse:
    said = json.dumps({"tokens": 150_000, "step_s": STEP_S})
    body: dict[str, Any] = {
        "model": "m", "stream": True, "max_tokens": 150_001,
        "messages": [{"role": "user", "content": said}],
    }  # fmt: skip
    return await session.post(f"{lmx.url}/chat/completions", json=body)


async def _console(session: aiohttp.ClientSession, lmx: Rig) -> aiohttp.ClientResponse:
    url = lmx.url.removesuffix("/v1") + "/admin/live"
    key = (lmx.home / "admin.key").read_text().strip()
    return await session.get(url, headers={"X-Admin-Key": key})


def _cpu_s(process: psutil.Process) -> float:
    tasks = Path(f"/proc/{process.pid}/task")
    if tasks.is_dir():
        # Nanoseconds; the processor times of a process count in hundredths of a second.
        return sum(int((one / "schedstat").read_text().split()[0]) for one in tasks.iterdir()) / 1e9
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    measure(Path())
