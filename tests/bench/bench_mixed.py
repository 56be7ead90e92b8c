"""A mixed day on one model: a coding agent, chats and small requests at the same time.

An agent has a conversation of 30,000 tokens and asks every few seconds for one more turn, eight
chats continue, each with its own history, and a small request comes every three seconds. The
model is tiny, the lengths are real.
``make bench-mixed`` measures this checkout; ``AGAINST=FOLDER``, another checkout with a ``.venv``
of its own, is measured in turns with it.
"""

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.bench.rigs.checkouts import ROOT, asked, in_turns, measured_one
from tests.bench.rigs.report import Section

TURNS = 2
DURATION_S = 75
AGENT_TOKENS = 30_000
CHATS = 8
CONTEXT_TOKENS = 65_536
_PERCENTILES = (50, 95, 99)


@dataclass
class Seen:
    """What one kind of client saw, in seconds."""

    ttft_s: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)


def main() -> None:
    """Print percentiles of the time to the first token and between tokens, in milliseconds."""
    if measured_one(_measure):
        return
    for checkout, seen in _seen(asked()).items():
        print(f"\n{checkout}")
        for row in _rows(seen):
            print("  ".join(cell.rjust(12) if place else cell.ljust(22)
                            for place, cell in enumerate(row)))  # fmt: skip


def measure(_: Path) -> Section:
    """Measure this checkout."""
    (seen,) = _seen([ROOT]).values()
    rows = _rows(seen)
    for row in rows[1:]:
        print(*row, flush=True)
    return Section(
        "A mixed day",
        f"An agent whose conversation begins with {AGENT_TOKENS} tokens and grows by 1000 a turn, "
        f"{CHATS} chats, each with its own history, and twenty small requests a minute, all at "
        "once over HTTP, on the tiny model with real lengths (`make bench-mixed`; `AGAINST=` "
        f"another checkout measures both in turns). Percentiles of {TURNS} times {DURATION_S} s. "
        "An agent's first tokens are few: their higher percentiles are about the longest of them. "
        "In a run of one turn each, the version that read one prompt to its end before the next, "
        "and made all rows as long as the longest, needed 84.3 s (chats), 55.6 s (small) and "
        "86.1 s (agent) to the first token at p50, and the version after it 1.0, 0.46 and 93.0 s; "
        "between tokens, at p99, 2.9, 5.9 and 1.6 s, and the one after it 0.77, 0.71 and 0.04 s.",
        rows,
    )


def _seen(checkouts: Sequence[Path]) -> dict[Path, dict[str, list[float]]]:
    found: dict[Path, dict[str, list[float]]] = {}
    for checkout, turns in in_turns(__file__, checkouts, TURNS).items():
        for turn in turns:
            for name, values in turn.items():
                found.setdefault(checkout, {}).setdefault(name, []).extend(values)
    return found


def _rows(seen: Mapping[str, Sequence[float]]) -> list[list[str]]:
    heads = ["", *(f"p{each}, ms" for each in _PERCENTILES), "measured"]
    return [heads, *([name, *_cells(values), str(len(values))] for name, values in seen.items())]


def _cells(values: Sequence[float]) -> list[str]:
    if not values:
        return ["none"] * len(_PERCENTILES)
    from lmx.supervisor.cli.bench.figures import percentile  # Earlier checkouts have none.

    ordered = sorted(values)
    return [f"{1000 * percentile(ordered, each):.1f}" for each in _PERCENTILES]


def _measure() -> dict[str, list[float]]:
    return asyncio.run(_mixed_day())


async def _mixed_day() -> dict[str, list[float]]:
    from tests.support.models.tiny_models import make_tiny_model
    from tests.support.rigs.rig import rig

    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny", "llama")
        config = json.loads((model / "config.json").read_text())
        config["max_position_embeddings"] = CONTEXT_TOKENS
        (model / "config.json").write_text(json.dumps(config))
        served = {
            "id": "m", "source": str(model), "context_length": CONTEXT_TOKENS,
            "concurrency": 12, "max_queue": 64,
        }  # fmt: skip
        patient = {"stall_timeout_s": 60.0, "beat_timeout_s": 30.0, "load_stall_timeout_s": 60.0}
        with rig({"models": [served], "timing": patient}) as lmx:
            lmx.wait_state("m", "ready")
            return await _replay(f"{lmx.url}/completions")


async def _replay(url: str) -> dict[str, list[float]]:
    agent, chat, small = Seen(), Seen(), Seen()
    end_s = time.monotonic() + DURATION_S
    patient = aiohttp.ClientTimeout(total=None, sock_read=120)
    async with aiohttp.ClientSession(timeout=patient) as session:

        async def ask(seen: Seen, prompt: Sequence[int], tokens: int) -> None:
            if time.monotonic() < end_s:
                await _stream(session, url, seen, prompt, tokens)

        await asyncio.gather(
            _agent(ask, agent, end_s),
            *(_chat(ask, chat, end_s, number) for number in range(CHATS)),
            _small(ask, small, end_s),
        )
    return {
        f"{name}, {what}": values
        for name, seen in (("agent", agent), ("chats", chat), ("small", small))
        for what, values in (("first token", seen.ttft_s), ("next token", seen.between_s))
    }


Ask = Callable[[Seen, Sequence[int], int], Coroutine[Any, Any, None]]


async def _agent(ask: Ask, seen: Seen, end_s: float) -> None:
    tokens = _tokens("agent", AGENT_TOKENS)
    turn = 0
    while time.monotonic() < end_s:
        await ask(seen, tokens, 100)
        turn += 1
        tokens += _tokens(f"turn {turn}", 1_000)
        await asyncio.sleep(2)


async def _chat(ask: Ask, seen: Seen, end_s: float, number: int) -> None:
    tokens = _tokens(f"chat {number}", 400 + 150 * number)
    turn = 0
    await asyncio.sleep(number * 0.7)
    while time.monotonic() < end_s:
        await ask(seen, tokens, 120)
        turn += 1
        tokens += _tokens(f"chat {number}, turn {turn}", 200)
        await asyncio.sleep(1)


async def _small(ask: Ask, seen: Seen, end_s: float) -> None:
    async with asyncio.TaskGroup() as group:
        number = 0
        while time.monotonic() < end_s:
            number += 1
            group.create_task(ask(seen, _tokens(f"small {number}", 60), 10))
            await asyncio.sleep(3)


def _tokens(seed: str, count: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(1, 200) for _ in range(count)]


async def _stream(
    session: aiohttp.ClientSession, url: str, seen: Seen, prompt: Sequence[int], tokens: int
) -> None:
    body = {
        "model": "m", "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens,
        "stream": True, "temperature": 1.0, "seed": 1,
    }  # fmt: skip
    last_s = time.perf_counter()
    first = True
    async with session.post(url, json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            now_s = time.perf_counter()
            (seen.ttft_s if first else seen.between_s).append(now_s - last_s)
            first, last_s = False, now_s


if __name__ == "__main__":
    main()
