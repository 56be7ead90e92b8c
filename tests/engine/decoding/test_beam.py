"""Beam search against the same search without caches or arrays, and against all that there is."""

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from mlx_vlm.utils import load

from lmx.worker.engine.values import BeamSearch, Constraint, Hypothesis, SequenceSampling
from lmx.worker.mlx.decoding import beam as beam_search
from lmx.worker.mlx.decoding.beam import BeamGroup, score
from lmx.worker.mlx.model.forward import Forward
from lmx.worker.mlx.model.library import open_checkpoint
from lmx.worker.mlx.sampling.filters import candidates
from tests.support.models.text_models import make_text_model
from tests.support.models.tiny_models import make_tiny_model
from tests.support.references.sampling_reference import edited
from tests.support.rigs.engine_rig import EngineRunner, spec_of

Logprobs = Callable[[tuple[int, ...]], npt.NDArray[np.float64]]
"""The logprobs after an answer so far."""
Allowed = Callable[[tuple[int, ...]], set[int] | None]
VOCABULARY = 12
END = 0
PLAIN = SequenceSampling(1.0)


class History:
    """A cache that holds what each row was fed: tokens, and nothing computed of them."""

    def __init__(self, rows: list[tuple[int, ...]]) -> None:
        self.rows = rows

    @property
    def state(self) -> list[mx.array]:
        return []

    @staticmethod
    def merge(caches: "list[History]") -> "History":
        return History([row for cache in caches for row in cache.rows])

    def filter(self, indices: mx.array) -> None:
        self.rows = [self.rows[index] for index in np.array(indices)]


def table_logits(answer: tuple[int, ...], scale: float = 1.5) -> npt.NDArray[np.float32]:
    """A model that looks the logits of each answer up in a table of random ones."""
    random = np.random.default_rng([7, *answer])
    return (scale * random.standard_normal(VOCABULARY)).astype(np.float32)


def table_logprobs(answer: tuple[int, ...]) -> npt.NDArray[np.float64]:
    return log_softmax(table_logits(answer))


