"""The MLX engine through its interface: what mlx-vlm does, and what the worker relies on."""

import time
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from tiny_models import CONTEXT_TOKENS, make_tiny_model

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.specs import LogSpec, WorkerSpec
from lmx.protocol.states import LoadPhase
from lmx.worker.engine import Engine, ModelFacts, RowRequest, RowSampling
from lmx.worker.factory import make_engine

pytestmark = pytest.mark.engine

GREEDY = RowSampling(0.0, 1.0, 0)
HOT = RowSampling(1.0, 1.0, 1234)
WARM_TOP_P = RowSampling(0.8, 0.7, 77)
KINDS = ["smollm2", "llama", "qwen3", "gemma3"]
QUESTION = "What is the capital of France?"


def spec_of(folder: Path, context_length: int | None = None, chunk_tokens: int = 16) -> WorkerSpec:
    return WorkerSpec(
        instance="00000000",
        model_id="m",
        model_path=str(folder),
        run_dir="/nowhere",
        log=LogSpec("/nowhere"),
        engine="lmx.worker.mlx_engine:create",
        # Short, so that even these prompts take several.
        engine_options={"prefill_chunk_tokens": chunk_tokens},
        memory_limit_bytes=4 << 30,
        max_rows=4,
        max_queue=4,
        context_length=context_length,
    )


class Runner:
    """Drives an engine as the engine thread does, without threads."""

    def __init__(self, folder: Path) -> None:
        self.phases: list[tuple[LoadPhase, float | None]] = []
        self.engine: Engine = make_engine(spec_of(folder))
        self.facts: ModelFacts = self.engine.load(
            lambda phase, fraction, _: self.phases.append((phase, fraction))
        )
        self.live: dict[int, int] = {}
        self.tokens: dict[int, list[int]] = {}
        self._next_row = 1

    def encode(self, text: str) -> list[int]:
        return list(self.engine.encode([{"role": "user", "content": text}], {}))

    def admit(self, text: str, sampling: RowSampling, max_tokens: int) -> int:
        while not self.engine.can_admit():
            self.step()
        row_id, self._next_row = self._next_row, self._next_row + 1
        self.engine.admit(RowRequest(row_id, self.encode(text), max_tokens, sampling))
        self.tokens[row_id] = []
        self.live[row_id] = max_tokens
        return row_id

    def step(self) -> int:
        """Advance; rows end at their limit. EOS is a token like any other here."""
        output = self.engine.step()
        for row_id, token in output.tokens:
            self.tokens[row_id].append(token)
            if len(self.tokens[row_id]) == self.live[row_id]:
                self.remove(row_id)
        return output.prefill_tokens

    def remove(self, row_id: int) -> None:
        self.engine.remove(row_id)
        del self.live[row_id]

    def finish(self) -> None:
        while self.live:
            self.step()

    def alone(self, text: str, sampling: RowSampling, max_tokens: int) -> list[int]:
        row_id = self.admit(text, sampling, max_tokens)
        self.finish()
        return self.tokens[row_id]

    def text(self, tokens: list[int]) -> str:
        detokenizer = self.engine.detokenizer()
        return "".join([*map(detokenizer.add, tokens), detokenizer.flush()])


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path
) -> Iterator[dict[str, Path]]:
    base = tmp_path_factory.mktemp("tiny")
    tiny = {kind: make_tiny_model(base / kind, kind) for kind in KINDS[1:]}
    yield tiny | {"smollm2": smollm2_dir}


@pytest.fixture(scope="module")
def runners(folders: dict[str, Path]) -> dict[str, Runner]:
    return {kind: Runner(folder) for kind, folder in folders.items()}


@pytest.fixture(params=KINDS)
def runner(request: pytest.FixtureRequest, runners: dict[str, Runner]) -> Iterator[Runner]:
    runner = runners[request.param]
    yield runner
    for row_id in list(runner.live):
        runner.remove(row_id)


@pytest.fixture
def tiny(runners: dict[str, Runner]) -> Runner:
    return runners["llama"]


@pytest.fixture
def real(runners: dict[str, Runner]) -> Runner:
    return runners["smollm2"]


def test_load_tells_its_progress_and_the_facts(real: Runner) -> None:
    fractions = [fraction for phase, fraction in real.phases if phase is LoadPhase.WEIGHTS]
    assert fractions[0] == 0
    assert fractions[-1] == pytest.approx(1)
    assert len(fractions) > 5
    assert fractions == sorted(fractions, key=lambda fraction: fraction or 0)
    assert real.phases[-1] == (LoadPhase.WARMUP, None)
    assert real.facts.context_tokens == 8192
    assert real.facts.eos_token_ids
    assert real.engine.memory_bytes() > 500_000_000


def test_the_real_model_knows_its_capital(real: Runner) -> None:
    tokens = real.alone(QUESTION, GREEDY, 8)
    assert tokens[-1] in real.facts.eos_token_ids
    assert real.text(tokens) == "The capital of France is Paris."


