"""A row that was preempted goes on where it was: its tokens are those that it has alone."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.messages.data import Structure, Thinking
from lmx.protocol.messages.specs import PrefixCacheSpec, SpeculationSpec
from lmx.protocol.states import StructureKind
from lmx.worker.engine.values import BeamSearch, ConstraintSource, SequenceSampling
from tests.support.models.tiny_models import make_tiny_model
from tests.support.models.vlm_models import make_vlm_model
from tests.support.rigs.conformance import without_processors
from tests.support.rigs.engine_rig import GREEDY, HOT, EngineRunner, Plain, spec_of

PROMPT = [token % 90 + 1 for token in range(100)]
OTHER = list(range(1, 40))
SAMPLINGS = [
    GREEDY,
    HOT,
    SequenceSampling(
        1.0, 0.95, 77, repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.4
    ),
    SequenceSampling(0.0, repetition_penalty=1.2, frequency_penalty=0.5),
]


@pytest.fixture(scope="module", params=["llama", "qwen3_next"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), request.param)


@pytest.fixture(params=["prefix cache", "speculation"])
def runner(request: pytest.FixtureRequest, folder: Path) -> Iterator[EngineRunner]:
    kinds: dict[str, dict[str, Any]] = {
        "prefix cache": {"prefix_cache": PrefixCacheSpec(64 << 20)},
        "speculation": {"speculation": SpeculationSpec()},
    }
    yield EngineRunner(spec_of(folder, max_decode_stall_s=10, **kinds[request.param]))


def preempt(runner: EngineRunner, sequence_id: int) -> Callable[[], None]:
    """Take a row out; returns what brings it back."""
    asked = runner.requests[sequence_id]
    runner.flush()
    made = runner.generator.preempt(sequence_id)
    assert made is not None
    assert list(made) == runner.tokens[sequence_id], "what it has returned, and no more"
    back = replace(
        asked,
        prompt=[*asked.prompt, *made],
        max_tokens=asked.max_tokens - len(made),
        generated_tokens=len(made),
    )
    return lambda: runner.generator.admit(back)


def run_until(runner: EngineRunner, sequence_id: int, tokens: int) -> None:
    runner.until(lambda: len(runner.tokens[sequence_id]) >= tokens)


def test_a_preempted_row_has_the_tokens_and_scores_that_it_has_alone(runner: EngineRunner) -> None:
    kinds = [replace(one, min_tokens=20, end_ids=frozenset({3, 4})) for one in SAMPLINGS]
    expected = []
    for sampling in kinds:
        expected.append(runner.admit(PROMPT, sampling, 24, top_logprobs=2))
        runner.finish()
    rows = [runner.admit(PROMPT, sampling, 24, top_logprobs=2) for sampling in kinds[:-1]]
    rows.append(runner.admit(PROMPT, kinds[-1], 24, top_logprobs=2, cache_salt="another"))
    for tokens in (1, 15):
        for row in rows:
            run_until(runner, row, tokens)
        stays, *leaving = rows if tokens == 1 else reversed(rows)
        come_back = [preempt(runner, row) for row in leaving]
        run_until(runner, stays, len(runner.tokens[stays]) + 2)
        for back in come_back:
            back()
    runner.finish()
    for row, alone in zip(rows, expected, strict=True):
        assert runner.tokens[row] == runner.tokens[alone], runner.requests[row].sampling
        scores = [[score.logprob for score in runner.scores[one]] for one in (row, alone)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-3)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen3_5"])
def test_the_logprobs_of_rows_that_come_back_are_those_of_one_forward(
    tmp_path: Path, kind: str
) -> None:
    """Of the model alone: just after a join, beside a place that is free, with and without what was
    stored."""
    folder = make_tiny_model(tmp_path, kind)
    runner = EngineRunner(
        spec_of(folder, max_decode_stall_s=60, prefix_cache=PrefixCacheSpec(64 << 20))
    )
    prompts = [random.Random(length).choices(range(1, 90), k=length) for length in (70, 76, 73)]
    rows = [runner.admit(prompt, HOT, 80, top_logprobs=0) for prompt in prompts[:2]]
    leaving = runner.admit(OTHER * 2, HOT, 400)
    rows.append(runner.admit(prompts[2], HOT, 80, top_logprobs=0))
    run_until(runner, rows[2], 1)
    back = preempt(runner, rows[2])
    run_until(runner, rows[0], 8)
    back()
    run_until(runner, rows[2], 24)
    runner.remove(leaving)
    come_back = [preempt(runner, row) for row in rows[1:]]
    run_until(runner, rows[0], len(runner.tokens[rows[0]]) + 3)
    for back in come_back:
        back()
    run_until(runner, rows[1], len(runner.tokens[rows[1]]) + 2)
    assert runner.started[rows[1]].cached_tokens > len(prompts[1])
    back = preempt(runner, rows[1])
    for _ in range(30):
        runner.resident.shrink()
    back()
    runner.finish()
    assert runner.started[rows[1]].cached_tokens == 0
    plain = Plain(folder)
    for prompt, row in zip(prompts, rows, strict=True):
        tokens = runner.tokens[row]
        assert len(tokens) == len(runner.scores[row]) == 80
        right = plain.logprobs(prompt + tokens)
        expected = [
            right[len(prompt) - 1 + place, token].item() for place, token in enumerate(tokens)
        ]
        assert [one.logprob for one in runner.scores[row]] == pytest.approx(expected, abs=1e-3)


def test_a_row_is_preempted_in_the_middle_of_its_prompt(folder: Path) -> None:
    runner = EngineRunner(spec_of(folder, prefix_cache=PrefixCacheSpec(64 << 20)))
    expected = runner.alone(PROMPT * 4, HOT, 6)
    other = runner.admit(OTHER, HOT, 400)
    run_until(runner, other, 1)
    row = runner.admit(PROMPT * 4, HOT, 6, cache_salt="cold")
    while not (step := runner.step()).prefill_tokens:
        pass
    assert row not in runner.started
    assert (step.read, step.cached_tokens) == (row, 0)
    preempt(runner, row)()
    runner.finish_row(row)
    assert runner.tokens[row] == expected


def test_an_answer_is_no_part_of_a_prompt_that_is_read_at_once(tmp_path: Path) -> None:
    folder = make_vlm_model(tmp_path, "paligemma")
    with without_processors():
        runner = EngineRunner(spec_of(folder, prefix_cache=PrefixCacheSpec(64 << 20)))
    expected = runner.admit(PROMPT, GREEDY, 12, top_logprobs=0)
    runner.finish()
    row = runner.admit(PROMPT, GREEDY, 12, top_logprobs=0)
    run_until(runner, row, 5)
    preempt(runner, row)()
    runner.finish()
    assert runner.tokens[row] == runner.tokens[expected]
    scores = [[score.logprob for score in runner.scores[one]] for one in (row, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)
    longer = [*PROMPT, *runner.tokens[row], *OTHER]
    assert runner.alone(longer) == runner.alone(longer, cache_salt="cold")


def test_a_constraint_continues_in_its_state(folder: Path) -> None:
    runner = EngineRunner(spec_of(folder, max_decode_stall_s=10))
    source = ConstraintSource(
        Structure(StructureKind.REGEX, "(ab|cd){12}[0-9]{6}", "regex"), None, Thinking(), False
    )
    maker = runner.generator.constrain(source)
    assert maker is not None
    expected = runner.alone(OTHER, HOT, 40, constraint=maker())
    row = runner.admit(OTHER, HOT, 40, constraint=maker())
    for tokens in (1, 5, 9):
        run_until(runner, row, tokens)
        preempt(runner, row)()
    runner.finish()
    assert runner.tokens[row] == expected
    assert not runner.failed


def test_all_that_a_preempted_row_computed_is_found_in_the_prefix_cache(folder: Path) -> None:
    """A recurrent state too, which is right only after all of its tokens."""
    cache = PrefixCacheSpec(64 << 20)
    runner = EngineRunner(spec_of(folder, max_decode_stall_s=10, prefix_cache=cache))
    other = runner.admit(OTHER, HOT, 400)
    row = runner.admit(PROMPT, HOT, 60)
    run_until(runner, row, 30)
    come_back = preempt(runner, row)
    tokens = len(runner.tokens[row])
    del runner.started[row]
    come_back()
    runner.until(lambda: row in runner.started)
    assert runner.started[row].cached_tokens == len(PROMPT) + tokens - 1
    runner.remove(other)
    runner.finish()


def test_a_search_is_not_preempted(folder: Path) -> None:
    runner = EngineRunner(spec_of(folder, max_decode_stall_s=10))
    row = runner.admit(OTHER, GREEDY, 10, beam=BeamSearch(2, 1.0, frozenset({3})))
    runner.until(lambda: row in runner.started)
    assert runner.generator.preempt(row) is None
    runner.finish()
    assert len(runner.found[row]) == 2
