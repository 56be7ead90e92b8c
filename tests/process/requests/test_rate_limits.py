"""Two keys, one of them greedy: the other is served as if it were alone, and limits go on when the
configuration is read again and the router replaced."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.support.rigs.rig import Rig, ask, rig, scripted, wait_until

pytestmark = pytest.mark.long

PER_MINUTE = 4
GREEDY, MODEST = "greedy-key-0123456789", "modest-key-0123456789"
ONE_AT_A_TIME = scripted("one", max_rows=1, concurrency=1, max_queue=200)


def config(**security: Any) -> dict[str, Any]:
    keys = [{"key": GREEDY, "name": "greedy", **security}, MODEST]
    return {"models": [ONE_AT_A_TIME], "security": {"api_keys": keys}}


@pytest.fixture(scope="module")
def server() -> Iterator[Rig]:
    with rig(config()) as lmx:
        yield lmx


async def say(
    session: aiohttp.ClientSession, url: str, key: str, request_id: str = "one", **script: Any
) -> tuple[int, dict[str, str], Any]:
    """Ask without a stream; returns status, headers and answer."""
    body = ask("one", script, stream=False)
    headers = {"Authorization": f"Bearer {key}", "X-Request-Id": request_id}
    async with session.post(f"{url}/chat/completions", json=body, headers=headers) as response:
        known = {name.lower(): value for name, value in response.headers.items()}
        return response.status, known, await response.json()


async def test_a_hundred_waiting_requests_of_one_key_do_not_keep_another_waiting(
    server: Rig,
) -> None:
    """The model has one row. With a hundred in its queue another key's one request goes next."""
    url, looked = server.url, server.home / "looked"
    script = {"tokens": 3900, "step_s": 0.05, "until": str(looked)}

    async def waiting(count: int) -> None:
        found = lambda: server.worker("one")["requests_queued"] == count  # noqa: E731
        await asyncio.to_thread(wait_until, found, f"{count} wait")

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        asked = [
            asyncio.create_task(say(session, url, GREEDY, "greedy", **script)) for _ in range(100)
        ]
        await waiting(99)
        asked.append(asyncio.create_task(say(session, url, MODEST, "modest", **script)))
        await waiting(100)
        looked.touch()
        assert {status for status, _, _ in await asyncio.gather(*asked)} == {200}
    finished = server.log_events("worker-one", "stream.finished")
    ends = [entry["request_id"] for entry in finished]
    assert ends.count("greedy") == 100
    assert ends.index("modest") == 1, "only the one that ran was before it"


async def test_limits_come_with_a_reload_and_outlive_it(server: Rig) -> None:
    url, began_s = server.url, time.monotonic()

    def refilled() -> float:
        """How many requests the limit has allowed since by the time that has passed."""
        return (time.monotonic() - began_s) * PER_MINUTE / 60

    async with aiohttp.ClientSession() as session:
        status, headers, _ = await say(session, url, GREEDY, tokens=1)
        assert (status, "x-ratelimit-limit-requests" in headers) == (200, False)
        server.configure(
            config(limits={"requests_per_minute": PER_MINUTE, "concurrent_requests": 2})
        )
        assert server.cli("reload").returncode == 0
    async with aiohttp.ClientSession() as session:
        for left in (3, 2, 1):
            status, headers, _ = await say(session, url, GREEDY, tokens=1)
            assert status == 200
            assert left <= int(headers["x-ratelimit-remaining-requests"]) <= left + refilled()
        # The next router knows what its predecessor's clients had, also where it was killed.
        assert server.cli("restart", "--router").returncode == 0
    async with aiohttp.ClientSession() as session:
        allowed = 0
        while (said := await say(session, url, GREEDY, tokens=1))[0] == 200:
            allowed += 1
            assert allowed <= 1 + refilled()
        assert allowed
        status, headers, body = said
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "the key 'greedy' on requests per minute: limit 4" in body["error"]["message"]
        assert 1 <= int(headers["retry-after"]) <= 15
        assert headers["x-ratelimit-remaining-requests"] == "0"
        status, headers, _ = await say(session, url, MODEST, tokens=1)
        assert (status, "x-ratelimit-limit-requests" in headers) == (200, False)
    logs = "".join(path.read_text() for path in (server.home / "logs").glob("*.log*"))
    assert '"key": "greedy"' in logs
    assert not any(key in logs for key in (GREEDY, MODEST))
