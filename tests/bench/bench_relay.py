"""What a token costs in router and worker, without a model: processor time, not wall time.

The hot path is ``worker/scheduling/batch.py`` to ``worker/service/stream.py`` in the worker, and
``router/workers/stream.py`` to ``router/http/sse.py`` in the router. ``make bench-relay`` measures
this checkout; ``AGAINST=FOLDER``, another checkout with a ``.venv`` of its own, is measured in
turns with it.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
from pathlib import Path

import aiohttp
import psutil

ROOT = Path(__file__).resolve().parents[2]
STREAMS = 32
TOKENS = 400
TURNS = 5
_ONE = "--one"


def main() -> None:
    """Print microseconds of processor time for each token, medians of turns."""
    if sys.argv[1:2] == [_ONE]:
        print(json.dumps(asyncio.run(_measure(Path(sys.argv[2])))))
        return
    checkouts = [ROOT, *map(Path, sys.argv[1:])]
    found: dict[Path, list[dict[str, float]]] = {checkout: [] for checkout in checkouts}
    for _ in range(TURNS):
        for checkout in checkouts:
            found[checkout].append(_one(checkout.resolve()))
    for checkout, turns in found.items():
        for name in turns[0]:
            values = [turn[name] for turn in turns]
            middle, least, most = statistics.median(values), min(values), max(values)
            print(f"{checkout.name:12} {name:28} {middle:6.1f} us a token ({least} to {most})")


def _one(checkout: Path) -> dict[str, float]:
    python = checkout / ".venv" / "bin" / "python"
    done = subprocess.run(
        [python, __file__, _ONE, checkout], stdout=subprocess.PIPE, text=True, check=True
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


async def _measure(checkout: Path) -> dict[str, float]:
    # The rig is that of the checkout which is measured: it knows how to start its lmx.
    support = checkout / "tests" / "support"
    sys.path[:0] = [str(support), *map(str, support.iterdir())]
    from rig import rig, scripted

    figures: dict[str, float] = {}
    with rig(
        {"models": [scripted("m", max_rows=STREAMS, options={"context_length": 8192})]}
    ) as lmx:
        lmx.wait_state("m", "ready")
        status = lmx.status()
        processes = {
            "router": psutil.Process(status["router"]["pid"]),
            "worker": psutil.Process(lmx.worker("m")["pid"]),
        }
        for name, step_s in (("full speed", 0.0), ("100 steps a second", 0.01)):
            before = {part: _cpu_s(process) for part, process in processes.items()}
            async with aiohttp.ClientSession() as session:
                url = f"{lmx.url}/chat/completions"
                await asyncio.gather(*(_stream(session, url, step_s) for _ in range(STREAMS)))
            for part, process in processes.items():
                took_s = _cpu_s(process) - before[part]
                figures[f"{part}, {name}"] = round(took_s / (STREAMS * TOKENS) * 1e6, 2)
    return figures


async def _stream(session: aiohttp.ClientSession, url: str, step_s: float) -> None:
    said = json.dumps({"tokens": TOKENS, "step_s": step_s})
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": said}]}
    async with session.post(url, json=body) as answer:
        answer.raise_for_status()
        async for _ in answer.content.iter_chunked(1 << 16):
            pass


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