def log_softmax(logits: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    exact = logits.astype(np.float64)
    shifted = exact - exact.max()
    logprobs: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return logprobs


def table_forward(tokens: mx.array, cache: list[Any]) -> mx.array:
    fed = np.array(tokens)[:, 0].tolist()
    cache[0].rows = [(*row, token) for row, token in zip(cache[0].rows, fed, strict=True)]
    return mx.array(np.stack([table_logits(row) for row in cache[0].rows]))


def search(group: BeamGroup) -> list[Hypothesis]:
    for _ in range(100):
        found = group.step()
        if found is not None:
            return list(found)
    raise AssertionError("the search does not end")


def table_search(
    beam: BeamSearch,
    max_tokens: int,
    constraint: Constraint | None = None,
    top_logprobs: int | None = None,
    sampling: SequenceSampling = PLAIN,
    prompt: Sequence[int] = (),
    *,
    together: bool = True,
) -> list[Hypothesis]:
    first = mx.array(table_logits(())[None])
    return search(
        BeamGroup(
            table_forward,
            [History([()])],
            first,
            beam,
            max_tokens,
            constraint,
            top_logprobs,
            sampling,
            prompt,
            together=together,
        )
    )


def reference_search(
    logprobs: Logprobs, beam: BeamSearch, max_tokens: int, allowed: Allowed = lambda _answer: None
) -> list[tuple[tuple[int, ...], float]]:
    """Beam search over whole answers, all continuations of all beams sorted in each step."""
    running: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    kept: list[tuple[tuple[int, ...], float]] = []
    for length in range(1, max_tokens + 1):
        everything = []
        for answer, total in running:
            may = allowed(answer)
            everything += [
                ((*answer, token), total + logprob)
                for token, logprob in enumerate(logprobs(answer))
                if may is None or token in may
            ]
        everything.sort(key=lambda one: -one[1])
        over = [
            (answer, total / length**beam.length_penalty)
            for answer, total in everything[: beam.width]
            if answer[-1] in beam.end_ids or length == max_tokens
        ]
        kept = sorted([*kept, *over], key=lambda one: -one[1])[: beam.width]
        running = [one for one in everything if one[0][-1] not in beam.end_ids][: beam.width]
        if not running:
            break
        best = running[0][1] / length**beam.length_penalty
        if len(kept) == beam.width and best <= kept[-1][1]:
            break
    return kept


def assert_same(
    found: Sequence[Hypothesis], expected: Sequence[tuple[tuple[int, ...], float]]
) -> None:
    assert [tuple(one.tokens) for one in found] == [answer for answer, _ in expected]
    assert [one.score for one in found] == pytest.approx([one[1] for one in expected], abs=1e-3)


@pytest.mark.parametrize("width", [1, 2, 3, 8])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("ends", [(), (END,), tuple(range(9))])
def test_searches_as_without_a_cache(
    width: int, length_penalty: float, ends: tuple[int, ...]
) -> None:
    beam = BeamSearch(width, length_penalty, frozenset(ends))
    for max_tokens in (1, 2, 9):
        expected = reference_search(table_logprobs, beam, max_tokens)
        assert len(expected) == min(width, VOCABULARY**max_tokens)
        assert_same(table_search(beam, max_tokens), expected)
        assert_same(table_search(beam, max_tokens, together=False), expected)


def test_many_end_tokens_cost_each_beam_no_more_than_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    width, ends, vocabulary = 4, frozenset(range(0, 60, 2)), 200
    counts: list[int] = []

    def counted(logits: mx.array, count: int) -> tuple[mx.array, mx.array]:
        counts.append(count)
        return candidates(logits, count)

    def logits(answer: tuple[int, ...]) -> npt.NDArray[np.float32]:
        random = np.random.default_rng([7, *answer])
        likely = random.standard_normal(vocabulary).astype("f4")
        likely[sorted(ends)] += 1
        return likely

    def forward(tokens: mx.array, cache: list[Any]) -> mx.array:
        fed = np.array(tokens)[:, 0].tolist()
        cache[0].rows = [(*row, token) for row, token in zip(cache[0].rows, fed, strict=True)]
        return mx.array(np.stack([logits(row) for row in cache[0].rows]))

    monkeypatch.setattr(beam_search, "candidates", counted)
    beam = BeamSearch(width, 1.0, ends)
    first = mx.array(logits(())[None])
    group = BeamGroup(
        forward, [History([()])], first, beam, 6, None, None, PLAIN, (), together=True
    )
    assert_same(search(group), reference_search(lambda one: log_softmax(logits(one)), beam, 6))
    assert set(counts) == {width + len(ends)}


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_wide_search_finds_the_best_answer_that_there_is(length_penalty: float) -> None:
    def chance(answer: tuple[int, ...]) -> float:
        total = sum(table_logprobs(answer[:n])[token] for n, token in enumerate(answer))
        return float(total / len(answer) ** length_penalty)

    answers = {
        (*answer[: answer.index(END)], END) if END in answer else answer
        for answer in itertools.product(range(VOCABULARY), repeat=3)
    }
    best = max(answers, key=chance)
    found = table_search(BeamSearch(VOCABULARY**3, length_penalty, frozenset({END})), 3)
    assert_same(found[:1], [(best, chance(best))])
    assert len(found) == len(answers)


@pytest.mark.parametrize("end", range(VOCABULARY))
@pytest.mark.parametrize("length_penalty", [-2.0, 1.0, 5.0])
def test_one_beam_is_greedy(end: int, length_penalty: float) -> None:
    greedy: list[int] = []
    while len(greedy) < 8 and end not in greedy:
        greedy.append(int(table_logits(tuple(greedy)).argmax()))
    found = table_search(BeamSearch(1, length_penalty, frozenset({end})), 8)
    assert [one.tokens for one in found] == [greedy]


def test_of_equally_likely_continuations_the_lower_tokens_come_first() -> None:
    def even(tokens: mx.array, _cache: list[Any]) -> mx.array:
        return mx.zeros((tokens.shape[0], 4))

    beam = BeamSearch(3, 1.0, frozenset())
    first = mx.zeros((1, 4))
    found = search(
        BeamGroup(even, [History([()])], first, beam, 2, None, None, PLAIN, (), together=True)
    )
    assert [one.tokens for one in found] == [[0, 0], [0, 1], [0, 2]]
    # An end that is as likely as all else is the end.
    one = BeamSearch(1, 1.0, frozenset({0}))
    group = BeamGroup(even, [History([()])], first, one, 5, None, None, PLAIN, (), together=True)
    assert [one.tokens for one in group.step() or ()] == [[0]]


def test_a_higher_length_penalty_brings_longer_answers() -> None:
    short, long = (
        [len(one.tokens) for one in table_search(BeamSearch(4, penalty, frozenset({1})), 9)]
        for penalty in (0.0, 4.0)
    )
    assert max(short) < min(long)


def test_scores_of_very_long_answers_and_penalties_are_finite() -> None:
    assert score(-5.0, 4, 0.5) == pytest.approx(-2.5)
    assert math.isfinite(score(-1e5, 10**6, -1000.0))
    assert score(-1e5, 10**6, 1000.0) == pytest.approx(0.0)


@pytest.mark.parametrize("top", [None, 0, 3])
def test_scores_of_each_token(top: int | None) -> None:
    beam = BeamSearch(3, 1.0, frozenset({END}))
    for one in table_search(beam, 6, top_logprobs=top):
        if top is None:
            assert one.scores == []
            continue
        assert len(one.scores) == len(one.tokens)
        total = sum(scores.logprob for scores in one.scores)
        assert one.score == pytest.approx(total / len(one.tokens), abs=1e-5)
        for index, (token, scores) in enumerate(zip(one.tokens, one.scores, strict=True)):
            logprobs = table_logprobs(tuple(one.tokens[:index]))
            assert scores.logprob == pytest.approx(logprobs[token], abs=1e-5)
            best = np.argsort(-logprobs)[:top]
            assert [token for token, _ in scores.top] == best.tolist()
            assert [value for _, value in scores.top] == pytest.approx(logprobs[best], abs=1e-5)


def rising(answer: tuple[int, ...]) -> set[int] | None:
    """Each token above the last one, and the end after four; the first is free."""
    if not answer:
        return None
    if len(answer) == 4:
        return {END}
    return set(range(answer[-1] + 1, VOCABULARY)) or {END}


class Grammar:
    """A constraint of a function of the answer; it notices whose tokens it was given."""

    def __init__(self, allowed: Allowed, answer: tuple[int, ...] = ()) -> None:
        self._allowed = allowed
        self.answer = answer

    def mask(self) -> npt.NDArray[np.uint32] | None:
        may = self._allowed(self.answer)
        if may is None:
            return None
        return np.array([sum(1 << token for token in may)], np.uint32)

    def accept(self, token: int) -> None:
        may = self._allowed(self.answer)
        assert may is None or token in may
        self.answer = (*self.answer, token)

    def fork(self) -> "Grammar":
        return Grammar(self._allowed, self.answer)


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("max_tokens", [3, 8])
def test_every_beam_keeps_to_the_constraint(width: int, max_tokens: int) -> None:
    beam = BeamSearch(width, 1.0, frozenset({END}))
    expected = reference_search(table_logprobs, beam, max_tokens, rising)
    assert expected
    found = table_search(beam, max_tokens, Grammar(rising), 2)
    assert_same(found, expected)
    # The alternatives are what the model would say, allowed or not.
    for one in found:
        for index, scores in enumerate(one.scores):
            best = np.argsort(-table_logprobs(tuple(one.tokens[:index])))[:2]
            assert [token for token, _ in scores.top] == best.tolist()


PROMPT = (3, 5, 5, 7)
EDITS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.7},
    "repetition, invited": {"repetition_penalty": 0.6},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.9},
    "frequency, invited": {"frequency_penalty": -0.8},
    "bias": {"logit_bias": ((4, 2.0), (END, -1.0), (6, -100.0))},
    "no end yet": {"min_tokens": 4},
    "all of them": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.4,
        "logit_bias": ((2, 1.0),),
        "min_tokens": 3,
    },
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 3.0])
def test_each_beam_is_penalised_by_its_own_text(
    name: str, width: int, length_penalty: float
) -> None:
    sampling = SequenceSampling(1.0, end_ids=frozenset({END}), **EDITS[name])

    def logprobs(answer: tuple[int, ...]) -> npt.NDArray[np.float64]:
        return log_softmax(
            edited(table_logits(answer).astype(np.float64), sampling, PROMPT, answer)
        )

    beam = BeamSearch(width, length_penalty, frozenset({END}))
    expected = reference_search(logprobs, beam, 9)
    assert expected != reference_search(table_logprobs, beam, 9)
    found = table_search(beam, 9, sampling=sampling, prompt=PROMPT, top_logprobs=2)
    assert_same(found, expected)
    for one in found:
        # What is told of a token is the model's own word of it.
        for index, (token, scores) in enumerate(zip(one.tokens, one.scores, strict=True)):
            own = table_logprobs(tuple(one.tokens[:index]))
            assert scores.logprob == pytest.approx(own[token], abs=1e-5)
            assert [each for each, _ in scores.top] == np.argsort(-own)[:2].tolist()


