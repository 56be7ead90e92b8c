"""Small requests while a long prompt is read: how long they wait for their first token.

``make bench-small`` measures in turns how long small requests wait alone, and while prompts of
30,000 tokens are read one after the other, on the tiny model over HTTP. ``AGAINST=FOLDER``, another
checkout, is measured in turns with it.
"""

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiohttp

from tests.bench.rigs.checkouts import ROOT, asked, in_turns, measured_one
from tests.bench.rigs.report import Section

TURNS: Final = 2
ROUNDS: Final = 3
REQUESTS: Final = 20
SMALL_TOKENS: Final = 60
LONG_TOKENS: Final = 30_000
CONTEXT_TOKENS: Final = 65_536
PAUSE_S: Final = 0.1
_ALONE: Final = "alone"
_MEANWHILE: Final = "while a long prompt is read"


def main() -> None:
    """Print percentiles of the time to the first token, and their ratios."""
    if measured_one(lambda: asyncio.run(_measure())):
        return
    for checkout, rows in _rows(asked()).items():
        print(f"\n{checkout}")
        for row in rows:
            print("  ".join(cell.ljust(30) for cell in row))


def measure(_: Path) -> Section:
    """Measure this checkout."""
    (rows,) = _rows([ROOT]).values()
    return Section(
        "Small requests during a long prompt",
        f"Time to the first token of requests of {SMALL_TOKENS} tokens, one after the other, on "
        f"the tiny model over HTTP: alone, and while prompts of {LONG_TOKENS} tokens are read "
        "(`make bench-small`; `AGAINST=` another checkout measures both in turns).",
        rows,
    )


def _rows(checkouts: Sequence[Path]) -> dict[Path, list[list[str]]]:
    found = {}
    for checkout, turns in in_turns(__file__, checkouts, TURNS).items():
        cuts = {
            name: statistics.quantiles(
                [one for turn in turns for one in turn[name]], n=100, method="inclusive"
            )
            for name in (_ALONE, _MEANWHILE)
        }
        found[checkout] = [["", "p50, ms", "p95, ms"]]
        for name, values in cuts.items():
            cells = [f"{1000 * values[place]:.1f}" for place in (49, 94)]
            found[checkout].append([name, *cells])
        ratios = [f"{cuts[_MEANWHILE][place] / cuts[_ALONE][place]:.2f}" for place in (49, 94)]
        found[checkout].append(["ratio", *ratios])
    return found


async def _measure() -> Mapping[str, list[float]]:
    from tests.support.models.tiny_models import make_tiny_model
    from tests.support.rigs.rig import rig

    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny", "llama")
        config = json.loads((model / "config.json").read_text())
        config["max_position_embeddings"] = CONTEXT_TOKENS
        (model / "config.json").write_text(json.dumps(config))
        served = {"id": "m", "source": str(model), "context_length": CONTEXT_TOKENS}
        patient = {"stall_timeout_s": 60.0, "beat_timeout_s": 30.0, "load_stall_timeout_s": 60.0}
        with rig({"models": [served], "timing": patient}) as lmx:
            lmx.wait_state("m", "ready")
            return await _in_turns(f"{lmx.url}/completions")


async def _in_turns(url: str) -> Mapping[str, list[float]]:
    chance = random.Random(1)
    took: dict[str, list[float]] = {_ALONE: [], _MEANWHILE: []}
    patient = aiohttp.ClientTimeout(total=None, sock_read=120)
    async with aiohttp.ClientSession(timeout=patient) as session:

        async def read_long() -> None:
            while True:
                await _first_token_s(session, url, chance, LONG_TOKENS)

        await _first_token_s(session, url, chance, 4_000)  # everything is warm then
        for _ in range(ROUNDS):
            took[_ALONE] += await _ask_often(session, url, chance)
            reading = asyncio.create_task(read_long())
            await asyncio.sleep(0.5)
            took[_MEANWHILE] += await _ask_often(session, url, chance)
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            await asyncio.sleep(1.0)
    return took


async def _ask_often(
    session: aiohttp.ClientSession, url: str, chance: random.Random
) -> list[float]:
    took = []
    for _ in range(REQUESTS):
        took.append(await _first_token_s(session, url, chance, SMALL_TOKENS))
        await asyncio.sleep(PAUSE_S)
    return took


async def _first_token_s(
    session: aiohttp.ClientSession, url: str, chance: random.Random, tokens: int
) -> float:
    prompt = [chance.randrange(1, 200) for _ in range(tokens)]
    body = {"model": "m", "prompt": prompt, "max_tokens": 2, "min_tokens": 2, "stream": True}
    began_s = time.perf_counter()
    first_s = 0.0
    async with session.post(url, json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.startswith(b"data: {") and not first_s:
                first_s = time.perf_counter() - began_s
    return first_s


if __name__ == "__main__":
    main()
