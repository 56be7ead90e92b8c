"""Penalties, biases and bans on the device, against the same in numpy, bit by bit."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from lmx.worker.engine.values import SequenceSampling
from lmx.worker.mlx.sampling import penalties
from lmx.worker.mlx.sampling.penalties import BatchEdits, RowEdits
from lmx.worker.mlx.sampling.sampler import BatchSampler
from tests.support.references.sampling_reference import edited
from tests.support.rigs.budgets import examples
from tests.support.rigs.device import near

VOCABULARY = 12
Floats = npt.NDArray[np.float32]

tokens = st.integers(0, VOCABULARY - 1)
# Numbers of which products and sums are rounded.
factors = st.sampled_from([1.0, 1.0, 1.1, 0.7])
offsets = st.sampled_from([0.0, 0.0, 0.3, -0.7, 1.9])
samplings = st.builds(
    SequenceSampling,
    st.just(0.0),
    repetition_penalty=factors,
    presence_penalty=offsets,
    frequency_penalty=offsets,
    # Tokens outside the vocabulary too.
    logit_bias=st.lists(st.tuples(st.integers(-1, VOCABULARY + 2), offsets), max_size=3).map(tuple),
    min_tokens=st.sampled_from([0, 0, 2, 5]),
    end_ids=st.frozensets(st.integers(0, VOCABULARY + 2), max_size=3),
)


def some_logits(random: np.random.Generator, rows: int) -> Floats:
    return (0.7 * random.standard_normal((rows, VOCABULARY))).astype(np.float32)


def expected(
    logits: Floats, sampling: SequenceSampling, prompt: Sequence[int], answer: Sequence[int]
) -> Floats:
    """The reference, with the roundings of float32."""
    one = np.float32
    made = logits.copy()
    times = np.bincount(np.array(answer, np.int_), minlength=VOCABULARY).astype(one)
    bias = dict(sampling.logit_bias)
    for token in range(VOCABULARY):
        if sampling.repetition_penalty != 1 and token in {*prompt, *answer}:
            penalty = one(sampling.repetition_penalty)
            made[token] = made[token] / penalty if made[token] > 0 else made[token] * penalty
        lost = one(sampling.frequency_penalty) * times[token]
        if times[token]:
            lost += one(sampling.presence_penalty)
        made[token] += one(bias.get(token, 0.0)) - lost
        if len(answer) < sampling.min_tokens and token in sampling.end_ids:
            made[token] = -np.inf
    return made


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(samplings, st.lists(tokens), st.lists(tokens, max_size=4)), min_size=1, max_size=4
    ),
    st.integers(0, 5),
    st.integers(0, 2**32),
)
def test_edits_are_those_of_the_reference(
    rows: list[tuple[SequenceSampling, list[int], list[int]]], steps: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    edits = BatchEdits([RowEdits(*row) for row in rows], range(len(rows)), VOCABULARY)
    answers = [list(made) for _, _, made in rows]
    for _ in range(steps + 1):
        logits = some_logits(random, len(rows))
        banned = [
            len(answer) < row[0].min_tokens for answer, row in zip(answers, rows, strict=True)
        ]
        applied = np.array(edits.apply(mx.array(logits), banned))
        for index, ((sampling, prompt, _), answer) in enumerate(zip(rows, answers, strict=True)):
            want = expected(logits[index], sampling, prompt, answer)
            assert (applied[index] == want).all()
            biases = dict(sampling.logit_bias).items()
            inside = tuple(pair for pair in biases if 0 <= pair[0] < VOCABULARY)
            exact = edited(logits[index], replace(sampling, logit_bias=inside), prompt, answer)
            np.testing.assert_allclose(applied[index], exact, atol=near(1e-5))
        some = [bool(random.integers(4)) for _ in rows]
        drawn = random.integers(VOCABULARY, size=len(rows))
        edits.add_tokens(mx.array(drawn), None if all(some) else some)
        for answer, token, takes in zip(answers, drawn.tolist(), some, strict=True):
            if takes:
                answer.append(token)


@given(
    st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4), min_size=1, max_size=5),
    st.lists(tokens, max_size=4),
    st.integers(0, 2**32),
)
def test_beams_count_the_tokens_of_their_own_past(
    chosen: list[list[int]], prompt: list[int], seed: int
) -> None:
    random = np.random.default_rng(seed)
    sampling = SequenceSampling(
        0.0,
        repetition_penalty=1.3,
        frequency_penalty=0.3,
        presence_penalty=0.1,
        logit_bias=((3, 0.7), (5, -1.0)),
        min_tokens=9,
        end_ids=frozenset({4}),
    )
    answers: list[list[int]] = [[]]
    edits = BatchEdits([RowEdits(sampling, prompt, ())], [0], VOCABULARY)
    for picks in chosen:
        parents = [pick % len(answers) for pick in picks]
        drawn = random.integers(VOCABULARY, size=len(parents))
        edits = edits.continued(parents)
        edits.add_tokens(mx.array(drawn))
        answers = [
            [*answers[parent], token] for parent, token in zip(parents, drawn.tolist(), strict=True)
        ]
        logits = some_logits(random, len(answers))
        applied = np.array(edits.apply(mx.array(logits), [True] * len(answers)))
        for index, answer in enumerate(answers):
            assert (applied[index] == expected(logits[index], sampling, prompt, answer)).all()


@dataclass
class Life:
    """A row between its beginning and its end."""

    sampling: SequenceSampling
    prompt: list[int]
    answer: list[int]
    unread: bool = False
    """Whether the sampler has not got the last token of the answer."""


@dataclass
class Lives:
    """Rows that come and go in two batches, and tokens that the host reads late or at once."""

    sampler: BatchSampler = field(default_factory=BatchSampler)
    rows: dict[int, Life] = field(default_factory=dict)
    batches: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))

    def step(self, batch: list[int], random: np.random.Generator) -> None:
        """Draw a token for each row of a batch, and compare."""
        logits = some_logits(random, len(batch))
        rows = [self.rows[sequence_id] for sequence_id in batch]
        last = mx.array([row.answer[-1] if row.answer else 0 for row in rows])
        drawn = self.sampler.sample(
            mx.array(logits), batch, [len(row.answer) for row in rows], last
        )
        for sequence_id, row, of_row, token in zip(
            batch, rows, logits, cast("list[int]", drawn.tolist()), strict=True
        ):
            assert token == expected(of_row, row.sampling, row.prompt, row.answer).argmax()
            self.read(sequence_id)
            row.answer.append(token)
            row.unread = True

    def read(self, sequence_id: int) -> None:
        row = self.rows[sequence_id]
        if row.unread:
            self.sampler.accept(sequence_id, row.answer[-1])
            row.unread = False


rows_to_add = st.tuples(
    st.just(SequenceSampling(0.0)) | samplings,
    st.lists(tokens, max_size=6),
    st.lists(tokens, max_size=3),
    st.integers(0, 1),
)
actions = st.one_of(
    st.tuples(st.just("add"), rows_to_add),
    st.tuples(st.just("add"), rows_to_add),
    st.tuples(st.just("remove"), st.integers(0, 20)),
    st.tuples(st.just("read"), st.integers(0, 9)),
    st.tuples(st.just("force"), st.tuples(st.integers(0, 9), st.lists(tokens, max_size=3))),
    *[st.tuples(st.just("step"), st.integers(0, 1))] * 6,
)


@settings(max_examples=examples(100))
@given(st.lists(actions, min_size=15, max_size=60), st.integers(0, 2**32))
def test_rows_that_join_and_leave_count_their_own_tokens(
    acts: list[tuple[str, Any]], seed: int
) -> None:
    random = np.random.default_rng(seed)
    most, penalties._MOST_TAKEN = penalties._MOST_TAKEN, 4  # type: ignore[misc]
    try:
        _live(acts, random)
    finally:
        penalties._MOST_TAKEN = most  # type: ignore[misc]


def _live(acts: list[tuple[str, Any]], random: np.random.Generator) -> None:
    lives = Lives()
    for number, (act, what) in enumerate(acts):
        match act:
            case "add":
                sampling, prompt, made, batch = what
                lives.sampler.add(number, sampling, prompt, None, None, made)
                lives.rows[number] = Life(sampling, prompt, list(made))
                lives.batches[batch].append(number)
            case "force":
                # As drafts are that turn out to be right.
                if lives.rows:
                    sequence_id = list(lives.rows)[what[0] % len(lives.rows)]
                    lives.read(sequence_id)
                    lives.rows[sequence_id].answer += what[1]
                    for token in what[1]:
                        lives.sampler.accept(sequence_id, token)
            case "remove" | "read":
                if what >= len(lives.rows):
                    continue
                sequence_id = list(lives.rows)[what]
                if act == "read":
                    lives.read(sequence_id)
                    continue
                del lives.rows[sequence_id]
                lives.sampler.remove(sequence_id)
                for batch in lives.batches:
                    if sequence_id in batch:
                        batch.remove(sequence_id)
            case "step":
                if lives.batches[what]:
                    lives.step(lives.batches[what], random)
    for sequence_id in lives.rows:
        lives.sampler.remove(sequence_id)
    assert not lives.sampler._edits


def test_nothing_is_kept_for_rows_without_edits() -> None:
    sampler = BatchSampler()
    for row in range(2):
        sampler.add(row, SequenceSampling(1.0, top_p=0.9), [1, 2], None, None)
    sampler.sample(mx.zeros((2, VOCABULARY)), [0, 1], [0, 0])
    assert not sampler._edits
    assert all(row.edits is None for row in sampler._rows.values())


def test_tokens_that_were_not_drawn_count_too() -> None:
    """As drafts are that turn out to be right."""
    sampler = BatchSampler()
    sampler.add(0, SequenceSampling(0.0, presence_penalty=1.0), [], None, None)
    logits = mx.array([[0.4, 0.3, 0.2, 0.1, 0.0]])
    assert sampler.sample(logits, [0], [0]).item() == 0
    for token in (0, 1):
        sampler.accept(0, token)
    assert sampler.sample(logits, [0], [2]).item() == 2
    for token in (2, 3, 3):
        sampler.accept(0, token)
    assert sampler.sample(logits, [0], [5]).item() == 4
