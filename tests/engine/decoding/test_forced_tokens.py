"""Tokens that must follow, because a row's constraint allows no others, are fed in one forward: the
answer is the same, in fewer steps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from lmx.protocol.messages.data import Structure, Thinking
from lmx.protocol.messages.specs import PrefixCacheSpec, SpeculationSpec
from lmx.protocol.states import StructureKind
from lmx.worker.constraints.grammar import allowed
from lmx.worker.engine.values import (
    ConstraintMaker,
    ConstraintSource,
    DraftCounts,
    PromptSource,
    SequenceSampling,
    TokenScores,
)
from lmx.worker.mlx.decoding import rollback
from lmx.worker.mlx.decoding.decode import DecodeBatch
from lmx.worker.mlx.sampling.mask import only_token
from lmx.worker.scheduling import length_buckets
from tests.support.models.cut_models import cut_folder
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.engine_rig import GREEDY, HOT, EngineRunner, spec_of

PROMPT = [40, 41, 42, 43]
QUANTIZED = "llama-64"
"""It is served with keys and values of 8 bits."""
PENALTIES = SequenceSampling(
    0.8, seed=7, repetition_penalty=1.2, frequency_penalty=0.4, presence_penalty=0.2
)
SCHEMA = {
    "type": "object",
    "properties": {
        "customer_identification": {"type": "integer", "minimum": 0, "maximum": 999},
        "shipping_address_verified": {"type": "boolean"},
        "preferred_delivery_method": {"enum": ["express", "standard"]},
    },
    "required": [
        "customer_identification",
        "shipping_address_verified",
        "preferred_delivery_method",
    ],
    "additionalProperties": False,
}


class Bursts:
    """Of every ``period`` tokens, allows only one for each but the first ``free``."""

    def __init__(self, period: int, free: int, taken: int = 0) -> None:
        self.period, self.free, self.taken = period, free, taken

    def mask(self) -> Any:
        bits = np.zeros(288, bool)
        if self.taken % self.period < self.free:
            bits[: 256 : 1 + self.taken % 3] = True
        else:
            bits[30 + 7 * self.taken % 200] = True
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def accept(self, token: int) -> None:
        assert self.mask()[token // 32] >> np.uint32(token % 32) & 1
        self.taken += 1

    def fork(self) -> Bursts:
        return Bursts(self.period, self.free, self.taken)


def run(
    runner: EngineRunner, rows: Sequence[dict[str, Any]], pause: int
) -> tuple[list[tuple[list[int], list[TokenScores]]], int]:
    """Run rows, with so many steps before each other; return what they made, and the number of
    steps until the first of them had ended."""
    admitted, steps = [], 0
    for row in rows:
        admitted.append(runner.admit(**row))
        for _ in range(pause):
            runner.step()
            steps += 1
    while runner.live:
        runner.step()
        steps += admitted[0] in runner.live
    return [(runner.tokens[row], runner.scores[row]) for row in admitted], steps


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], EngineRunner]:
    root = tmp_path_factory.mktemp("tiny")
    made: dict[str, EngineRunner] = {}

    def get(kind: str) -> EngineRunner:
        if kind not in made:
            bits = 8 if kind == QUANTIZED else None
            made[kind] = EngineRunner(spec_of(make_tiny_model(root / kind, kind), kv_bits=bits))
        return made[kind]

    return get


def both(
    runner: EngineRunner, rows: Callable[[], Sequence[dict[str, Any]]], pause: int = 0
) -> tuple[int, int]:
    """Run rows with and without; return the numbers of steps until the first of them had ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecodeBatch, "_forced_now", lambda _: ())
        plain, plain_steps = run(runner, rows(), pause)
    made, steps = run(runner, rows(), pause)
    for (tokens, scores), (expected, expected_scores) in zip(made, plain, strict=True):
        assert tokens == expected
        assert len(scores) == len(expected_scores)
        for one, other in zip(scores, expected_scores, strict=True):
            assert math.isclose(one.logprob, other.logprob, abs_tol=1e-4)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
    return steps, plain_steps


