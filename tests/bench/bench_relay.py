"""What a token costs in router and worker, without a model: processor time, not wall time.

The hot path is ``worker/scheduling/batch.py`` to ``worker/service/stream.py`` in the worker, and
``router/workers/link.py`` to ``router/http/sse.py`` in the router. ``make bench-relay`` measures
this checkout; ``AGAINST=FOLDER``, another checkout with a ``.venv`` of its own, is measured in
turns with it.

At 100 steps a second every token is a delta, and every delta a write. At full speed the worker
makes tokens faster than the router passes them on: it joins those for which it has no credit, so a
token costs less there, and how much less is chance.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import aiohttp
import psutil

ROOT = Path(__file__).resolve().parents[2]
TURNS = 5
_ONE = "--one"
_EVENT = b"data: "


class Case(NamedTuple):
    """A load: so many answers at once, of so many tokens each."""

    name: str
    streams: int
    tokens: int
    step_s: float
    path: str = "/chat/completions"


CASES = (
    Case("32 streams, 100 steps/s", 32, 400, 0.01),
    Case("64 streams, 100 steps/s", 64, 400, 0.01),
    Case("64 messages, 100 steps/s", 64, 400, 0.01, "/messages"),
    Case("32 streams, full speed", 32, 3000, 0.0),
)


def main() -> None:
    """Print processor time for each token, and how much of it a second passes on: medians of
    turns."""
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
            print(f"{checkout.name:12} {name:58} {middle:8.1f} ({least} to {most})")


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
    rows = max(case.streams for case in CASES)
    model = scripted("m", max_rows=rows, options={"context_length": 8192})
    with rig({"models": [model]}) as lmx:
        lmx.wait_state("m", "ready")
        status = lmx.status()
        processes = {
            "router": psutil.Process(status["router"]["pid"]),
            "worker": psutil.Process(lmx.worker("m")["pid"]),
        }
        for case in CASES:
            before = {part: _cpu_s(process) for part, process in processes.items()}
            async with aiohttp.ClientSession() as session:
                events = await asyncio.gather(
                    *(_stream(session, lmx.url, case) for _ in range(case.streams))
                )
            tokens = case.streams * case.tokens
            for part, process in processes.items():
                took_s = _cpu_s(process) - before[part]
                figures[f"{case.name}: {part}, us a token"] = round(took_s / tokens * 1e6, 2)
                if part == "router":
                    figures[f"{case.name}: router, events a CPU second"] = round(
                        sum(events) / took_s
                    )
    return figures


async def _stream(session: aiohttp.ClientSession, url: str, case: Case) -> int:
    """Return how many events the answer had."""
    said = json.dumps({"tokens": case.tokens, "step_s": case.step_s})
    messages = [{"role": "user", "content": said}]
    body = {"model": "m", "stream": True, "max_tokens": case.tokens + 1, "messages": messages}
    events, end = 0, b""
    async with session.post(url + case.path, json=body) as answer:
        answer.raise_for_status()
        async for part in answer.content.iter_any():
            part = end + part
            events += part.count(_EVENT)
            end = part[1 - len(_EVENT) :]
    return events


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
