"""What a batch costs others, and what it takes itself.

``make bench-batch`` measures in turns how long a person's requests take alone, and during a batch
on the same model; ``AGAINST=FOLDER``, another checkout, is measured in turns with it. Then it
measures the router's memory while it answers a batch of LINES lines; LINES=0 leaves that out.
"""

import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil

from tests.bench.rigs.checkouts import asked, in_turns, measured_one
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.rig import Rig, http, rig, scripted

TURNS: Final = 3
ROUNDS: Final = 4
REQUESTS: Final = 12
TOKENS: Final = 64
PAUSE_S: Final = 0.3
CHAT: Final = "/v1/chat/completions"
_ALONE: Final = "alone"
_DURING: Final = "during a batch"


def main() -> None:
    """Print the ratios of the percentiles, and the memory for as many lines as are requested
    (50,000)."""
    if measured_one(lambda: asyncio.run(_meanwhile())):
        return
    for checkout, turns in in_turns(__file__, asked(), TURNS).items():
        took = {name: [one for turn in turns for one in turn[name]] for name in (_ALONE, _DURING)}
        cuts = {
            name: statistics.quantiles(values, n=100, method="inclusive")
            for name, values in took.items()
        }
        print(f"{checkout}: lines meanwhile: {sum(turn['lines'] for turn in turns)}")
        for name, values in took.items():
            p50, p95 = 1000 * cuts[name][49], 1000 * cuts[name][94]
            print(f"  {name:15} p50 {p50:.1f} ms, p95 {p95:.1f} ms, of {len(values)}")
        for place in (49, 74, 94):
            ratio = cuts[_DURING][place] / cuts[_ALONE][place]
            print(f"  p{place + 1} during a batch: {ratio:.2f} of alone")
    lines = int(os.environ.get("LINES") or 50_000)
    if lines:
        asyncio.run(_memory(lines))


async def _meanwhile() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny", "llama")
        served = {"id": "m", "source": str(model), "concurrency": 8}
        with rig({"models": [served]}) as lmx:
            lmx.wait_state("m", "ready")
            async with http() as session:
                took: dict[str, list[float]] = {_ALONE: [], _DURING: []}
                lines = 0
                await _ask_often(session, lmx.url)  # everything is warm then
                for _ in range(ROUNDS):
                    took[_ALONE] += await _ask_often(session, lmx.url)
                    batch_id = await _begin(session, lmx.url, _lines("m", 4_000, 200))
                    await _until(session, lmx.url, batch_id, "in_progress")
                    took[_DURING] += await _ask_often(session, lmx.url)
                    found = await _get(session, f"{lmx.url}/batches/{batch_id}")
                    lines += found["request_counts"]["completed"]
                    async with session.post(f"{lmx.url}/batches/{batch_id}/cancel"):
                        pass
                    await _until(session, lmx.url, batch_id, "cancelled")
    return {**took, "lines": lines}


async def _memory(count: int) -> None:
    with rig({"models": [scripted("m", concurrency=8)]}) as lmx:
        lmx.wait_state("m", "ready")
        router = psutil.Process(lmx.status()["router"]["pid"])
        async with http() as session:
            warm = await _begin(session, lmx.url, _lines("m", 200, 5))
            await _until(session, lmx.url, warm, "completed")
            before = most = router.memory_info().rss
            began_s = time.monotonic()
            batch_id = await _begin(session, lmx.url, _lines("m", count, 5))
            while True:
                found = await _get(session, f"{lmx.url}/batches/{batch_id}")
                most = max(most, router.memory_info().rss)
                if found["status"] not in ("validating", "in_progress", "finalizing"):
                    break
                if int(time.monotonic() - began_s) % 20 == 0:
                    done = found["request_counts"]["completed"]
                    print(f"{found['status']}: {done}, {most / 2**20:.0f} MiB", flush=True)
                await asyncio.sleep(1.0)
        took_s = time.monotonic() - began_s
        assert found["request_counts"]["completed"] == count, found
        files = sum(path.stat().st_size for path in (lmx.home / "files").iterdir())
        print(
            f"{count} lines in {took_s:.0f} s; the router had {before / 2**20:.0f} MiB before and "
            f"{most / 2**20:.0f} MiB at most; files of {files / 2**20:.0f} MiB, records of "
            f"{_records(lmx) / 2**20:.0f} MiB"
        )


def _records(lmx: Rig) -> int:
    return sum(path.stat().st_size for path in (lmx.home / "state").glob("files.sqlite*"))


def _lines(model: str, count: int, tokens: int) -> bytes:
    text = "A line of a batch, as long as those of others are. " * 8
    lines = []
    for number in range(count):
        messages = [{"role": "user", "content": f"{text}{number}"}]
        body = {"model": model, "messages": messages, "max_tokens": tokens}
        lines.append({"custom_id": str(number), "method": "POST", "url": CHAT, "body": body})
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


async def _ask_often(session: aiohttp.ClientSession, url: str) -> list[float]:
    took = []
    for number in range(REQUESTS):
        await asyncio.sleep(PAUSE_S)
        messages = [{"role": "user", "content": f"A question of a person: {number}"}]
        body = {
            "model": "m", "messages": messages, "max_tokens": TOKENS, "ignore_eos": True,
            "temperature": 0,
        }  # fmt: skip
        began_s = time.monotonic()
        async with session.post(f"{url}/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            await response.read()
        took.append(time.monotonic() - began_s)
    return took


async def _begin(session: aiohttp.ClientSession, url: str, content: bytes) -> str:
    form = aiohttp.FormData(default_to_multipart=True)
    form.add_field("purpose", "batch")
    form.add_field("file", content, filename="in.jsonl")
    async with session.post(f"{url}/files", data=form) as response:
        file = await response.json()
    body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    async with session.post(f"{url}/batches", json=body) as response:
        found: dict[str, Any] = await response.json()
    return str(found["id"])


async def _until(session: aiohttp.ClientSession, url: str, batch_id: str, status: str) -> None:
    async with asyncio.timeout(120):
        while (await _get(session, f"{url}/batches/{batch_id}"))["status"] != status:
            await asyncio.sleep(0.05)


async def _get(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(url) as response:
        found: dict[str, Any] = await response.json()
        return found


if __name__ == "__main__":
    main()