KINDS = ["llama", "gemma3", "qwen3_5", "qwen3_next", "lfm2"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", [GREEDY, HOT, PENALTIES], ids=["greedy", "hot", "penalties"])
def test_a_row_is_the_same_in_fewer_steps(
    runner: Callable[[str], EngineRunner], kind: str, sampling: SequenceSampling
) -> None:
    def rows() -> Sequence[dict[str, Any]]:
        row = {"prompt": PROMPT, "sampling": sampling, "max_tokens": 50, "top_logprobs": 2}
        return [{**row, "constraint": Bursts(10, 2)}]

    steps, plain = both(runner(kind), rows)
    # Of ten tokens, two and the first of the others take a forward each, the rest none.
    assert plain >= 49
    assert steps <= 50 * 3 / 10 + 3


@pytest.mark.parametrize("kind", ["llama", "gemma3", QUANTIZED])
def test_rows_that_join_and_leave_are_the_same(
    runner: Callable[[str], EngineRunner], kind: str
) -> None:
    def rows() -> Sequence[dict[str, Any]]:
        return [
            {"prompt": PROMPT, "max_tokens": 40, "constraint": Bursts(10, 2), "top_logprobs": 1},
            {"prompt": [*PROMPT, 9], "max_tokens": 40, "sampling": HOT},
            {"prompt": [7], "max_tokens": 25, "sampling": PENALTIES, "constraint": Bursts(7, 3)},
            {"prompt": list(range(60)), "max_tokens": 30, "constraint": Bursts(5, 1)},
        ]

    for pause in (0, 3):
        steps, plain = both(runner(kind), rows, pause)
        assert steps < plain


def test_rows_of_other_caches_are_the_same_in_company(
    runner: Callable[[str], EngineRunner],
) -> None:
    def rows() -> Sequence[dict[str, Any]]:
        row = {"prompt": PROMPT, "max_tokens": 30}
        return [{**row, "constraint": Bursts(10, 2)}, {**row, "sampling": HOT}]

    for kind in ("qwen3_5", "qwen3_next"):
        both(runner(kind), rows)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 11, 12, 13])
def test_no_row_gets_more_than_it_asked_for(
    runner: Callable[[str], EngineRunner], max_tokens: int
) -> None:
    tokens = runner("llama").alone(PROMPT, GREEDY, max_tokens, constraint=Bursts(10, 2))
    assert len(tokens) == max_tokens


def test_no_row_of_several_buckets_gets_more_than_it_asked_for(
    runner: Callable[[str], EngineRunner],
) -> None:
    in_turns = runner("gemma2")
    rows = [
        in_turns.admit(PROMPT, GREEDY, max_tokens, constraint=Bursts(5, 1))
        for max_tokens in (2, 3, 9)
    ]
    in_turns.finish()
    assert [len(in_turns.tokens[row]) for row in rows] == [2, 3, 9]


def test_nothing_is_fed_behind_an_end(runner: Callable[[str], EngineRunner]) -> None:
    end = Bursts(10, 2, 5).mask()
    token = int(np.flatnonzero(np.unpackbits(end.view(np.uint8), bitorder="little"))[0])
    sampling = SequenceSampling(0.0, end_ids=frozenset({token}))
    row = runner("llama").admit(PROMPT, sampling, 50, constraint=Bursts(10, 2))
    while token not in runner("llama").tokens[row]:
        runner("llama").step()
    assert runner("llama").tokens[row][-1] == token
    runner("llama").clear()


def test_they_come_before_any_guess(tmp_path: Path) -> None:
    """A row with drafts waits for its drawn token, so what must follow that is known at once."""
    folder = make_tiny_model(tmp_path, "llama")
    plain, drafting = (
        EngineRunner(spec_of(folder, max_decode_stall_s=10, speculation=speculation))
        for speculation in (None, SpeculationSpec())
    )
    inner: Any = drafting.generator
    inner._rows._speculation._clock = lambda: 0.0
    rows: list[dict[str, Any]] = [
        {"prompt": PROMPT * 4, "max_tokens": 50, "constraint": Bursts(10, 2), "top_logprobs": 1},
        {"prompt": [*PROMPT, 9], "max_tokens": 40, "sampling": PENALTIES},
    ]
    for company in (rows[:1], rows):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DecodeBatch, "_forced_now", lambda _: ())
            expected = run(plain, [row | fresh(row) for row in company], 0)[0]
        drafts: list[DraftCounts] = []
        admitted = [drafting.admit(**(row | fresh(row))) for row in company]
        while drafting.live:
            drafts += drafting.step().drafts
        made = [(drafting.tokens[row], drafting.scores[row]) for row in admitted]
        assert [tokens for tokens, _ in made] == [tokens for tokens, _ in expected]
        for one, other in zip(made[0][1], expected[0][1], strict=True):
            assert math.isclose(one.logprob, other.logprob, abs_tol=1e-4)
        assert max(each.accepted_tokens for each in drafts) == 8