def test_rows_that_join_midway_change_nothing_for_others(runner: Runner) -> None:
    """Greedy, hot and top_p rows, each as it is alone: token for token."""
    asked = [
        (QUESTION, GREEDY),
        ("Tell me a story about a fox and a dog.", HOT),
        ("Hi", WARM_TOP_P),
    ]
    count = 8
    expected = [runner.alone(text, sampling, count) for text, sampling in asked]
    rows = []
    for text, sampling in asked:
        rows.append(runner.admit(text, sampling, count))
        runner.step()
        runner.step()
    runner.finish()
    assert [runner.tokens[row] for row in rows] == expected


def test_a_row_that_leaves_midway_changes_nothing_for_others(runner: Runner) -> None:
    expected = runner.alone("Count to ten, please.", GREEDY, 12)
    leaving = runner.admit(QUESTION, HOT, 100)
    staying = runner.admit("Count to ten, please.", GREEDY, 12)
    while len(runner.tokens[staying]) < 4:
        runner.step()
    runner.remove(leaving)
    runner.finish()
    assert runner.tokens[staying] == expected


def test_rows_advance_together(tiny: Runner) -> None:
    first = tiny.admit("a", GREEDY, 20)
    second = tiny.admit("b", GREEDY, 20)
    while not tiny.tokens[second]:
        tiny.step()
    lead = len(tiny.tokens[first]) - len(tiny.tokens[second])
    while tiny.live:
        assert first not in tiny.live or len(tiny.tokens[first]) == lead + len(tiny.tokens[second])
        tiny.step()
    assert len(tiny.tokens[first]) == len(tiny.tokens[second]) == 20


def test_rows_go_on_while_a_long_prompt_is_prefilled(tiny: Runner) -> None:
    row = tiny.admit("a", GREEDY, 100)
    while not tiny.tokens[row]:
        tiny.step()
    long = tiny.admit("x" * 150, GREEDY, 2)
    before = len(tiny.tokens[row])
    chunks = 0
    while not tiny.tokens[long]:
        assert tiny.step() in range(17), "at most a chunk of 16"
        chunks += 1
    assert chunks > 150 / 16
    assert len(tiny.tokens[row]) - before == chunks
    tiny.remove(row)
    tiny.finish()


def test_the_last_row_is_served_while_all_others_decode(tiny: Runner) -> None:
    rows = [tiny.admit("a", GREEDY, 40) for _ in range(4)]
    for _ in range(60):
        if tiny.live:
            tiny.step()
    assert [len(tiny.tokens[row]) for row in rows] == [40] * 4


def test_a_step_lasts_as_long_as_its_chunk(real: Runner) -> None:
    """Else the chunks' work would pile up in the last one, and nothing could get between."""
    row = real.admit("one two three " * 10, GREEDY, 2)
    took_s = []
    while not real.tokens[row]:
        began_s = time.perf_counter()
        real.step()
        took_s.append(time.perf_counter() - began_s)
    real.finish()
    assert len(took_s) >= 4
    assert max(took_s) < 0.6 * sum(took_s)


def test_seeds_decide(tiny: Runner) -> None:
    def draw(seed: int) -> list[int]:
        return tiny.alone(QUESTION, RowSampling(1.0, 1.0, seed), 16)

    assert draw(5) == draw(5)
    assert len({tuple(draw(seed)) for seed in range(5)}) == 5


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 30])
def test_a_removed_row_frees_its_place(tiny: Runner, steps: int) -> None:
    """Waiting, in prefill, or decoding."""
    expected = tiny.alone("b", GREEDY, 5)
    row = tiny.admit("y" * 60, GREEDY, 400)
    for _ in range(steps):
        tiny.step()
    tiny.remove(row)
    assert tiny.engine.can_admit()
    assert not tiny.engine.step().tokens
    assert tiny.alone("b", GREEDY, 5) == expected


def test_a_row_may_fill_the_context(tiny: Runner) -> None:
    prompt_tokens = len(tiny.encode("z" * 480))
    room = CONTEXT_TOKENS - prompt_tokens
    assert len(tiny.alone("z" * 480, GREEDY, room)) == room


def test_rest_gives_memory_back(tiny: Runner) -> None:
    tiny.alone("z" * 300, GREEDY, 3)
    assert mx.get_cache_memory() > 0
    tiny.engine.rest()
    assert mx.get_cache_memory() == 0


def test_a_context_beyond_the_models_is_refused(folders: dict[str, Path]) -> None:
    engine = make_engine(spec_of(folders["llama"], context_length=CONTEXT_TOKENS + 1))
    with pytest.raises(OperationError, match="lower it") as caught:
        engine.load(lambda *_: None)
    assert caught.value.code is ErrorCode.CONFIG_INVALID


def test_a_configured_context_is_kept(folders: dict[str, Path]) -> None:
    engine = make_engine(spec_of(folders["llama"], context_length=100))
    assert engine.load(lambda *_: None).context_tokens == 100
