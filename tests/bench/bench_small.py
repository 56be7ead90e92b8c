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
ENGINE_TOKENS: Final = 4_000
ENGINE_ROUNDS: Final = 2
_LAYERS: Final = {"llama": 3, "wide": 12}
"""The models that the engine is measured with, and how many layers they have."""
_ALONE: Final = "alone"
_MEANWHILE: Final = "while a long prompt is read"
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
    (tables,) = _tables([ROOT]).values()
    return Section(
        "Small requests during a long prompt",
        f"Time to the first token of requests of {SMALL_TOKENS} tokens, one after the other, on "
        f"the tiny model over HTTP: alone, and while prompts of {LONG_TOKENS} tokens are read "
        "(`make bench-small`; `AGAINST=` another checkout measures both in turns).",
        tables[0],
    )


def measure_engine(_: Path) -> Section:
    """Measure this checkout's engine."""
    (tables,) = _tables([ROOT]).values()
    return Section(
        "Small requests during a long prompt, in the engine",
        f"Processor time of the engine from when a request of {SMALL_TOKENS} tokens comes until "
        f"its first token: alone, and while a prompt of {ENGINE_TOKENS} tokens is read, of which "
        "the chunks take a second when nobody is there (`make bench-small`).",
        tables[1],
    )


def _tables(checkouts: Sequence[Path]) -> dict[Path, list[list[list[str]]]]:
    found = {}
    for checkout, turns in in_turns(__file__, checkouts, TURNS).items():
        http, engine = [[turn[kind] for turn in turns] for kind in ("http", "engine")]
        found[checkout] = [_table(http, ""), _engine_table(engine)]
    return found


def _engine_table(turns: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [["", "p50, ms", "p95, ms"]]
    for model, layers in _LAYERS.items():
        _, *lines = _table([turn[model] for turn in turns], f"{layers} layers, ")
        reading = statistics.median(one for turn in turns for one in turn[model][_READING])
        rows += [*lines, [f"{layers} layers, the prompt alone, s", f"{reading:.2f}", ""]]
    return rows


def _table(turns: Sequence[Mapping[str, Any]], before: str) -> list[list[str]]:
    cuts = {
        name: statistics.quantiles(
            [one for turn in turns for one in turn[name]], n=100, method="inclusive"
        )
        for name in (_ALONE, _MEANWHILE)
    }
    rows = [["", "p50, ms", "p95, ms"]]
    for name, values in cuts.items():
        cells = [f"{1000 * values[place]:.1f}" for place in (49, 94)]
        rows.append([f"{before}{name}", *cells])
    ratios = [f"{cuts[_MEANWHILE][place] / cuts[_ALONE][place]:.2f}" for place in (49, 94)]
    return [*rows, [f"{before}ratio", *ratios]]


def _measure_both() -> Mapping[str, Any]:
    return {"engine": _measure_engine(), "http": asyncio.run(_measure())}


def _measure_engine() -> Mapping[str, Any]:
    """Everything that looks at a clock in the engine sees the processor time: the length of chunks
    is then that of a machine on which nothing else runs."""
    from tests.support.models.tiny_models import make_tiny_model
    from tests.support.rigs.engine_rig import EngineRunner, spec_of

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in _LAYERS:
            model = make_tiny_model(Path(folder) / kind, kind, CONTEXT_TOKENS)
            with mock.patch.object(time, "perf_counter", time.process_time):
                runner = EngineRunner(spec_of(model, max_decode_stall_s=0.3))
                found[kind] = _engine_rounds(runner, random.Random(1))
    return found


def _engine_rounds(runner: Any, chance: random.Random) -> Mapping[str, list[float]]:
    def prompt(tokens: int) -> list[int]:
        return [chance.randrange(1, 200) for _ in range(tokens)]

    took: dict[str, list[float]] = {_ALONE: [], _MEANWHILE: [], _READING: []}
    runner.alone(prompt(ENGINE_TOKENS // 2), max_tokens=2)  # The length of chunks is learned.
    for _ in range(ENGINE_ROUNDS):
        began_s = time.process_time()
        runner.alone(prompt(ENGINE_TOKENS), max_tokens=1)
        took[_READING].append(time.process_time() - began_s)
        for _ in range(REQUESTS):
            took[_ALONE].append(_engine_first_token_s(runner, prompt(SMALL_TOKENS), 0.0))
        long = runner.admit(prompt(ENGINE_TOKENS), max_tokens=2)
        while long not in runner.started:
            after_s = chance.uniform(0.0, 1.0)
            took[_MEANWHILE].append(
                _engine_first_token_s(runner, prompt(SMALL_TOKENS), time.process_time() + after_s)
            )
        runner.finish()
    return took


def _engine_first_token_s(runner: Any, prompt: Sequence[int], comes_s: float) -> float:
    """Return how long a request waits for its first token that comes at a time, whatever is done
    then."""

    def has_come() -> bool:
        return time.process_time() >= comes_s

    # Checkouts from before chunks paused are not asked.
    pauses = "interrupted" in inspect.signature(runner.generator.step).parameters
    while not has_come() and runner.live:
        runner._take(runner.generator.step(*([has_come] if pauses else [])))
    comes_s = min(comes_s, time.process_time()) if comes_s else time.process_time()
    small = runner.admit(prompt, max_tokens=2)
    while not runner.tokens[small]:
        runner.step()
    first_s = time.process_time() - comes_s
    runner.finish_row(small)
    return first_s


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
