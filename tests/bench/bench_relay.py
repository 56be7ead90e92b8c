"""What a token costs in router and worker, without a model: processor time, not wall time.

The hot path is ``worker/scheduling/batch.py`` to ``worker/service/stream.py`` in the worker, and
``router/workers/link.py`` to ``router/http/sse.py`` in the router. ``make bench-relay`` measures
this checkout; ``AGAINST=FOLDER``, another checkout with a ``.venv`` of its own, is measured in
turns with it.

At 100 steps a second every token is a delta, and every delta a write. At 500, the deltas of five
steps come in one message, and each stream has one write for it. At full speed the worker makes
tokens faster than the router passes them on: it joins those for which it has no credit, so a token
costs less there, and how much less is chance.
"""

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil

from tests.bench.rigs.checkouts import ROOT, asked, in_turns, measured_one, median_of, print_medians
from tests.bench.rigs.report import Section

TURNS = 5
_FIGURES = ("router, us a token", "worker, us a token", "router, events a CPU second")
_TEXT = (
    "Processor time of the router and of a worker whose engine computes nothing (`make "
    "bench-relay`; `AGAINST=` another checkout measures both in turns). At 100 steps a second each "
    "token is an event and a write of its own. At 500 steps a second the worker sends the tokens "
    "of five steps in one message, and they are one write. At full speed the worker makes more "
    "than the router passes on, and joins the text for which it has no credit. Of requests for one "
    "token, the figure of a token is what a request itself costs.\n\n"
    "Where the router's time goes, by py-spy at 64 streams: 40 % is the write to the client's "
    "socket, nearly all of it the kernel's. Reading the worker's message (msgpack, and a check of "
    "each field) takes 15 %, giving credit back 15 % (these are samples of time, and mostly a wait "
    "until zmq's thread is awake: eight times fewer such messages took 7 % off the processor "
    "time), the event's text and its chunk 15 %, keeping the answer and its times for the job 5 %, "
    "and the event loop, the receiving from zmq and the requests the rest.\n\n"
    "The limit of one event loop is the last column: so many events a second fill it. The floor is "
    "the kernel's: a stream is a connection, so each step has a write for each stream, at 7 us on "
    "this machine. uvloop was tried and is not used: it took 0 to 4 % off at 32 and 64 streams, "
    "and 10 % at one stream, where nothing is short of time. Next to the write, little of the "
    "loop's own work is left in a token's way.\n\n"
    "What the short way (`router/REQUEST.md`) brought, when it was made, at a load of 8 by other "
    "programs: 31.2, 26.6, 25.0 and 6.6 us a token in the router instead of 54.7, 47.3, 44.5 and "
    "11.0 (32 and 64 streams, 64 messages, full speed), and 31.2, 22.7, 21.5 and 16.7 instead of "
    "37.5, 28.5, 27.3 and 19.7 in the worker."
)
_EVENT = b"data: "


class Case(NamedTuple):
    """A load: so many answers at once, of so many tokens each."""

    name: str
    streams: int
    tokens: int
    step_s: float
    path: str = "/chat/completions"
    stream: bool = True
    """Whether the answers are streams; otherwise each is one event."""
    requests: int = 1
    """How many answers each client asks for, one after the other."""


CASES = (
    Case("32 streams, 100 steps/s", 32, 400, 0.01),
    Case("64 streams, 100 steps/s", 64, 400, 0.01),
    Case("64 messages, 100 steps/s", 64, 400, 0.01, "/messages"),
    Case("8 streams, 500 steps/s", 8, 1500, 0.002),
    Case("32 streams, full speed", 32, 3000, 0.0),
    Case("requests for 1 token, whole", 8, 1, 0.0, stream=False, requests=400),
    Case("requests for 1 token, streamed", 8, 1, 0.0, requests=400),
)


def measure(_model: Path) -> Section:
    """Measure this checkout; no model is needed."""
    turns = in_turns(__file__, [ROOT], TURNS)[ROOT]
    rows = [["load", *_FIGURES]]
    for case in CASES:
        names = [f"{case.name}: {figure}" for figure in _FIGURES]
        rows.append([case.name, *(f"{median_of(turns, name):.6g}" for name in names)])
        print(*rows[-1], flush=True)
    return Section("What a token costs between the engine and the client", _TEXT, rows)


def main() -> None:
    """Print processor time for each token, and how much of it a second passes on: medians of
    turns."""
    if measured_one(_measure):
        return
    print_medians(in_turns(__file__, asked(), TURNS), digits=1)


def _measure() -> dict[str, float]:
    return asyncio.run(_relayed())


async def _relayed() -> dict[str, float]:
    from tests.support.rigs.rig import rig, scripted

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
                try:
                    events = await asyncio.gather(
                        *(_client(session, lmx.url, case) for _ in range(case.streams))
                    )
                except aiohttp.ClientResponseError as missing:
                    if missing.status != HTTPStatus.NOT_FOUND:
                        raise
                    continue  # An older checkout has no such route.
            tokens = case.streams * case.requests * case.tokens
            router_s, worker_s = (
                _cpu_s(process) - before[part] for part, process in processes.items()
            )
            found = (router_s / tokens * 1e6, worker_s / tokens * 1e6, sum(events) / router_s)
            for figure, value in zip(_FIGURES, found, strict=True):
                figures[f"{case.name}: {figure}"] = round(value, 1)
    return figures


async def _client(session: aiohttp.ClientSession, url: str, case: Case) -> int:
    """Return how many events the answers had."""
    said = json.dumps({"tokens": case.tokens, "step_s": case.step_s})
    messages = [{"role": "user", "content": said}]
    body = {"model": "m", "max_tokens": case.tokens + 1, "messages": messages}
    if not case.stream:
        for _ in range(case.requests):
            async with session.post(url + case.path, json=body) as answer:
                answer.raise_for_status()
                await answer.read()
        return case.requests
    body["stream"] = True
    return sum([await _stream(session, url, case, body) for _ in range(case.requests)])


async def _stream(
    session: aiohttp.ClientSession, url: str, case: Case, body: Mapping[str, Any]
) -> int:
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
