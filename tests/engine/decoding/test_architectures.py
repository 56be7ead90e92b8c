"""Each kind of architecture, tiny and random: rows in a mixed batch are what they are alone."""

import random
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from lmx.protocol.messages.specs import PrefixCacheSpec
from lmx.worker.engine.values import BeamSearch, SequenceSampling
from tests.support.models.tiny_models import CONFIGS, VOCABULARY, make_tiny_model
from tests.support.rigs.engine_rig import GREEDY, HOT, WARM_TOP_P, EngineRunner, Plain, spec_of

pytestmark = pytest.mark.long

LIKE_ANOTHER = ("qwen3", "qwen3_next")
"""Their caches are those of llama and qwen3_5. `make conformance` has them too."""

KINDS = [
    pytest.param(kind, marks=pytest.mark.conformance if kind in LIKE_ANOTHER else ())
    for kind in sorted(CONFIGS)
]
# Longer than gemma3's window; so that most chunks are of several tokens, and the last one's not.
LENGTHS = (40, 3, 75, 18)
COUNT = 20


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(1000 * seed + length).choices(range(VOCABULARY), k=length)


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Plain:
    return Plain(folder)


@pytest.fixture(scope="module")
def shared(folder: Path) -> EngineRunner:
    return EngineRunner(spec_of(folder))


@pytest.fixture
def runner(shared: EngineRunner) -> Iterator[EngineRunner]:
    yield shared
    shared.clear()


def test_greedy_rows_of_a_mixed_batch_equal_the_model_alone(
    runner: EngineRunner, plain: Plain
) -> None:
    """They join and leave at different times, between rows that sample in other ways."""
    leaving = runner.admit(prompt_of(33), HOT, 500)
    rows = []
    for number, length in enumerate(LENGTHS):
        rows.append(runner.admit(prompt_of(length), GREEDY, COUNT))
        runner.step()
        if number == 1:
            runner.admit(prompt_of(9), WARM_TOP_P, 6)
        if number == 2:
            runner.remove(leaving)
        for _ in range(number):
            runner.step()
    runner.finish()
    answers = [runner.tokens[row] for row in rows]
    assert len({token for answer in answers for token in answer}) > 8, "it repeats itself"
    for length, answer in zip(LENGTHS, answers, strict=True):
        assert len(answer) == COUNT
        assert answer == plain.likeliest(prompt_of(length), answer)


def test_sampled_rows_are_what_they_are_alone(runner: EngineRunner) -> None:
    samplings = [SequenceSampling(1.0, seed=seed, top_k=seed % 3 * 20) for seed in range(4)]
    expected = [runner.alone(prompt_of(20, n), one, 10) for n, one in enumerate(samplings)]
    rows = [runner.admit(prompt_of(20, n), one, 10) for n, one in enumerate(samplings)]
    runner.finish()
    assert [runner.tokens[row] for row in rows] == expected


def test_logprobs_are_the_log_softmax_of_the_logits(runner: EngineRunner, plain: Plain) -> None:
    """In a batch, beside a row that wants none."""
    prompt = prompt_of(30)
    runner.admit(prompt_of(12), GREEDY, 12)
    row = runner.admit(prompt, HOT, 8, top_logprobs=3)
    runner.finish()
    logprobs = plain.logprobs(prompt + runner.tokens[row])
    assert len(runner.scores[row]) == 8
    for offset, (token, scores) in enumerate(
        zip(runner.tokens[row], runner.scores[row], strict=True)
    ):
        right = logprobs[len(prompt) - 1 + offset]
        assert scores.logprob == pytest.approx(right[token].item(), abs=1e-3)
        best = mx.argsort(-right)[:3].tolist()
        assert [token for token, _ in scores.top] == best
        assert [value for _, value in scores.top] == pytest.approx(
            right[mx.array(best)].tolist(), abs=1e-3
        )


def test_a_prompts_logprobs_are_those_of_one_forward(runner: EngineRunner, plain: Plain) -> None:
    """It is taken in chunks: another row decodes."""
    prompt = prompt_of(50)
    other = runner.admit(prompt_of(5), GREEDY, 100)
    row = runner.admit(prompt, GREEDY, 2, top_logprobs=None, prompt_logprobs=1)
    runner.finish_row(row)
    runner.remove(other)
    logprobs = plain.logprobs(prompt)
    scores = runner.started[row].prompt_scores
    right = [logprobs[place, token].item() for place, token in enumerate(prompt[1:])]
    assert [one.logprob for one in scores] == pytest.approx(right, abs=1e-3)
    best = [mx.argmax(logprobs[place]).item() for place in range(len(prompt) - 1)]
    assert [one.top[0][0] for one in scores] == best


def test_a_search_beside_rows_finds_what_it_finds_alone(runner: EngineRunner, plain: Plain) -> None:
    beam = BeamSearch(3, 1.0, frozenset())
    alone = runner.admit(prompt_of(24), GREEDY, 8, beam=beam)
    runner.finish()
    runner.admit(prompt_of(12), HOT, 12)
    row = runner.admit(prompt_of(24), GREEDY, 8, beam=beam)
    runner.finish()
    found = runner.found[row]
    assert [one.tokens for one in found] == [one.tokens for one in runner.found[alone]]
    assert len(found) == 3
    for one in found:
        tokens = list(one.tokens)
        logprobs = plain.logprobs(prompt_of(24) + tokens)
        total = sum(logprobs[23 + place, token].item() for place, token in enumerate(tokens))
        assert one.score == pytest.approx(total / len(tokens), abs=1e-3)


def test_a_next_turn_begins_with_what_the_last_one_computed(folder: Path, plain: Plain) -> None:
    """Prompt and answer are known then, whatever the caches; and the rows of a batch store
    each their own."""
    runner = EngineRunner(spec_of(folder, prefix_cache=PrefixCacheSpec(64 << 20)))
    first = [prompt_of(40, 1), prompt_of(60, 2)]
    rows = [runner.admit(prompt, HOT, 30) for prompt in first]
    runner.finish()
    for prompt, row in zip(first, rows, strict=True):
        assert runner.started[row].cached_tokens == 0
        history = prompt + runner.tokens[row]
        turn = history + prompt_of(10, 3)
        following = runner.admit(turn, GREEDY, COUNT)
        runner.finish()
        assert runner.started[following].cached_tokens == len(history)
        answer = runner.tokens[following]
        assert answer == plain.likeliest(turn, answer)


def test_the_second_answer_to_a_prompt_needs_no_second_prefill(folder: Path, plain: Plain) -> None:
    runner = EngineRunner(spec_of(folder, prefix_cache=PrefixCacheSpec(64 << 20)))
    prompt = prompt_of(90)
    rows = [runner.admit(prompt, GREEDY, 6, cache_salt=salt) for salt in ("a", "a", "b")]
    runner.finish()
    cached = [runner.started[row].cached_tokens for row in rows]
    assert cached[0] == cached[2] == 0
    assert cached[1] >= 80
    answer = runner.tokens[rows[0]]
    assert answer == plain.likeliest(prompt, answer)
    assert runner.tokens[rows[1]] == runner.tokens[rows[2]] == answer
