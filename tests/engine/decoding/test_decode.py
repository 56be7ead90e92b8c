"""Decoding ahead: a step is queued before the tokens of the last one are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from lmx.worker.engine.values import SequenceSampling
from lmx.worker.mlx.sampling import penalties
from lmx.worker.mlx.sampling.sampler import BatchSampler
from tests.support.models.tiny_models import VOCABULARY
from tests.support.rigs.engine_rig import EngineRunner, spec_of

BIASED = SequenceSampling(0.0, logit_bias=((3, 1.0),), min_tokens=5, end_ids=frozenset({4}))
PENALISED = SequenceSampling(1.0, top_p=0.9, seed=4, repetition_penalty=1.2, frequency_penalty=0.3)


class Anything:
    """A constraint that every token fits."""

    def mask(self) -> npt.NDArray[np.uint32]:
        return np.full(-(-VOCABULARY // 32), 0xFFFF_FFFF, np.uint32)

    def accept(self, token: int) -> None:
        pass

    def fork(self) -> Anything:
        return self


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to the sampler: a draw that is queued, a token that was read."""
    seen: list[str] = []
    sample, accept = BatchSampler.sample, BatchSampler.accept

    def sampled(self: BatchSampler, *arguments: Any) -> mx.array:
        seen.append("draw")
        return sample(self, *arguments)

    def accepted(self: BatchSampler, sequence_id: int, token: int) -> None:
        seen.append("read")
        accept(self, sequence_id, token)

    monkeypatch.setattr(BatchSampler, "sample", sampled)
    monkeypatch.setattr(BatchSampler, "accept", accepted)
    return seen


@pytest.mark.parametrize("rows", [[PENALISED], [PENALISED, SequenceSampling(0.0), BIASED]])
def test_no_token_is_read_before_the_next_draw_is_queued(
    tiny_dir: Path, events: list[str], rows: Sequence[SequenceSampling]
) -> None:
    runner = EngineRunner(spec_of(tiny_dir, max_decode_stall_s=10))
    sequence_ids = [runner.admit([5, 6, 7 + row], way, 40) for row, way in enumerate(rows)]
    # The first token of a row that joined others is read at once.
    while not all(len(runner.tokens[sequence_id]) > 1 for sequence_id in sequence_ids):
        runner.step()
    events.clear()
    for _ in range(5):
        runner.step()
    assert events == ["draw", *["read"] * len(rows)] * 5
    runner.clear()


def test_only_a_grammar_needs_the_tokens_first(tiny_dir: Path, events: list[str]) -> None:
    runner = EngineRunner(spec_of(tiny_dir, max_decode_stall_s=10))
    sequence_ids = [
        runner.admit([5, 6, 7], PENALISED, 40),
        runner.admit([5, 6, 8], SequenceSampling(0.0), 40, constraint=Anything()),
    ]
    # The first token of a row that joined others is read at once.
    while not all(len(runner.tokens[sequence_id]) > 1 for sequence_id in sequence_ids):
        runner.step()
    events.clear()
    for _ in range(5):
        runner.step()
    assert events == ["read", "read", "draw"] * 5
    runner.clear()


def test_penalised_rows_in_company_that_changes_make_what_they_make_alone(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, length = [9, 8, 7, 6], 90
    alone = EngineRunner(spec_of(tiny_dir)).alone(prompt, PENALISED, length)
    monkeypatch.setattr(penalties, "_MOST_TAKEN", 8)
    runner = EngineRunner(spec_of(tiny_dir, max_decode_stall_s=10))
    row = runner.admit(prompt, PENALISED, length)
    others: list[int] = []
    while row in runner.live:
        if len(runner.live) < 3:
            other = len(others)
            way_of_other = (BIASED, PENALISED, SequenceSampling(0.0))[other % 3]
            others.append(runner.admit([5, 20 + other], way_of_other, 3 + 8 * (other % 4)))
        runner.step()
    assert runner.tokens[row] == alone
    assert len(others) > 5
    runner.clear()
