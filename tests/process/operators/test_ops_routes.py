"""Operators' routes over HTTP on a whole lmx: a kill beside a stream, logs and events as they
come, metrics while a worker hangs."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.references.metric_lint import problems
from tests.support.rigs.rig import Rig, Stream, ask, http, rig, scripted, whole

LONG = {"tokens": 2000, "step_s": 0.02}


@pytest.fixture(scope="module")
def lmx() -> Iterator[Rig]:
    models = [scripted("alpha"), scripted("be/ta", aliases=["b"])]
    # A worker that is stopped is not to be taken for hung before it was looked at.
    timing = {"beat_timeout_s": 600.0, "stall_timeout_s": 600.0}
    with rig({"models": models, "timing": timing}) as made:
        for model in ("alpha", "be/ta"):
            made.wait_state(model, "ready")
        yield made


def base(lmx: Rig) -> tuple[str, dict[str, str]]:
    """The address without /v1, and the header with the admin key."""
    key = (lmx.home / "admin.key").read_text().strip()
    return lmx.url.removesuffix("/v1"), {"X-Admin-Key": key}


async def follow(
    session: aiohttp.ClientSession, lmx: Rig, path: str, found: list[dict[str, Any]]
) -> None:
    """Collect the data of a stream's events until cancelled."""
    url, key = base(lmx)
    async with session.get(f"{url}{path}", headers=key) as response:
        assert response.status == 200
        async for line in response.content:
            if line.startswith(b"data: "):
                # One by one: others look at it meanwhile.
                found += [json.loads(line[6:])]


async def eventually(condition: Any, what: str, deadline_s: float = 90.0) -> Any:
    end_s = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.02)
    return value


async def scrape(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/metrics") as response:
        assert response.status == 200
        return await response.text()


def sample(text: str, name: str, **labels: str) -> float:
    (value,) = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return value


async def test_a_kill_by_http_beside_a_stream_is_seen_in_logs_and_events(lmx: Rig) -> None:
    url, key = base(lmx)
    lines: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    live: list[dict[str, Any]] = []
    async with http() as session:
        following = [
            asyncio.create_task(follow(session, lmx, "/admin/live?logs=b", live)),
            asyncio.create_task(follow(session, lmx, "/admin/logs/b?lines=1", lines)),
            asyncio.create_task(follow(session, lmx, "/admin/events?model=b&last=0", events)),
        ]
        await eventually(lambda: lines, "the log's last line")
        beside = Stream(session, lmx.url, ask("alpha", LONG))
        lost = Stream(session, lmx.url, ask("be/ta", LONG))
        await asyncio.gather(beside.has_text(5), lost.has_text(5))
        async with session.get(f"{url}/admin/workers", headers=key) as response:
            workers = {line["model"]: line for line in (await response.json())["workers"]}
        pid = workers["be/ta"]["pid"]
        assert (workers["alpha"]["state"], workers["alpha"]["requests_running"] <= 1) == (
            "ready",
            True,
        )
        before = len(beside.text)
        async with session.post(f"{url}/admin/workers/{pid}/kill", headers=key) as response:
            body = await response.json()
            assert response.status == 200, body
        assert (body["success"], body["model"], body["pid"]) == (True, "be/ta", pid)
        await lost.ended()
        assert [error["code"] for error in lost.errors] == ["worker_killed"]
        await beside.has_text(before + 20)
        names = await eventually(
            lambda: (found := [event["name"] for event in events]).count("worker.ready") and found,
            "the events of its end and its return",
        )
        assert "worker.exited" in names
        assert {event["model"] for event in events} == {"be/ta"}
        fresh = (await asyncio.to_thread(lmx.wait_state, "be/ta", "ready"))["pid"]
        assert fresh != pid

        def seen(words: Callable[[dict[str, Any]], Any]) -> bool:
            return any(words(each) for each in live)

        def shown(each: dict[str, Any]) -> bool:
            models = each.get("models", [])
            return isinstance(models, list) and any(
                one["pid"] == fresh and one["last_exit"]["memory"] for one in models
            )

        await eventually(lambda: seen(shown), "the model back in the console, with its memory")
        await eventually(lambda: seen(lambda one: one.get("name") == "worker.exited"), "its end")
        await eventually(lambda: seen(lambda one: str(fresh) in one.get("line", "")), "its log")
        await eventually(lambda: seen(lambda one: one.get("tokens_per_s", 0) > 0), "the speed")
        await eventually(
            lambda: [line for line in lines if f'"pid": {fresh}' in line["line"]],
            "the new worker's lines in the same log",
        )
        async with session.get(f"{url}/admin/workers", headers=key) as response:
            workers = {line["model"]: line for line in (await response.json())["workers"]}
        assert workers["be/ta"]["last_exit"]["cause"] == "killed"
        assert workers["be/ta"]["restarts"] == 1
        await beside.hang_up()
        # What the router and the supervisor log is there too, and no key in any of it.
        for process in ("router", "supervisor"):
            reported: list[dict[str, Any]] = []
            await follow(session, lmx, f"/admin/logs/{process}?lines=10000&follow=false", reported)
            assert reported
            assert key["X-Admin-Key"] not in str(reported)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


async def test_a_scrape_neither_waits_for_a_worker_that_hangs_nor_is_wrong(lmx: Rig) -> None:
    alpha = await asyncio.to_thread(lmx.wait_state, "alpha", "ready")
    url, _ = base(lmx)
    async with http() as session:
        status, _ = await whole(session, lmx.url, "be/ta", {"tokens": 3})
        assert status == 200
        before = await scrape(session, url)
        os.kill(alpha["pid"], signal.SIGSTOP)
        try:
            held = asyncio.create_task(whole(session, lmx.url, "alpha", {"tokens": 3}))
            async with asyncio.timeout(90):
                text = await scrape(session, url)
                # A supervisor on a busy machine may be too late for one.
                while sample(text, "lmx_supervisor_up") != 1:
                    text = await scrape(session, url)
            assert problems(text) == []
            name = "lmx_request_success_total"
            assert sample(text, "lmx_model_loaded", model="alpha") == 1
            assert sample(text, "lmx_model_loads_total", model="alpha") == 1
            assert sample(text, name, model="be/ta", finished_reason="stop") >= 1
            status, _ = await whole(session, lmx.url, "be/ta", {"tokens": 3})
            assert status == 200
            text = await scrape(session, url)
            assert sample(text, name, model="be/ta", finished_reason="stop") == 1 + sample(
                before, name, model="be/ta", finished_reason="stop"
            )
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(alpha["pid"], signal.SIGCONT)
        assert (await held)[0] == 200
        # The supervisor hangs: the scrape is what the router knows.
        assert lmx.supervisor is not None
        os.kill(lmx.supervisor.pid, signal.SIGSTOP)
        try:
            text = await scrape(session, url)
            assert sample(text, "lmx_supervisor_up") == 0
            assert sample(text, "lmx_model_loaded", model="alpha") == 1
            assert sample(text, name, model="be/ta", finished_reason="stop") >= 1
        finally:
            os.kill(lmx.supervisor.pid, signal.SIGCONT)
