"""What a hop costs: the same requests to a machine itself, through a peer by plain HTTP, and
through a paired one by TLS, by turns in one run. The first machine sends a stream's head before
its first token, a peer only with it: so whole answers of one token are compared. Also the processor
time of the routers in between.

    python -m tests.bench.bench_hop
"""

import asyncio
import json
import time
from statistics import quantiles
from typing import Any, Final, NamedTuple

import aiohttp
import psutil

from lmx.protocol.messages.pairing import OfferPairing
from tests.support.rigs.federated_homes import MODEL, federated_homes, know_all
from tests.support.rigs.rig import Rig, rig, scripted

REQUESTS: Final = 400
TOKENS: Final = 300
STREAMS: Final = 16


class Way(NamedTuple):
    name: str
    url: str
    model: str
    router: psutil.Process | None = None
    """That of the machine in between."""


def main() -> None:
    """Print the figures."""
    asyncio.run(_measured())


async def _measured() -> None:
    settings: dict[str, Any] = {"max_rows": STREAMS, "options": {"context_length": 200_000}}
    laptop_config = {"server": {"name": "laptop"}, "models": [scripted("of-laptop")]}
    with (
        federated_homes(("desk", "studio"), **settings) as rigs,
        rig(laptop_config) as laptop,
    ):
        desk, studio = rigs["desk"], rigs["studio"]
        offer = studio.ask(OfferPairing())
        address = studio.url.removesuffix("/v1").removeprefix("http://")
        laptop.run("pair", f"{offer.code}@{address}")
        name = f"{MODEL}@studio"
        async with aiohttp.ClientSession() as session:
            for one in (desk, studio):
                one.wait_state(MODEL, "ready")
            await know_all(session, desk, 1)
            await know_all(session, studio, 2)
            await know_all(session, laptop, 1)
            ways = (
                Way("direct", studio.url, MODEL),
                Way("plain peer", desk.url, name, _router(desk)),
                Way("TLS peer", laptop.url, name, _router(laptop)),
            )
            for prompt in (100, 100_000):
                await _requests(session, ways, prompt)
            for way in ways[1:]:
                await _tokens(session, way)
            router = _router(desk)
            idle = _cpu_s(router)
            await asyncio.sleep(10.0)
            print(f"the questions of one peer, both ways: {(_cpu_s(router) - idle) * 100:.1f} "
                  "ms of the processor a second (the router's beats among them)")  # fmt: skip


def _router(lmx: Rig) -> psutil.Process:
    return psutil.Process(lmx.status()["router"]["pid"])


async def _requests(session: aiohttp.ClientSession, ways: tuple[Way, ...], prompt: int) -> None:
    taken: dict[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(REQUESTS):
        for way in ways:
            body = _body(way, 1, "x" * prompt, step_s=0.0)
            began_s = time.perf_counter()
            async with session.post(f"{way.url}/chat/completions", json=body) as response:
                await response.read()
                taken[way.name].append((time.perf_counter() - began_s) * 1000)
                assert response.status == 200
    for name, values in taken.items():
        cuts = quantiles(values, n=100)
        print(f"{prompt:7} bytes, {name:10} p50 {cuts[49]:6.2f} ms   p99 {cuts[98]:6.2f} ms")


async def _tokens(session: aiohttp.ClientSession, way: Way) -> None:
    router = way.router
    assert router is not None

    async def stream() -> int:
        body = _body(way, TOKENS, "", step_s=0.01)
        async with session.post(f"{way.url}/chat/completions", json=body) as response:
            return (await response.read()).count(b"data: ")

    before_s = _cpu_s(router)
    events = sum(await asyncio.gather(*(stream() for _ in range(STREAMS))))
    spent_s = _cpu_s(router) - before_s
    spent_us = spent_s / events * 1e6
    print(f"{STREAMS} streams by a {way.name}: {spent_us:.1f} us of its router for an event")


def _body(way: Way, tokens: int, text: str, *, step_s: float) -> dict[str, Any]:
    said = json.dumps({"tokens": tokens, "step_s": step_s})
    messages = [{"role": "system", "content": text or "x"}, {"role": "user", "content": said}]
    return {"model": way.model, "stream": True, "messages": messages}


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
