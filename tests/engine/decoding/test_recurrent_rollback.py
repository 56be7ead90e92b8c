"""Drafts for models with a recurrent state: it is taken back, and every answer is as without."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lmx.protocol.messages.specs import SpeculationSpec
from lmx.worker.engine.values import DraftCounts, SequenceSampling
from lmx.worker.mlx.decoding.rollback import Blocks, Undo
from lmx.worker.mlx.decoding.sequence import DecodeSequence
from tests.support.models.text_models import make_text_model
from tests.support.rigs.engine_rig import GREEDY, EngineRunner, spec_of

pytestmark = pytest.mark.long

TYPES = (
    *("baichuan_m1", "bailing_hybrid", "bailing_moe_linear", "falcon_h1", "granitemoehybrid"),
    *("jamba", "kimi_linear", "lfm2", "lfm2_moe", "longcat_flash_ngram", "mamba", "mamba2"),
    *("nemotron_h", "olmo_hybrid", "plamo2", "qwen3_next", "recurrent_gemma", "rwkv7"),
)
QUICK = ("falcon_h1", "kimi_linear", "recurrent_gemma")
PROMPTS = ([40, 41, 42, 43, 44, 45, 46] * 5, [90, 91, 92] * 6)
SAMPLINGS = (
    GREEDY,
    SequenceSampling(0.3, seed=5),
    SequenceSampling(0.5, seed=7, repetition_penalty=1.1, frequency_penalty=0.2),
)


Rows = Sequence[tuple[list[int], SequenceSampling]]
Said = list[tuple[list[int], list[float]]]


def said(
    runner: EngineRunner, rows: Rows, reported: Said
) -> tuple[Said, list[Sequence[DraftCounts]]]:
    """Return what rows say together, with their logprobs, and what was drafted in each step: what
    is ``told``, but for some tokens."""
    answers = {runner._next_row + place: tokens for place, (tokens, _) in enumerate(reported)}

    def draft(row: DecodeSequence, _: int, count: int) -> mx.array | None:
        begin = row.generated_tokens + (not row.known)
        places = range(begin, min(begin + count, 30))
        right = answers[row.sequence_id]
        # Right once, twice, six times, ...: every pattern of acceptance.
        drafts = [right[at] ^ (at**2 % 23 in (1, 6, 13, 18)) for at in places]
        return mx.array(drafts) if drafts else None

    speculation = rows_of(runner)._speculation
    if speculation is not None:
        # Time stands still, so that drafts never seem not to pay.
        speculation._clock = lambda: 0.0
        speculation._draft = draft
    admitted = [runner.admit(prompt, sampling, 30, top_logprobs=0) for prompt, sampling in rows]
    drafts: list[Sequence[DraftCounts]] = []
    while runner.live:
        drafts.append(runner.step().drafts)
    return [
        (runner.tokens[row], [scores.logprob for scores in runner.scores[row]]) for row in admitted
    ], drafts


def rows_of(runner: EngineRunner) -> Any:
    return runner.generator._rows  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "model_type",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.conformance) for name in TYPES],
)
def test_a_row_says_the_same_with_guesses(tmp_path: Path, model_type: str) -> None:
    folder = make_text_model(tmp_path, model_type)
    plain = EngineRunner(spec_of(folder))
    runner = EngineRunner(spec_of(folder, speculation=SpeculationSpec()))
    blocks: Blocks = rows_of(runner)._buckets._blocks
    assert (blocks.alone, blocks.together) == (Undo.REPLAYED, Undo.REPLAYED)
    alone = [[(PROMPTS[0], sampling)] for sampling in SAMPLINGS]
    accepted_alone: set[int] = set()
    for rows in [*alone, list(zip(PROMPTS, SAMPLINGS, strict=False))]:
        expected, _ = said(plain, rows, [])
        found, drafts = said(runner, rows, expected)
        for (tokens, logprobs), (right, right_logprobs) in zip(found, expected, strict=True):
            assert tokens == right
            assert logprobs == pytest.approx(right_logprobs, abs=1e-3)
        accepted = [[row.accepted_tokens for row in step] for step in drafts]
        if len(rows) == 1:
            accepted_alone |= {tokens for step in accepted for tokens in step}
        else:
            assert any(len(step) == 2 and min(step) > 0 for step in accepted)
            assert all(len(set(step)) <= 1 for step in accepted)
    # How many depends on what a model says, which is chance for these.
    assert accepted_alone >= {0, 1, 2, 3}