def test_penalties_go_with_a_grammar() -> None:
    sampling = SequenceSampling(1.0, presence_penalty=1.0, repetition_penalty=1.2)
    beam = BeamSearch(3, 1.0, frozenset({END}))
    expected = reference_search(
        lambda answer: log_softmax(
            edited(table_logits(answer).astype(np.float64), sampling, PROMPT, answer)
        ),
        beam,
        9,
        rising,
    )
    assert_same(table_search(beam, 9, Grammar(rising), sampling=sampling, prompt=PROMPT), expected)


def test_fewer_hypotheses_where_a_constraint_allows_no_more() -> None:
    def choice(answer: tuple[int, ...]) -> set[int]:
        return {(): {3, 5}, (3,): {END}, (5,): {6}, (5, 6): {END}}[answer]

    found = table_search(BeamSearch(4, 0.0, frozenset({END})), 10, Grammar(choice))
    assert sorted(list(one.tokens) for one in found) == [[3, END], [5, 6, END]]


def test_a_search_that_can_not_continue_fails() -> None:
    beam = BeamSearch(2, 1.0, frozenset({END}))
    with pytest.raises(ValueError, match="allows no token"):
        table_search(beam, 5, Grammar(lambda answer: {4} if not answer else set()))


@pytest.fixture(scope="module", params=["llama", "gemma3", "qwen3_next"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Forward:
    folder: Path = make_tiny_model(tmp_path_factory.mktemp("tiny"), request.param)
    model, _ = load(str(folder))
    return Forward(model)


@pytest.mark.parametrize(
    ("width", "penalised", "together"),
    [
        (4, False, True),
        (4, True, True),
        (4, False, False),
        (1, False, False),
        pytest.param(1, False, True, marks=pytest.mark.conformance),
        pytest.param(1, True, True, marks=pytest.mark.conformance),
    ],
)
def test_a_model_s_caches_follow_the_beams(
    tiny: Forward, width: int, penalised: bool, together: bool
) -> None:
    # Longer than gemma3's window of 16 before it begins, and when it ends.
    prompt = [(7 * n) % 250 for n in range(21)]
    sampling = PLAIN
    if penalised:
        sampling = SequenceSampling(1.0, repetition_penalty=1.3, frequency_penalty=0.5)

    def whole(answer: tuple[int, ...]) -> npt.NDArray[np.float64]:
        logits = tiny.decode(mx.array([[*prompt, *answer]]), tiny.new_cache(), None)
        exact = np.array(logits[0, -1].astype(mx.float32), np.float64)
        return log_softmax(edited(exact, sampling, prompt, answer))

    def forward(tokens: mx.array, cache: list[Any]) -> mx.array:
        return tiny.decode(tokens, cache, None)[:, -1, :]

    # Tokens that some beams end with, and others don't.
    likely = np.argsort(-whole(()))
    beam = BeamSearch(width, 1.0, frozenset(int(token) for token in likely[3:40:6]))
    expected = reference_search(whole, beam, 12)
    assert width == 1 or max(len(answer) for answer, _ in expected) > 4
    cache = tiny.new_cache()
    first = tiny.decode(mx.array([prompt]), cache, None)[:, -1, :]
    group = BeamGroup(
        forward, cache, first, beam, 12, None, None, sampling, prompt, together=together
    )
    assert_same(search(group), expected)


@pytest.mark.parametrize("model_type", ["gemma2", "internlm3", "llama4"])
def test_beams_where_rows_take_turns_are_those_without_a_cache(
    tmp_path: Path, model_type: str
) -> None:
    folder = make_text_model(tmp_path, model_type)
    runner = EngineRunner(spec_of(folder))
    # Longer than a chunk of llama4.
    prompt = [(7 * n) % 250 for n in range(21)]
    beam = BeamSearch(3, 1.0, frozenset())
    row = runner.admit(prompt, PLAIN, 6, beam=beam)
    runner.finish()
    alone = Forward(open_checkpoint(folder).model)

    def whole(answer: tuple[int, ...]) -> npt.NDArray[np.float64]:
        logits = alone.decode(mx.array([[*prompt, *answer]]), alone.new_cache(), None)
        return log_softmax(np.array(logits[0, -1].astype(mx.float32)))

    assert_same(runner.found[row], reference_search(whole, beam, 6))


class _Word:
    """Allows one token, and then the end alone."""

    def __init__(self) -> None:
        self._allowed = [3, 0]

    def mask(self) -> npt.NDArray[np.uint32]:
        return np.array([1 << self._allowed[0]], np.uint32)

    def accept(self, token: int) -> None:
        assert token == self._allowed.pop(0)

    def fork(self) -> "_Word":
        copied = _Word()
        copied._allowed = list(self._allowed)
        return copied


def test_an_answer_that_a_constraint_ends_is_whole_before_the_least_tokens() -> None:
    def forward(tokens: mx.array, _: Any) -> mx.array:
        return mx.zeros((tokens.shape[0], 8))

    sampling = SequenceSampling(0.0, min_tokens=5, end_ids=frozenset({0}))
    beam = BeamSearch(2, 1.0, frozenset({0}))
    group = BeamGroup(
        forward, [History([()])], mx.zeros((1, 8)), beam, 9, _Word(), None, sampling, (),
        together=True,
    )  # fmt: skip
    (found,) = search(group)
    assert tuple(found.tokens) == (3, 0)