def fresh(row: dict[str, Any]) -> dict[str, Any]:
    return {"constraint": row["constraint"].fork()} if "constraint" in row else {}


def test_rows_that_decode_together_stay_alike_in_length(
    runner: Callable[[str], EngineRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes as much memory as the longest, which is what is counted."""
    llama = runner("llama")
    monkeypatch.setattr(length_buckets, "_MAX_TIMES", 1)
    monkeypatch.setattr(length_buckets, "_MAX_MORE_TOKENS", 12)
    monkeypatch.setattr(rollback, "MOST_PADDING_TOKENS", 2)
    expected = llama.alone(PROMPT, GREEDY, 150, constraint=Bursts(10, 2))
    other = llama.alone(PROMPT, HOT, 40)
    fast = llama.admit(PROMPT, GREEDY, 150, constraint=Bursts(10, 2))
    slow = llama.admit(PROMPT, HOT, 40)
    inner: Any = llama.generator
    apart = []
    while slow in llama.live:
        llama.step()
        if (bucket := inner._rows._buckets.only) is not None and len(bucket.rows) == 2:
            lengths = [len(row.tokens) for row in bucket.rows]
            apart.append(max(lengths) - min(lengths))
            assert bucket.prompt_cache[0].size() <= max(lengths) + 2
    llama.finish()
    assert 8 < max(apart) <= 12
    assert llama.tokens[fast] == expected
    assert llama.tokens[slow] == other


class Raising(Bursts):
    """Breaks at its sixth token, in the middle of a burst."""

    def accept(self, token: int) -> None:
        if self.taken == 6:
            raise RuntimeError("sixth")
        super().accept(token)

    def fork(self) -> Raising:
        return Raising(self.period, self.free, self.taken)


def test_a_constraint_that_raises_ends_its_row_alone(runner: Callable[[str], EngineRunner]) -> None:
    llama = runner("llama")
    expected = llama.alone(PROMPT, HOT, 20)
    row = llama.admit(PROMPT, GREEDY, 20, constraint=Raising(10, 2))
    other = llama.admit(PROMPT, HOT, 20)
    llama.finish()
    assert str(llama.failed[row]) == "sixth"
    assert len(llama.tokens[row]) <= 6
    assert llama.tokens[other] == expected


def test_a_preempted_row_continues_as_it_was(runner: Callable[[str], EngineRunner]) -> None:
    llama = runner("llama")
    expected = llama.alone(PROMPT, HOT, 40, constraint=Bursts(10, 2))
    for steps in (3, 5, 6, 8):
        constraint = Bursts(10, 2)
        row = llama.admit(PROMPT, HOT, 40, constraint=constraint)
        for _ in range(steps):
            llama.step()
        made = llama.generator.preempt(row)
        del llama.live[row]
        assert made is not None
        assert list(made) == expected[: len(made)]
        assert constraint.taken == len(made)
        rest = llama.admit(
            [*PROMPT, *made], HOT, 40 - len(made), constraint=constraint, generated_tokens=len(made)
        )
        llama.finish()
        assert [*made, *llama.tokens[rest]] == expected


def test_the_next_turn_finds_what_was_fed(tmp_path: Path) -> None:
    spec = spec_of(make_tiny_model(tmp_path, "llama"), prefix_cache=PrefixCacheSpec(64 << 20))
    runner = EngineRunner(spec)
    first = runner.alone(PROMPT, GREEDY, 30, constraint=Bursts(10, 2))
    turn = [*PROMPT, *first, 7, 8, 9]
    row = runner.admit(turn, GREEDY, 20)
    runner.finish()
    assert runner.started[row].cached_tokens >= len(PROMPT) + len(first) - 1
    cold = EngineRunner(spec_of(tmp_path))
    assert cold.alone(turn, GREEDY, 20) == runner.tokens[row]


def schema_maker(runner: EngineRunner) -> ConstraintMaker:
    structure = Structure(StructureKind.JSON_SCHEMA, json.dumps(SCHEMA), "response_format")
    maker = runner.generator.constrain(ConstraintSource(structure, None, Thinking(), False))
    assert maker is not None
    return maker


def test_a_schema_with_long_keys_takes_few_forwards(runner: Callable[[str], EngineRunner]) -> None:
    llama = runner("llama")
    make = schema_maker(llama)

    def rows() -> Sequence[dict[str, Any]]:
        sampling = SequenceSampling(1.0, seed=3, end_ids=llama.facts.eos_token_ids)
        return [{"prompt": PROMPT, "sampling": sampling, "max_tokens": 90, "constraint": make()}]

    steps, plain = both(llama, rows)
    assert steps < plain / 2


@pytest.fixture(scope="module")
def real(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineRunner:
    """A model whose tokens are words and parts of words: a text can be written in many ways."""
    folder = tmp_path_factory.mktemp("real") / "model"
    return EngineRunner(spec_of(cut_folder(smollm2_dir, folder, layers=4)))


def answers(
    runner: EngineRunner, rows: Sequence[dict[str, Any]]
) -> tuple[list[tuple[list[int], list[TokenScores]]], int]:
    """Run rows until they have ended; return what they made without the end, and the number of
    steps."""
    ends, steps = runner.facts.eos_token_ids, 0
    admitted = [runner.admit(**row) for row in rows]
    while runner.live:
        runner.step()
        steps += 1
        for row in list(runner.live):
            if ends & set(runner.tokens[row]):
                runner.remove(row)
    made = [(runner.tokens[row], runner.scores[row]) for row in admitted]
    assert all(ends & set(tokens) for tokens, _ in made)
    return [(tokens[:-1], scores) for tokens, scores in made], steps


ASKED = "Where is the parcel of customer 47? Answer in JSON."


@pytest.mark.long
def test_where_a_text_has_many_spellings_the_answer_is_that_of_single_draws(
    real: EngineRunner,
) -> None:
    samplings = [SequenceSampling(1.5, seed=5), PENALTIES]
    make, ends = schema_maker(real), real.facts.eos_token_ids

    def rows() -> Sequence[dict[str, Any]]:
        return [
            {
                "prompt": ASKED,
                "sampling": replace(sampling, end_ids=ends),
                "max_tokens": 300,
                "top_logprobs": 1,
                "constraint": make(),
            }
            for sampling in samplings
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecodeBatch, "_forced_now", lambda _: ())
        plain, plain_steps = answers(real, rows())
    made, steps = answers(real, rows())
    for (tokens, scores), (expected, expected_scores) in zip(made, plain, strict=True):
        assert tokens == expected
        for one, other in zip(scores, expected_scores, strict=True):
            assert math.isclose(one.logprob, other.logprob, abs_tol=1e-3)
        Draft202012Validator(SCHEMA).validate(json.loads(real.text(tokens)))
    assert steps < plain_steps


@pytest.mark.parametrize(
    "layout",
    [{}, {"separators": (",", ":")}, {"indent": 2}, {"separators": (" ,", " : ")}],
    ids=["one line", "compact", "lines", "wide"],
)
def test_what_is_certain_is_spelled_as_the_tokenizer_spells_it(
    real: EngineRunner, layout: dict[str, Any]
) -> None:
    """A chain of certain tokens leads to no other spelling than the one that the model knows."""
    answer = {
        "customer_identification": 47,
        "shipping_address_verified": True,
        "preferred_delivery_method": "express",
    }
    text = json.dumps(answer, **layout)
    constraint, certain = schema_maker(real)(), 0
    for token in real.generator.encode(PromptSource(text=text)).tokens:
        mask = constraint.mask()
        assert mask is not None and allowed(mask, token)
        certain += only_token(mask) is not None
        constraint.accept(token)
    mask = constraint.mask()
    assert mask is not None and any(allowed(mask, token) for token in real.facts.eos_token_ids)
    assert certain > 10
