"""Batches whose processes are killed: no line is lost, none is there twice."""

import asyncio
import json
import os
import random
import re
import signal
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import psutil
import pytest

from tests.support.rigs.rig import POLL_S, Rig, Stream, ask, http, rig, scripted, wait_until

pytestmark = pytest.mark.long

LONG: Final = {"context_length": 1_000_000}
CONFIG: Final = {
    "models": [
        scripted("alpha", concurrency=4, options=LONG),
        scripted("beta", concurrency=2, options=LONG),
    ]
}
CHAT: Final = "/v1/chat/completions"
ENDED: Final = ("completed", "failed", "expired", "cancelled")


def line(number: int, *, step_s: float = 0.01, tokens: int = 2, size: int = 1) -> dict[str, Any]:
    answer = {"tokens": tokens, "step_s": step_s, "text": f"{number} " * size}
    return {
        "custom_id": f"line-{number}",
        "method": "POST",
        "url": CHAT,
        "body": {
            "model": "beta" if number % 3 == 0 else "alpha",
            "messages": [{"role": "user", "content": json.dumps(answer)}],
        },
    }


class Client:
    """A client that tries again while lmx is being put together again."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def ask(self, method: str, path: str, **sent: Any) -> bytes:
        async with asyncio.timeout(120):
            while True:
                try:
                    async with self._session.request(method, self._url + path, **sent) as response:
                        found = await response.read()
                        if response.status == 200:
                            return found
                        assert response.status == 503, found
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)

    async def begin(self, lines: list[dict[str, Any]]) -> str:
        form = aiohttp.FormData(default_to_multipart=True)
        form.add_field("purpose", "batch")
        content = b"".join(json.dumps(one).encode() + b"\n" for one in lines)
        form.add_field("file", content, filename="in.jsonl")
        async with self._session.post(f"{self._url}/files", data=form) as response:
            file = await response.json()
        body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
        found: dict[str, Any] = json.loads(await self.ask("POST", "/batches", json=body))
        return str(found["id"])

    async def batch(self, batch_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.ask("GET", f"/batches/{batch_id}"))
        return found

    async def until(self, batch_id: str, met: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(240):
            while not met(found := await self.batch(batch_id)):
                await asyncio.sleep(POLL_S)
        return found

    async def check(self, batch_id: str, lines: list[dict[str, Any]]) -> None:
        """The batch ends well, and each line is answered once, with its own answer, in order."""
        done = await self.until(batch_id, lambda found: found["status"] in ENDED)
        assert done["status"] == "completed", done
        assert done["error_file_id"] is None, await self.content(done["error_file_id"])
        output = await self.content(done["output_file_id"])
        assert [one["custom_id"] for one in output] == [one["custom_id"] for one in lines]
        for one, sent in zip(output, lines, strict=True):
            answer = json.loads(sent["body"]["messages"][0]["content"])
            text = one["response"]["body"]["choices"][0]["message"]["content"]
            assert text == answer["text"] * answer["tokens"]
            assert one["response"]["body"]["model"] == sent["body"]["model"]
        assert done["request_counts"]["completed"] == len(lines)

    async def check_cancelled(self, batch_id: str, lines: list[dict[str, Any]]) -> None:
        """The batch ends cancelled, and each line is in one of the files, once, in order: with its
        own answer, or as one that was not answered."""
        done = await self.until(batch_id, lambda found: found["status"] in ENDED)
        assert done["status"] == "cancelled", done
        numbers = {one["custom_id"]: number for number, one in enumerate(lines)}
        found: list[int] = []
        for name, is_answer in (("output_file_id", True), ("error_file_id", False)):
            content = [] if done[name] is None else await self.content(done[name])
            own = [numbers[one["custom_id"]] for one in content]
            assert own == sorted(own)
            found += own
            for one, number in zip(content, own, strict=True):
                if not is_answer:
                    assert one["error"]["code"] == "batch_cancelled"
                    continue
                answer = json.loads(lines[number]["body"]["messages"][0]["content"])
                text = one["response"]["body"]["choices"][0]["message"]["content"]
                assert text == answer["text"] * answer["tokens"]
        assert sorted(found) == list(range(len(lines)))
        assert done["request_counts"]["total"] == len(lines)

    async def content(self, file_id: str) -> list[dict[str, Any]]:
        raw = await self.ask("GET", f"/files/{file_id}/content")
        return [json.loads(one) for one in raw.splitlines()]


def pid_of(lmx: Rig, victim: str) -> int | None:
    status = lmx.status()
    match victim:
        case "supervisor":
            found = status["supervisor"]["pid"]
        case "router":
            found = status["router"]["pid"]
        case model:
            found = next(one["pid"] for one in status["workers"] if one["model"] == model)
    return None if found is None else int(found)


def kill(lmx: Rig, victim: str) -> None:
    pid = pid_of(lmx, victim)
    if pid is not None and psutil.pid_exists(pid):
        os.kill(pid, signal.SIGKILL)


def left_in(lmx: Rig) -> set[str]:
    return {path.name for path in (lmx.home / "files").iterdir()}


async def test_each_process_is_killed_while_lines_are_answered() -> None:
    # Long enough that each process is killed while there is something left to answer.
    lines = [line(number, step_s=0.2) for number in range(120)]
    with rig(CONFIG, background=True) as lmx:
        lmx.wait_state("alpha", "ready")
        async with http() as session:
            client = Client(session, lmx.url)
            # While somebody is answered no line is, so that there is something to be seen.
            somebody = Stream(session, lmx.url, ask("alpha", {"tokens": 100_000, "step_s": 0.05}))
            await somebody.has_text(1)
            batch_id = await client.begin(lines)
            await asyncio.to_thread(
                wait_until, lambda: lmx.status()["router"]["batch_lines"] == 120, "its lines"
            )
            assert re.search("batches +1 under way, 120 lines left", lmx.cli("status").stdout)
            await somebody.hang_up()
            for victim, completed in (("router", 20), ("alpha", 45), ("supervisor", 70)):
                await client.until(
                    batch_id,
                    lambda found, least=completed: least <= counted(found),  # type: ignore[misc]
                )
                await asyncio.to_thread(kill, lmx, victim)
                await asyncio.to_thread(lmx.wait_serving)
            await client.check(batch_id, lines)
            done = await client.batch(batch_id)
            await asyncio.to_thread(
                wait_until,
                lambda: left_in(lmx) == {done["input_file_id"], done["output_file_id"]},
                "nothing else is left",
            )


def counted(found: dict[str, Any]) -> int:
    counts = found["request_counts"]
    return int(counts["completed"] + counts["failed"])


@pytest.mark.soak
async def test_each_process_is_killed_in_each_phase() -> None:
    """The long form: `make kill-batches`."""
    rounds = int(os.environ.get("LMX_TEST_ROUNDS", "40"))
    draw = random.Random(7)
    hits: dict[tuple[str, str], int] = {}
    with rig(CONFIG, background=True) as lmx:
        lmx.wait_state("alpha", "ready")
        async with http() as session:
            client = Client(session, lmx.url)
            for _ in range(rounds):
                phase = draw.choice(["validating", "in_progress", "finalizing", "cancelling"])
                victim = draw.choice(["router", "router", "supervisor", "alpha", "beta"])
                # Of each phase enough that it lasts.
                count, size = {
                    "validating": (1_500, 1),
                    "in_progress": (100, 1),
                    "finalizing": (200, 20_000),
                    "cancelling": (200, 1),
                }[phase]
                lines = [line(number, step_s=0.0, tokens=1, size=size) for number in range(count)]
                batch_id = await client.begin(lines)
                if phase == "cancelling":
                    await client.until(
                        batch_id, lambda found: counted(found) > 5 or found["status"] in ENDED
                    )
                    await client.ask("POST", f"/batches/{batch_id}/cancel")
                least = draw.randrange(count // 2) if phase == "in_progress" else 0
                found = await client.until(
                    batch_id,
                    lambda found, phase=phase, least=least: (  # type: ignore[misc]
                        (found["status"] == phase and counted(found) >= least)
                        or found["status"] in ("finalizing", *ENDED)
                    ),
                )
                if phase != "cancelling":  # It lasts for some milliseconds.
                    await asyncio.sleep(draw.random() * 0.1)
                await asyncio.to_thread(kill, lmx, victim)
                await asyncio.to_thread(lmx.wait_serving)
                key = (found["status"], victim)
                hits[key] = hits.get(key, 0) + 1
                if phase == "cancelling":
                    await client.check_cancelled(batch_id, lines)
                else:
                    await client.check(batch_id, lines)
                done = await client.batch(batch_id)
                for name in ("input_file_id", "output_file_id", "error_file_id"):
                    if done[name] is not None:
                        await client.ask("DELETE", f"/files/{done[name]}")
                assert left_in(lmx) == set()
    print({f"{phase}: {victim}": count for (phase, victim), count in sorted(hits.items())})
