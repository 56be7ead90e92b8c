"""A model that is divided among two processes makes the tokens of the whole one."""

import dataclasses
import importlib
import json
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final
from unittest import mock

import mlx_lm.utils
import pytest
from mlx_lm.models.pipeline import PipelineMixin

from lmx.protocol.errors import LmxError
from lmx.protocol.messages.data import Structure, Thinking
from lmx.protocol.messages.specs import PrefixCacheSpec, RanksSpec, WorkerSpec
from lmx.protocol.models.ranks import DIVISIBLE, Parallel
from lmx.protocol.states import RankCall, StructureKind
from lmx.worker.engine.values import ConstraintSource, SequenceSampling
from lmx.worker.ranks.leader import Leader
from tests.engine.decoding.test_random_runs import Alone, Asked, RandomRun
from tests.support.models import text_models
from tests.support.rigs.engine_rig import GREEDY, HOT, WARM_TOP_P, EngineRunner, spec_of
from tests.support.rigs.rig import ROOT

# On a busy machine two processes that wait for each other take many times as long.
pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

CONTEXT_TOKENS: Final = 4096
SHOWN: Final = (("qwen3", Parallel.TENSOR), ("qwen2", Parallel.PIPELINE))
"""What of the ways to divide a model `make test-all` takes."""
FORM: Final = r'\{"city": "(Paris|Rome)", "days": (1|20)\}'
"""Without the spaces that a schema leaves open: a model with random weights writes them for as long
as it may, and each of its tokens is as many exchanges between the ranks as it has layers."""


@contextmanager
def ranked(
    spec: WorkerSpec, run_dir: Path, parallel: Parallel, count: int = 2
) -> Iterator[EngineRunner]:
    """A divided model. No rank may be lost."""
    lost: queue.SimpleQueue[LmxError] = queue.SimpleQueue()
    spec = dataclasses.replace(spec, run_dir=str(run_dir), ranks=RanksSpec(count, parallel))
    leader = Leader(spec, lost.put)
    try:
        yield EngineRunner(spec, leader)
        assert lost.empty()
        leader.order(RankCall.LEAVE)
    finally:
        leader.close(5.0)
    assert not list(run_dir.glob("r-*"))


def make(folder: Path, kind: str, bits: int | None, *, wide: bool) -> Path:
    """Write a model whose context is so long that rows are in buckets."""
    known = {"minimax_m2": "minimax", "mistral": "llama"}
    name = known.get(kind, kind)
    # Heads of this width can be quantized.
    wider = {name: text_models.CONFIGS[name] | ({"head_dim": 32} if wide else {})}
    with mock.patch.dict(text_models.CONFIGS, wider):
        text_models.make_text_model(folder, name, bits=bits)
    config = json.loads((folder / "config.json").read_text())
    config |= {"max_position_embeddings": CONTEXT_TOKENS, "model_type": kind}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class RankedRun(RandomRun):
    """Without what a divided model refuses, and what ends all of it."""

    def _ask(self) -> Asked:
        asked = super()._ask()
        prompt = tuple(min(token, 200) for token in asked.prompt)
        return dataclasses.replace(asked, prompt=prompt, beam=None)


def long_and_short(runner: EngineRunner) -> list[list[int]]:
    """Rows in two buckets, and four answers to one prompt."""
    ids = [runner.admit("short", GREEDY, 30), runner.admit([7, 9] * 1200, GREEDY, 12)]
    ids += [runner.admit("four answers", SequenceSampling(1.0, seed=n), 9) for n in range(4)]
    runner.finish()
    return [runner.tokens[each] for each in ids]


def objects(runner: EngineRunner) -> list[str]:
    structure = Structure(StructureKind.REGEX, FORM, "structured_outputs.regex")
    maker = runner.generator.constrain(ConstraintSource(structure, None, Thinking(), False))
    assert maker is not None and maker.make is not None
    texts = []
    for seed in range(2):
        sampling = SequenceSampling(1.0, seed=seed, end_ids=runner.facts.eos_token_ids)
        tokens = runner.alone("an object", sampling, 60, constraint=maker.make())
        end = next(n for n, token in enumerate(tokens) if token in runner.facts.eos_token_ids)
        texts.append(runner.text(tokens[:end]))
    return texts


