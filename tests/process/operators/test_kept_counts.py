"""What was counted outlives the router that counted it, also one that was killed."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.rigs.rig import Rig, ask, rig, scripted, wait_until

pytestmark = pytest.mark.long

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
def server() -> Iterator[Rig]:
    with rig({"models": [scripted("tiny")]}) as lmx:
        yield lmx


async def counted(lmx: Rig) -> Series:
    """Every counter of requests that the router has."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{lmx.url.removesuffix('/v1')}/metrics") as response,
    ):
        text = await response.text()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        if family.type in ("counter", "histogram") and family.name.startswith("lmx_")
        for sample in family.samples
    }


async def in_short(lmx: Rig) -> dict[str, float]:
    """The same as JSON."""
    answer: dict[str, float] = await shown(lmx, "metrics/json")
    return answer


async def used_as_counted(lmx: Rig) -> None:
    """The usage of all days, models and keys together is what was counted since the start."""
    counts, rows = await in_short(lmx), (await shown(lmx, "usage?days=2"))["rows"]
    names = ("requests", "errors", "prompt_tokens", "completion_tokens")
    assert {name: sum(row[name] for row in rows) for name in names} == {
        name: counts[f"total_{name}"] for name in names
    }
    assert {row["model"] for row in rows} == {"tiny", None}


async def shown(lmx: Rig, what: str) -> Any:
    """What an operator is shown."""
    headers = {"X-Admin-Key": (lmx.home / "admin.key").read_text().strip()}
    url = f"{lmx.url.removesuffix('/v1')}/admin/{what}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return await response.json()


async def some_requests(lmx: Rig) -> None:
    """A stream, an answer and a refusal."""
    bodies = [
        ask("tiny", {"tokens": 5}),
        ask("tiny", {"tokens": 3}, stream=False),
        ask("tiny", "hi", temperature=-1),
        ask("nobody", "hi"),
    ]
    async with aiohttp.ClientSession() as session:
        for body in bodies:
            async with session.post(f"{lmx.url}/chat/completions", json=body) as response:
                await response.read()


def fallen(before: Series, after: Series) -> Series:
    """What is less than it was."""
    left = {key: after.get(key, 0.0) for key in before}
    return {key: value for key, value in left.items() if value < before[key]}


async def test_nothing_falls_back_when_the_router_is_replaced_or_killed(server: Rig) -> None:
    began_s = time.time()
    await some_requests(server)
    before, short = await counted(server), await in_short(server)
    assert short["total_requests"] == 4
    await used_as_counted(server)
    assert before["lmx_requests_total", ()] == 4

    assert server.cli("restart", "--router").returncode == 0
    assert fallen(before, await counted(server)) == {}
    now = await in_short(server)
    assert {**now, "uptime_seconds": 0} == {**short, "uptime_seconds": 0}
    assert now["uptime_seconds"] > short["uptime_seconds"]
    await used_as_counted(server)

    await some_requests(server)
    before = await counted(server)
    assert before["lmx_requests_total", ()] == 8
    wait_until(lambda: server.status()["router"]["requests_total"] >= 8, "a beat tells it")
    killed = server.status()["router"]["pid"]
    # What it has reported until then is not lost. Several reports fall into this time, in which
    # both processes answer again and again.
    for _ in range(5):
        await asyncio.sleep(1.0)
        await in_short(server)
        server.status()
    await used_as_counted(server)  # nor the usage, which a look at it writes
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: server.status()["router"]["pid"] not in (killed, None), "another router")
    server.wait_serving()
    assert fallen(before, await counted(server)) == {}
    assert (await in_short(server))["total_requests"] == 8
    await used_as_counted(server)
    assert server.status()["router"]["requests_total"] >= 8
    asked_s = time.time()
    assert (await in_short(server))["uptime_seconds"] > asked_s - began_s


async def test_nothing_falls_back_when_the_supervisor_is_killed_and_then_the_router_goes(
    server: Rig,
) -> None:
    await some_requests(server)
    # Those of workers' lives are the supervisor's own, which starts from 0, and so does a worker.
    own = ("lmx_model_", "lmx_worker_", "lmx_prefix_", "lmx_router_", "lmx_compute_")
    before = {key: n for key, n in (await counted(server)).items() if not key[0].startswith(own)}
    short = await in_short(server)
    assert server.supervisor is not None
    server.supervisor.kill()
    server.supervisor.wait()
    server.up()
    assert fallen(before, await counted(server)) == {}
    # It has heard what the routers before this one had, once this one has told it.
    router = server.status()["router"]["pid"]
    assert server.cli("restart", "--router").returncode == 0
    wait_until(lambda: server.status()["router"]["pid"] != router, "another router")
    end_s = time.monotonic() + 90.0
    while lost := fallen(before, await counted(server)):
        # The one before may report to it only after this one had its reply; the next reply has it.
        assert time.monotonic() < end_s, lost
        await asyncio.sleep(0.1)
    now = await in_short(server)
    assert now["total_requests"] == short["total_requests"]
    await used_as_counted(server)
    assert now["uptime_seconds"] > short["uptime_seconds"]
