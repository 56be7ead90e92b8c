"""Job records outlive the router that made them, and a job its router's replacement."""

import asyncio
import json
import os
import signal
from typing import Any

import aiohttp
import psutil
import pytest

from tests.support.rigs.rig import Rig, Stream, ask, http, rig, scripted, wait_until, whole

pytestmark = pytest.mark.long

CONFIG = {"models": [scripted("alpha")], "server": {"sync_timeout_s": 15.0, "capture_requests": 5}}


async def jobs(session: aiohttp.ClientSession, lmx: Rig, path: str = "") -> Any:
    async with session.get(f"{lmx.url}/jobs{path}") as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def respond(session: aiohttp.ClientSession, lmx: Rig, **fields: Any) -> tuple[int, Any]:
    asked = {"model": "alpha", "input": "Hello", **fields}
    async with session.post(f"{lmx.url}/responses", json=asked) as response:
        return response.status, await response.json()


async def operators(session: aiohttp.ClientSession, lmx: Rig, path: str) -> tuple[int, Any]:
    headers = {"X-Admin-Key": (lmx.home / "admin.key").read_text().strip()}
    origin = lmx.url.removesuffix("/v1")
    async with session.get(f"{origin}/admin/{path}", headers=headers) as response:
        return response.status, await response.json()


async def response_now(session: aiohttp.ClientSession, lmx: Rig, response_id: str) -> Any:
    async with session.get(f"{lmx.url}/responses/{response_id}") as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def job_that_ended(session: aiohttp.ClientSession, lmx: Rig, job_id: str) -> Any:
    async with asyncio.timeout(120):
        while (found := await jobs(session, lmx, f"/{job_id}"))["ended"] is None:
            await asyncio.sleep(0.05)
    return found


def another_router(lmx: Rig, before: int) -> None:
    """Wait until another router serves than the one before, whose end is seen a moment later."""
    wait_until(lambda: lmx.status()["router"]["pid"] not in (before, None), "another router")
    lmx.wait_serving()


async def test_jobs_outlive_a_killed_router_and_one_that_is_replaced() -> None:
    with rig(CONFIG) as lmx:
        lmx.wait_state("alpha", "ready")
        async with http() as session:
            status, answer = await whole(session, lmx.url, "alpha", {"tokens": 3})
            assert status == 200
            _, listed = await operators(session, lmx, "requests?ended=5")
            [ended] = listed["ended"]
            assert (ended["id"], ended["http_status"], ended["tokens"]) == (answer["id"], 200, 3)
            assert None not in ended["phases"].values(), "the worker's part is known too"
            captured = f"requests/{answer['id']}/capture"
            assert (await operators(session, lmx, captured))[1]["body"]["model"] == "alpha"
            running = Stream(session, lmx.url, ask("alpha", {"tokens": 3000, "step_s": 0.02}))
            await running.has_text(20)
            page = await jobs(session, lmx, "?state=running")
            assert len(page["data"]) == 1
            _, kept = await respond(session, lmx)
            endless = json.dumps({"tokens": 3000, "step_s": 0.02})
            _, begun = await respond(session, lmx, input=endless, background=True)
            # What is read has been written.
            assert (await response_now(session, lmx, begun["id"]))["status"] != "completed"

            router = lmx.status()["router"]["pid"]
            os.kill(router, signal.SIGKILL)
            await running.ended()
            await asyncio.to_thread(another_router, lmx, router)
            assert (await operators(session, lmx, captured))[0] == 404, "it was in memory alone"
            page = await jobs(session, lmx)
            states = {one["id"]: one["state"] for one in page["data"]}
            running_id = page["data"][2]["id"]
            assert states == {
                answer["id"]: "completed", running_id: "interrupted",
                kept["id"]: "completed", begun["id"]: "interrupted",
            }  # fmt: skip
            assert page["data"][2]["error"]["code"] == "job_interrupted"
            assert await response_now(session, lmx, kept["id"]) == kept
            lost = await response_now(session, lmx, begun["id"])
            assert (lost["status"], lost["error"]["type"]) == ("failed", "job_interrupted")
            status, later = await respond(session, lmx, previous_response_id=kept["id"])
            assert (status, later["usage"]["input_tokens"] > kept["usage"]["input_tokens"]) == (
                200, True,
            )  # fmt: skip
            assert (await jobs(session, lmx, f"/{answer['id']}"))["result"] == answer

            # A job that nobody waits for any more keeps the router that gives way.
            router = lmx.status()["router"]["pid"]
            enough = lmx.root / "enough"
            going_on = {"tokens": 3000, "step_s": 0.03, "until": str(enough)}
            status, error = await whole(session, lmx.url, "alpha", going_on)
            assert (status, error["code"]) == (504, "sync_timeout")
            restart = await asyncio.to_thread(lmx.cli, "restart", "--router")
            assert restart.returncode == 0, restart.stderr
            assert lmx.status()["router"]["pid"] != router
            seen = await jobs(session, lmx, f"/{error['job_id']}")
            assert (seen["state"], psutil.pid_exists(router)) == ("running", True)
            async with session.delete(f"{lmx.url}/jobs/{error['job_id']}") as response:
                assert response.status == 409
            enough.touch()
            ended = await job_that_ended(session, lmx, error["job_id"])
            assert ended["state"] == "completed"
            words = ended["result"]["choices"][0]["message"]["content"].split(" ")
            assert set(words) == {"word", ""} and len(words) > 20

            # And the one that is told to stop cuts off what does not end within the grace.
            status, error = await whole(session, lmx.url, "alpha", {"tokens": 3000, "step_s": 0.03})
            assert status == 504
            router = lmx.status()["router"]["pid"]
            os.kill(router, signal.SIGTERM)
            await asyncio.to_thread(wait_until, lambda: not psutil.pid_exists(router), "it is gone")
            await asyncio.to_thread(another_router, lmx, router)
            cut = await job_that_ended(session, lmx, error["job_id"])
            assert (cut["state"], cut["error"]["code"]) == ("interrupted", "shutting_down")
            assert cut["result"]["choices"][0]["message"]["content"].startswith("word word")
