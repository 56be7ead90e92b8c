"""A divided model against the whole one: how fast prompts are read and tokens made, and the
processor time of all ranks.

``make bench-ranks`` measures one process, two ranks with tensor and two with pipeline in turns, on
a random qwen2 of 9 million weights. All ranks are on this machine, so that they share its cores:
the figures show what dividing costs, and not what a second machine gains.
"""

import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final
from unittest import mock

import psutil

from lmx.protocol.messages.specs import RanksSpec
from lmx.protocol.models.ranks import Parallel
from lmx.protocol.states import RankCall

TURNS: Final = 5
PROMPT_TOKENS: Final = 256
TOKENS: Final = 24
ROWS: Final = 4
_SIZE: Final = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "head_dim": 64,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 4096,
}  # fmt: skip
_WAYS: Final[Mapping[str, Parallel | None]] = {
    "one process": None,
    "two ranks, tensor": Parallel.TENSOR,
    "two ranks, pipeline": Parallel.PIPELINE,
}
_WAIT_S: Final = 300

Figures = dict[str, tuple[float, float]]
"""Tokens in a second, and seconds of the processor, of each measurement."""


def main() -> None:
    """Print medians, and the ratios to one process."""
    with tempfile.TemporaryDirectory() as folder:
        found = _in_turns(Path(folder))
    whole = found["one process"]
    print(f"medians of {TURNS} turns; in brackets: as a multiple of one process")
    for way, turns in found.items():
        for what in turns[0]:
            cells = []
            for number, unit in enumerate(("tokens/s", "s of processor time")):
                value, alone = (
                    statistics.median(turn[what][number] for turn in each)
                    for each in (turns, whole)
                )
                cells.append(f"{value:8.2f} {unit} ({value / alone:.2f})")
            print(f"{way:22}{what:18}{'   '.join(cells)}")


def _in_turns(folder: Path) -> dict[str, list[Figures]]:
    model = _make(folder / "model")
    context = get_context("spawn")
    ends, processes = {}, []
    for number, (way, parallel) in enumerate(_WAYS.items()):
        ours, theirs = context.Pipe()
        run_dir = folder / str(number)
        run_dir.mkdir()
        # A process is in one group in its life.
        process = context.Process(target=_serve, args=(theirs, model, run_dir, parallel))
        process.start()
        theirs.close()
        ends[way] = ours
        processes.append(process)
    try:
        found: dict[str, list[Figures]] = {way: [] for way in ends}
        for turn in range(TURNS + 1):
            for way, end in ends.items():
                end.send(turn)
                if not end.poll(_WAIT_S):
                    raise TimeoutError(f"{way} has stopped")
                figures = end.recv()
                if turn > 0:  # The first one warms up.
                    found[way].append(figures)
        return found
    finally:
        for end in ends.values():
            end.close()
        for process in processes:
            process.join(60)
            process.kill()


def _make(folder: Path) -> Path:
    from tests.support.models import text_models

    with mock.patch.dict(text_models.CONFIGS, qwen2=text_models.CONFIGS["qwen2"] | _SIZE):
        text_models.make_text_model(folder, "qwen2")
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = _SIZE["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _serve(end: Connection, model: Path, run_dir: Path, parallel: Parallel | None) -> None:
    """Measure each time that the other end asks for it, until it is closed."""
    from lmx.worker.ranks.leader import Leader
    from tests.support.rigs.engine_rig import EngineRunner, spec_of

    spec = dataclasses.replace(spec_of(model, max_decode_stall_s=10), run_dir=str(run_dir))
    leader = None
    if parallel is not None:
        spec = dataclasses.replace(spec, ranks=RanksSpec(2, parallel))
        leader = Leader(spec, lambda error: print(error.message))
    runner = EngineRunner(spec, leader)
    processes = [psutil.Process()]
    processes += [psutil.Process(each.pid) for each in (leader.figures if leader else ())]
    try:
        while True:
            end.send(_figures(runner, processes, end.recv()))
    except EOFError:
        pass
    finally:
        if leader is not None:
            leader.order(RankCall.LEAVE)
            leader.close(5.0)


def _figures(runner: Any, processes: list[psutil.Process], turn: int) -> Figures:
    from tests.support.rigs.engine_rig import GREEDY

    def measured(tokens: int, work: Callable[[], object]) -> tuple[float, float]:
        began_s, cpu_s = time.perf_counter(), _cpu_s(processes)
        work()
        return tokens / (time.perf_counter() - began_s), _cpu_s(processes) - cpu_s

    prompt = [turn + 1, *(5 + place % 200 for place in range(PROMPT_TOKENS - 1))]
    found = {"prefill": measured(PROMPT_TOKENS, lambda: runner.alone(prompt, GREEDY, 1))}
    for rows in (1, ROWS):
        ids = [runner.admit([turn + 1, 7 + row, 9], GREEDY, TOKENS) for row in range(rows)]
        runner.until(lambda ids=ids: all(runner.tokens[each] for each in ids))
        left = sum(TOKENS - len(runner.tokens[each]) for each in ids)
        found[f"decode, {rows} rows"] = measured(left, runner.finish)
    return found


def _cpu_s(processes: list[psutil.Process]) -> float:
    times = [each.cpu_times() for each in processes]
    return sum(each.user + each.system for each in times)


if __name__ == "__main__":
    main()
