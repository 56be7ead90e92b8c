"""A row that was preempted goes on where it was: its tokens are those that it has alone."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lmx.protocol.messages.specs import PrefixCacheSpec
from tests.support.models.tiny_models import make_tiny_model
from tests.support.models.vlm_models import make_vlm_model
from tests.support.rigs.conformance import without_processors
from tests.support.rigs.engine_rig import GREEDY, HOT, EngineRunner, Plain, spec_of

PROMPT = [token % 90 + 1 for token in range(100)]
OTHER = list(range(1, 40))


@pytest.fixture(scope="module", params=["llama", "qwen3_next"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), request.param)


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
