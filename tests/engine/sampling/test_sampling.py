"""The row sampler against a slow reference, and a row alone against the same row in company."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from lmx.worker.engine.values import SequenceSampling
from lmx.worker.mlx.sampling.sampler import BatchSampler
from tests.support.references.sampling_reference import chi_square, distribution, edited

# More than once the lanes of a long row, and no multiple of them.
VOCABULARY = 300
# So many that they are drawn by lanes.
MANY = 1280
DRAWS = 12_000
FAR = 4.0
"""Standard deviations. Of all tests here together, one in a thousand would go beyond by chance;
the seeds are fixed."""


def as_list(array: mx.array) -> list[Any]:
    return cast("list[Any]", array.tolist())


def some_logits(seed: int, rows: int = 1, columns: int = VOCABULARY) -> npt.NDArray[np.float32]:
    random = np.random.default_rng(seed)
    return (2 * random.standard_normal((rows, columns))).astype(np.float32)


def drawn_counts(
    logits: npt.NDArray[np.float32], sampling: SequenceSampling, dtype: mx.Dtype = mx.float32
) -> npt.NDArray[np.int_]:
    """Return how often each token comes, over many positions of one seed."""
    sampler = BatchSampler()
    sampler.add(7, sampling, [], None, None)
    counts = np.zeros(logits.shape[-1], np.int_)
    at_once = 2000
    rows = mx.broadcast_to(mx.array(logits).astype(dtype), (at_once, logits.shape[-1]))
    for start in range(0, DRAWS, at_once):
        tokens = sampler.sample(rows, [7] * at_once, range(start, start + at_once))
        counts += np.bincount(np.array(tokens), minlength=len(counts))
    return counts


@pytest.mark.parametrize(
    "sampling",
    [
        SequenceSampling(0.5, seed=1),
        SequenceSampling(1.0, seed=2),
        SequenceSampling(2.0, seed=3),
        SequenceSampling(1.0, top_p=0.7, seed=4),
        SequenceSampling(1.5, top_p=0.999, seed=5),
        SequenceSampling(1.0, top_k=1, seed=6),
        SequenceSampling(1.0, top_k=5, seed=7),
        SequenceSampling(1.0, top_k=64, seed=8),
        SequenceSampling(1.5, top_k=65, seed=9),
        SequenceSampling(1.5, top_k=299, seed=10),
        SequenceSampling(1.5, top_k=5000, seed=11),
        SequenceSampling(1.0, min_p=0.1, seed=12),
        SequenceSampling(1.0, min_p=1.0, seed=13),
        SequenceSampling(1.0, typical_p=0.3, seed=14),
        SequenceSampling(1.5, typical_p=0.95, seed=15),
        SequenceSampling(1.0, top_k=40, top_p=0.8, seed=16),
        SequenceSampling(1.3, top_k=40, top_p=0.8, min_p=0.05, typical_p=0.9, seed=17),
        SequenceSampling(1.3, top_p=0.8, min_p=0.05, typical_p=0.9, seed=18),
        # The most typical tokens without the likeliest: min_p measures by what is left.
        SequenceSampling(2.0, typical_p=0.2, min_p=0.9, seed=19),
    ],
    ids=str,
)
def test_draws_agree_with_the_parameters(sampling: SequenceSampling) -> None:
    logits = some_logits(0)[0]
    expected = distribution(logits.astype(np.float64), sampling)
    assert chi_square(drawn_counts(logits, sampling), expected) < FAR


@pytest.mark.parametrize("columns", [MANY, MANY + 1])
def test_draws_from_many_tokens_agree_with_their_chances(columns: int) -> None:
    logits = some_logits(9, columns=columns)[0]
    expected = distribution(logits.astype(np.float64), SequenceSampling(1.0))
    assert chi_square(drawn_counts(logits, SequenceSampling(1.0, seed=4)), expected) < FAR


@pytest.mark.parametrize(
    "other",
    [{"temperature": 1.1}, {"temperature": 0.95}, {"top_p": 0.97}, {"top_k": 80}, {"min_p": 0.01}],
    ids=str,
)
def test_the_statistic_finds_slightly_wrong_parameters(other: dict[str, Any]) -> None:
    logits = some_logits(0)[0]
    sampling = SequenceSampling(1.0, seed=2)
    expected = distribution(logits.astype(np.float64), replace(sampling, **other))
    assert chi_square(drawn_counts(logits, sampling), expected) > FAR


def test_sixteen_bit_logits_are_drawn_in_32() -> None:
    logits = np.array(mx.array(some_logits(1)[0]).astype(mx.bfloat16).astype(mx.float32))
    expected = distribution(logits.astype(np.float64), SequenceSampling(0.7))
    counts = drawn_counts(logits, SequenceSampling(0.7, seed=3), mx.bfloat16)
    assert chi_square(counts, expected) < FAR


@pytest.mark.parametrize("top_p", [0.0, 1e-9, 0.01])
def test_the_likeliest_token_is_always_kept(top_p: float) -> None:
    logits = some_logits(2)[0]
    counts = drawn_counts(logits, SequenceSampling(1.0, top_p=top_p, seed=1))
    assert counts[logits.argmax()] == DRAWS


def test_a_temperature_near_zero_is_greedy_and_a_small_one_nearly() -> None:
    logits = some_logits(3)[0]
    for temperature in (0.0, 9e-6, 1e-5):
        counts = drawn_counts(logits, SequenceSampling(temperature, seed=1))
        assert counts[logits.argmax()] == DRAWS


def test_unlikely_tokens_of_a_large_vocabulary_are_drawn_as_often_as_they_should() -> None:
    # One token has half of the chances, 100 000 share the rest.
    columns = 100_001
    logits = np.zeros((1, columns), np.float32)
    logits[0, 0] = np.log(columns - 1)
    sampler = BatchSampler()
    sampler.add(0, SequenceSampling(1.0, seed=5), [], None, None)
    tokens: list[int] = []
    for start in range(0, 600, 50):
        rows = mx.broadcast_to(mx.array(logits), (50, columns))
        tokens += as_list(sampler.sample(rows, [0] * 50, range(start, start + 50)))
    ten_parts = np.histogram([t for t in tokens if t > 0], bins=10, range=(1, columns))[0]
    counts = np.array([tokens.count(0), *ten_parts])
    assert chi_square(counts, np.array([0.5] + [0.05] * 10)) < FAR


def mixed_rows() -> list[SequenceSampling]:
    """32 rows that all differ, in every parameter that there is."""
    ends = frozenset({3, 4})
    kinds = [
        SequenceSampling(0.0),
        SequenceSampling(1.0),
        SequenceSampling(0.8, top_p=0.9),
        SequenceSampling(0.8, top_k=20),
        SequenceSampling(1.2, top_k=100, top_p=0.9, min_p=0.02),
        SequenceSampling(1.2, typical_p=0.8),
        SequenceSampling(0.0, repetition_penalty=1.3, logit_bias=((5, 4.0), (6, -100.0))),
        SequenceSampling(
            1.0, presence_penalty=0.7, frequency_penalty=0.4, min_tokens=3, end_ids=ends
        ),
    ]
    return [
        replace(
            kinds[index % len(kinds)],
            temperature=kinds[index % len(kinds)].temperature * (1 + index / 50),
            seed=index * 97 - 40,
        )
        for index in range(32)
    ]


class OddTokens:
    """A constraint: odd tokens alone."""

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        self._mask = np.full(-(-vocabulary // 32), 0xAAAA_AAAA, np.uint32)
        self.taken: list[int] = []

    def mask(self) -> npt.NDArray[np.uint32]:
        return self._mask

    def accept(self, token: int) -> None:
        self.taken.append(token)

    def fork(self) -> "OddTokens":
        return OddTokens()


def generate(rows: Sequence[int], steps: int, columns: int) -> dict[int, list[int]]:
    """Sample some of the mixed rows together, each from its own logits at each step."""
    sampler = BatchSampler()
    everything = mixed_rows()
    for row in rows:
        constraint = OddTokens(columns) if row % 5 == 4 else None
        # Rows are at different places.
        sampler.add(row, everything[row], [row, 9, 10], constraint, None, range(row // 3))
    made: dict[int, list[int]] = {row: [] for row in rows}
    for step in range(steps):
        logits = some_logits(step, len(everything), columns)[list(rows)]
        positions = [step + row // 3 for row in rows]
        tokens = as_list(sampler.sample(mx.array(logits), rows, positions))
        for row, token in zip(rows, tokens, strict=True):
            made[row].append(token)
            sampler.accept(row, token)
    assert sampler.pop_failed() == []
    return made


@pytest.mark.parametrize("columns", [VOCABULARY, MANY])
def test_a_row_draws_the_same_alone_and_among_32_that_all_differ(columns: int) -> None:
    steps = 8
    together = generate(range(32), steps, columns)
    assert len({tuple(tokens) for tokens in together.values()}) == 32
    for row in range(32):
        assert generate([row], steps, columns)[row] == together[row]
    some = [30, 2, 17, 4]
    assert generate(some, steps, columns) == {row: together[row] for row in some}


def test_batches_of_one_kind_draw_what_a_mixed_batch_does() -> None:
    together = generate(range(32), 3, VOCABULARY)
    for kind in range(8):
        alike = list(range(kind, 32, 8))
        assert generate(alike, 3, VOCABULARY) == {row: together[row] for row in alike}


def test_a_row_that_goes_or_comes_changes_nothing_for_the_others() -> None:
    sampler = BatchSampler()
    sampler.add(1, SequenceSampling(1.0, seed=1), [], None, None)
    sampler.add(2, SequenceSampling(1.0, top_p=0.9, seed=2), [], None, None)
    logits = mx.array(some_logits(0, 3))
    first, second = as_list(sampler.sample(logits[:2], [1, 2], [0, 0]))
    sampler.add(3, SequenceSampling(0.0), [], None, None)
    three = as_list(sampler.sample(logits, [1, 2, 3], [0, 0, 0]))
    assert three[:2] == [first, second]
    sampler.remove(1)
    sampler.remove(99)
    # A row that takes a used number is another row.
    sampler.add(1, SequenceSampling(0.0), [], None, None)
    assert as_list(sampler.sample(logits[:2], [1, 2], [0, 0])) == [
        as_list(mx.argmax(logits[0])),
        second,
    ]


def test_other_seeds_and_positions_draw_other_tokens() -> None:
    logits = mx.zeros((40, 1280))
    sampler = BatchSampler()
    for seed in (0, 1, -1, 2**64, 2**70 + 5):
        sampler.add(seed, SequenceSampling(1.0, seed=seed), [], None, None)
    runs = {
        seed: tuple(as_list(sampler.sample(logits, [seed] * 40, range(40))))
        for seed in (0, 1, -1, 2**64, 2**70 + 5)
    }
    # Seeds are taken modulo 2^64.
    assert runs[0] == runs[2**64]
    assert len(set(runs.values())) == 4
    assert all(len(set(run)) > 35 for run in runs.values())


def test_many_positions_of_a_row_at_once_are_those_one_by_one() -> None:
    sampling = SequenceSampling(1.0, top_p=0.9, seed=3, min_tokens=4, end_ids=frozenset(range(150)))
    sampler = BatchSampler()
    sampler.add(0, sampling, [], None, None)
    # More than are made at once for the steps that follow each other.
    steps = 150
    logits = mx.array(some_logits(4, steps))
    at_once = as_list(sampler.sample(logits, [0] * steps, range(steps)))

    def alone(position: int) -> int:
        here = logits[position : position + 1]
        return int(as_list(sampler.sample(here, [0], [position]))[0])

    assert [alone(position) for position in range(steps)] == at_once
    # Drafts that turn out to be wrong leave steps out, and a row that comes back repeats some.
    jumps = [7, 8, 9, 90, 91, 90, 91, 92, 93, 0, 1]
    assert [alone(position) for position in jumps] == [at_once[jump] for jump in jumps]
    assert min(at_once[:4]) >= 150


@pytest.mark.parametrize(
    "sampling",
    [
        SequenceSampling(0.0, repetition_penalty=1.5),
        SequenceSampling(0.0, repetition_penalty=0.7),
        SequenceSampling(0.0, presence_penalty=1.5),
        SequenceSampling(0.0, frequency_penalty=0.3),
        SequenceSampling(0.0, frequency_penalty=-0.2, presence_penalty=0.5),
        SequenceSampling(0.0, logit_bias=((220, -100.0), (3, 2.0), (0, 1.5))),
        SequenceSampling(0.0, min_tokens=150, end_ids=frozenset(range(150, 300))),
        SequenceSampling(
            0.0,
            repetition_penalty=1.2,
            presence_penalty=0.4,
            frequency_penalty=0.1,
            logit_bias=((0, 3.0), (7, 1.0)),
            min_tokens=20,
            end_ids=frozenset({0, 1, 2}),
        ),
    ],
    ids=str,
)
def test_penalties_over_300_tokens(sampling: SequenceSampling) -> None:
    prompt = [0, 5, 5, 17, 200]
    sampler = BatchSampler()
    sampler.add(0, sampling, prompt, None, None)
    sampler.add(1, SequenceSampling(0.0), prompt, None, None)
    answer: list[int] = []
    plain: list[int] = []
    # The same logits at all times but for some noise: what is likely comes again and again. The
    # likeliest are on both sides of 0, which a repetition penalty tells apart.
    base = some_logits(5) - 4
    for step in range(300):
        logits = base + 0.3 * some_logits(100 + step)
        tokens = as_list(sampler.sample(mx.array(np.repeat(logits, 2, 0)), [0, 1], [step, step]))
        assert tokens[0] == edited(logits[0], sampling, prompt, answer).argmax(), step
        assert tokens[1] == logits.argmax()
        for row, token in enumerate(tokens):
            sampler.accept(row, token)
        answer.append(tokens[0])
        plain.append(tokens[1])
    assert answer != plain


def test_penalised_draws_agree_with_penalised_logits() -> None:
    sampling = SequenceSampling(
        1.0, top_p=0.9, seed=4, repetition_penalty=1.4, frequency_penalty=0.5, presence_penalty=0.2
    )
    logits = some_logits(6)[0]
    prompt, answer = [1, 2, 3], [int(token) for token in np.argsort(-logits)[:5]] * 2
    sampler = BatchSampler()
    draws = DRAWS // 3
    for row in range(draws):
        sampler.add(row, replace(sampling, seed=row), prompt, None, None, answer)
    rows = mx.broadcast_to(mx.array(logits), (draws, VOCABULARY))
    drawn = sampler.sample(rows, range(draws), [len(answer)] * draws)
    counts = np.bincount(np.array(drawn), minlength=300)
    expected = distribution(edited(logits, sampling, prompt, answer), sampling)
    assert chi_square(counts, expected) < FAR
    assert chi_square(counts, distribution(edited(logits, sampling, [], []), sampling)) > FAR


def test_edits_of_tokens_outside_the_vocabulary_are_ignored() -> None:
    logits = mx.array(some_logits(7))
    for bias in ((5000, 100.0), (-1, 100.0), (VOCABULARY, 100.0)):
        sampling = SequenceSampling(
            0.0, logit_bias=(bias,), min_tokens=5, end_ids=frozenset({9999})
        )
        sampler = BatchSampler()
        sampler.add(0, sampling, [], None, None)
        assert as_list(sampler.sample(logits, [0], [0])) == [as_list(mx.argmax(logits))]


def test_sampling_leaves_the_logits_as_they_are() -> None:
    logits = mx.array(some_logits(8, 2))
    before = np.array(logits)
    sampler = BatchSampler()
    sampler.add(0, SequenceSampling(1.0, logit_bias=((1, 5.0),)), [], OddTokens(), None)
    sampler.add(1, SequenceSampling(1.0), [], None, None)
    mx.eval(sampler.sample(logits, [0, 1], [0, 0]))
    assert (np.array(logits) == before).all()


def test_only_rows_with_a_constraint_need_their_tokens_on_the_host() -> None:
    sampler = BatchSampler()
    free = [
        SequenceSampling(0.0),
        SequenceSampling(1.0, top_p=0.5, logit_bias=((1, 1.0),)),
        SequenceSampling(0.0, min_tokens=5, end_ids=frozenset({1})),
    ]
    counting = [
        SequenceSampling(0.0, repetition_penalty=1.1),
        SequenceSampling(0.0, presence_penalty=0.1),
        SequenceSampling(0.0, frequency_penalty=-0.1),
    ]
    for row, sampling in enumerate([*free, *counting]):
        sampler.add(row, sampling, [], None, None)
    sampler.add(6, SequenceSampling(0.0), [], OddTokens(), None)
    assert not sampler.needs_tokens(range(6))
    assert sampler.needs_tokens([0, 6])
    assert not sampler.depends_on_tokens([0, 1, 2])
    assert all(sampler.depends_on_tokens([0, row]) for row in (3, 4, 5, 6))
