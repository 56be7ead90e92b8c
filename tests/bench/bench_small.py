"""Small requests while a long prompt is read: how long they wait for their first token.

``make bench-small`` measures in turns how long small requests wait alone, and while prompts of
30,000 tokens are read one after the other, on the tiny model over HTTP; and in the engine alone, by
its processor time, which other programs change little. ``AGAINST=FOLDER``, another checkout, is
measured in turns with it.
"""

import asyncio
import inspect
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest import mock

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
ENGINE_ROUNDS: Final = 4
_ENGINE_TOKENS: Final = {3: 4_000, 12: 1_500}
"""How long the prompts are that the engine reads, some four seconds, by the model's layers."""
_ALONE: Final = "alone"
_MEANWHILE: Final = "while a long prompt is read"
_NEXT: Final = "the next tokens meanwhile"
_READING: Final = "reading"


def main() -> None:
    """Print percentiles of the time to the first token, and their ratios."""
    if measured_one(_measure_both):
        return
    for checkout, tables in _tables(asked()).items():
        print(f"\n{checkout}")
        for row in itertools.chain(*tables):
            print("  ".join(cell.ljust(40) for cell in row))


def measure(_: Path) -> Section:
    """Measure this checkout."""
    return Section(
        "Small requests during a long prompt",
        f"Time to the first token of requests of {SMALL_TOKENS} tokens, one after the other, on "
        f"the tiny model over HTTP: alone, and while prompts of {LONG_TOKENS} tokens are read "
        "(`make bench-small`; `AGAINST=` another checkout measures both in turns).",
        _own_tables()[0],
    )


def measure_engine(_: Path) -> Section:
    """Measure this checkout's engine."""
    return Section(
        "Small requests during a long prompt, in the engine",
        f"Processor time of the engine from when a request of {SMALL_TOKENS} tokens comes until "
        "its first token, on tiny models: alone, and while a prompt is read that takes about four "
        "seconds (`make bench-small`; `AGAINST=` another checkout measures both in turns). What "
        "[pausing-chunks.md](decisions/pausing-chunks.md) brought, when it was made, at a load of "
        "25 to 30 by other programs: p50 and p95 were 6.6 and 8.5 times those of alone instead of "
        "17.2 and 45.5 with 3 layers, and 1.6 and 3.3 instead of 11.2 and 24.8 with 12.",
        _own_tables()[1],
    )


@cache
def _own_tables() -> list[list[list[str]]]:
    """Return this checkout's tables, over HTTP and of the engine, which one run measures."""
    (tables,) = _tables([ROOT]).values()
    return tables


def _tables(checkouts: Sequence[Path]) -> dict[Path, list[list[list[str]]]]:
    found = {}
    for checkout, turns in in_turns(__file__, checkouts, TURNS).items():
        http, engine = [[turn[kind] for turn in turns] for kind in ("http", "engine")]
        found[checkout] = [_table(http, ""), _engine_table(engine)]
    return found


def _engine_table(turns: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [["", "p50, ms", "p95, ms"]]
    for layers in _ENGINE_TOKENS:
        # Its keys were those of JSON.
        measured = [turn[str(layers)] for turn in turns]
        before = f"{layers} layers, "
        _, *lines = _table(measured, before)
        reading = statistics.median(one for turn in measured for one in turn[_READING])
        rows += [
            *lines,
            _row(f"{before}{_NEXT}", _cuts(measured, _NEXT)),
            [f"{before}the prompt alone, s", f"{reading:.2f}", ""],
        ]
    return rows


def _table(turns: Sequence[Mapping[str, Any]], before: str) -> list[list[str]]:
    alone, meanwhile = (_cuts(turns, name) for name in (_ALONE, _MEANWHILE))
    ratios = [f"{late / soon:.2f}" for late, soon in zip(meanwhile, alone, strict=True)]
    return [
        ["", "p50, ms", "p95, ms"],
        _row(f"{before}{_ALONE}", alone),
        _row(f"{before}{_MEANWHILE}", meanwhile),
        [f"{before}ratio", *ratios],
    ]


def _cuts(turns: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    from lmx.supervisor.cli.bench.figures import percentile  # Earlier checkouts have none.

    found = sorted(one for turn in turns for one in turn[name])
    return [percentile(found, each) for each in (50, 95)]


def _row(name: str, cuts_s: Sequence[float]) -> list[str]:
    return [name, *(f"{1000 * cut_s:.1f}" for cut_s in cuts_s)]


def _measure_both() -> Mapping[str, Any]:
    return {"engine": _measure_engine(), "http": asyncio.run(_measure())}


def _measure_engine() -> Mapping[str, Any]:
    """Everything that looks at a clock in the engine sees the processor time: the length of chunks
    is then that of a machine on which nothing else runs."""
    from tests.support.models.tiny_models import CONFIGS, make_tiny_model
    from tests.support.rigs.engine_rig import EngineRunner, spec_of

    found = {}
    for layers, tokens in _ENGINE_TOKENS.items():
        kind = f"llama-{layers}"
        config = CONFIGS["llama"] | {"num_hidden_layers": layers}
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(CONFIGS, {kind: config}):
            model = make_tiny_model(Path(folder) / kind, kind, CONTEXT_TOKENS)
            with mock.patch.object(time, "perf_counter", time.process_time):
                runner = EngineRunner(spec_of(model, max_decode_stall_s=0.3))
                found[str(layers)] = _engine_rounds(runner, tokens, random.Random(1))
    return found


def _engine_rounds(runner: Any, tokens: int, chance: random.Random) -> Mapping[str, list[float]]:
    def prompt(tokens: int) -> list[int]:
        return [chance.randrange(1, 200) for _ in range(tokens)]

    took: dict[str, list[float]] = {_ALONE: [], _MEANWHILE: [], _NEXT: [], _READING: []}
    runner.alone(prompt(tokens // 2), max_tokens=2)  # The length of chunks is learned.
    for _ in range(ENGINE_ROUNDS):
        began_s = time.process_time()
        runner.alone(prompt(tokens), max_tokens=1)
        took[_READING].append(time.process_time() - began_s)
        for _ in range(REQUESTS // 2):
            took[_ALONE].append(_engine_gaps_s(runner, prompt(SMALL_TOKENS), 0.0)[0])
        long = runner.admit(prompt(tokens), max_tokens=2)
        while long not in runner.started:
            comes_s = time.process_time() + chance.uniform(0.0, 1.0)
            first_s, *gaps_s = _engine_gaps_s(runner, prompt(SMALL_TOKENS), comes_s)
            took[_MEANWHILE].append(first_s)
            took[_NEXT] += gaps_s
        runner.finish()
    return took


def _engine_gaps_s(runner: Any, prompt: Sequence[int], comes_s: float) -> list[float]:
    """Return how long a request waits for each of its tokens that comes at a time, whatever is done
    then."""

    def has_come() -> bool:
        return time.process_time() >= comes_s

    # Checkouts from before chunks paused are not asked.
    pauses = "interrupted" in inspect.signature(runner.generator.step).parameters
    while not has_come() and runner.live:
        runner._take(runner.generator.step(*([has_come] if pauses else [])))
    last_s = min(comes_s or float("inf"), time.process_time())
    gaps_s: list[float] = []
    small = runner.admit(prompt, max_tokens=4)
    while small in runner.live:
        runner.step()
        if len(runner.tokens[small]) > len(gaps_s):
            now_s = time.process_time()
            gaps_s.append(now_s - last_s)
            last_s = now_s
    return gaps_s


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