def check(folder: Path, run_dir: Path, parallel: Parallel, kv_bits: int | None) -> None:
    """Compare a divided model with the whole one."""
    spec = spec_of(folder, prefix_cache=PrefixCacheSpec(400_000), kv_bits=kv_bits)
    whole = EngineRunner(spec)
    samplings = [GREEDY, HOT, WARM_TOP_P, SequenceSampling(0.0, repetition_penalty=1.3)]
    with ranked(spec, run_dir, parallel) as runner:
        assert long_and_short(runner) == long_and_short(whole)
        made = objects(runner)
        assert made == objects(whole)
        assert all(json.loads(text)["city"] in ("Paris", "Rome") for text in made)
        conversation = [5] * 300 + runner.alone([5] * 300, GREEDY, 8) + [9]
        again = runner.admit(conversation, GREEDY, 8)
        runner.finish()
        assert runner.started[again].cached_tokens >= 299
        assert runner.tokens[again] == whole.alone(conversation, GREEDY, 8)
        runner.resident.shrink()
        runner.resident.regrow()
        if kv_bits is None:
            run = RankedRun(runner, 1, samplings, preempts=True)
            run.go()
            run.check(Alone(whole))
        runner.resident.rest()


def alone(check: Callable[..., None], *arguments: Any) -> None:
    """Run a check in a process of its own, because a process is in one group in its life."""
    process = get_context("spawn").Process(target=check, args=arguments)
    process.start()
    process.join(900)
    process.kill()
    assert process.exitcode == 0


@pytest.mark.parametrize(
    ("kind", "parallel", "bits", "kv_bits"),
    [
        *(
            pytest.param(
                kind, way, None, None, marks=() if (kind, way) in SHOWN else pytest.mark.conformance
            )
            for kind, ways in DIVISIBLE.items()
            for way in sorted(ways)
        ),
        pytest.param("qwen3", Parallel.TENSOR, 4, None, marks=pytest.mark.conformance),
        pytest.param("llama", Parallel.TENSOR, None, 8, marks=pytest.mark.conformance),
        pytest.param("qwen3_moe", Parallel.PIPELINE, None, 8, marks=pytest.mark.conformance),
    ],
)
def test_two_ranks_make_the_tokens_of_one(
    tmp_path: Path, kind: str, parallel: Parallel, bits: int | None, kv_bits: int | None
) -> None:
    folder = make(tmp_path / "model", kind, bits, wide=kv_bits is not None)
    alone(check, folder, tmp_path, parallel, kv_bits)


def check_real(folder: Path, run_dir: Path) -> None:
    """Compare a real model over three ranks with the whole one."""
    prompts = ["What is the capital of France?", "Count to twenty.", "Write a poem about rain."]

    def answers(runner: EngineRunner) -> list[str]:
        rows = [runner.admit(prompt, GREEDY, 40) for prompt in prompts]
        runner.finish()
        return [runner.text(runner.tokens[row]) for row in rows]

    spec = spec_of(folder, context_length=512)
    expected = answers(EngineRunner(spec))
    with ranked(spec, run_dir, Parallel.TENSOR, 3) as runner:
        assert answers(runner) == expected
    assert "Paris" in expected[0]


@pytest.mark.conformance
def test_three_ranks_of_a_real_model_answer_as_one(tmp_path: Path, smollm2_dir: Path) -> None:
    # It has 9 heads, and 3 for keys and values.
    alone(check_real, smollm2_dir, tmp_path)


def test_the_classes_of_mlx_lm_can_do_what_the_table_says() -> None:
    _, _, page = (ROOT / "docs" / "models.md").read_text().partition("## Divided among ranks")
    for kind, ways in DIVISIBLE.items():
        assert f"`{kind}`" in page.partition("\n## ")[0]
        name = mlx_lm.utils.MODEL_REMAPPING.get(kind, kind)
        module = importlib.import_module(f"mlx_lm.models.{name}")
        if Parallel.TENSOR in ways:
            assert callable(module.Model.shard), kind
        pipelined = any(
            isinstance(one, type) and issubclass(one, PipelineMixin) and one is not PipelineMixin
            for one in vars(module).values()
        )
        assert pipelined or Parallel.PIPELINE not in ways, kind
