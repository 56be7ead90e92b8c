"""Rows that make no token: their prompts are read and scored, and nothing else."""

from pathlib import Path

import numpy as np

from lmx.protocol.messages.specs import PrefixCacheSpec
from lmx.worker.engine.values import PrefillFinished, SequenceRequest
from tests.support.rigs.device import near
from tests.support.rigs.engine_rig import GREEDY, EngineRunner, Plain, spec_of

PROMPTS = [[7, 9, 11] * 9, [5], [3, 4] * 40]


def read(runner: EngineRunner, prompts: list[list[int]], first_id: int) -> list[PrefillFinished]:
    """Return what becomes of prompts that nothing follows, all at once if they may be."""
    left = [
        SequenceRequest(first_id + place, prompt, 0, GREEDY, prompt_logprobs=1)
        for place, prompt in enumerate(prompts)
    ]
    started: dict[int, PrefillFinished] = {}
    for _ in range(1000):
        while left and runner.generator.can_admit():
            runner.generator.admit(left.pop(0))
        output = runner.step()
        assert not [token for token in output.tokens if token.sequence_id >= first_id]
        started |= {one.sequence_id: one for one in output.started if one.sequence_id >= first_id}
        if len(started) == len(prompts):
            return [started[first_id + place] for place in range(len(prompts))]
    raise AssertionError("the prompts are not through")


def test_prompts_alone_have_the_scores_of_the_model(tiny_dir: Path) -> None:
    """Alone, together, and beside a row that decodes; and the next rows know nothing of them."""
    plain = Plain(tiny_dir)
    runner = EngineRunner(spec_of(tiny_dir, prefix_cache=PrefixCacheSpec(64 << 20)))
    answer = runner.alone([1, 2, 3], GREEDY, 20)
    alone = [read(runner, [prompt], 1000 + 10 * place)[0] for place, prompt in enumerate(PROMPTS)]
    beside = runner.admit([1, 2, 3], GREEDY, 20)
    together = read(runner, PROMPTS, 2000)
    runner.finish()
    assert runner.tokens[beside] == answer
    for prompt, one, other in zip(PROMPTS, alone, together, strict=True):
        scores = plain.logprobs(prompt)
        wanted = [scores[place, token].item() for place, token in enumerate(prompt[1:])]
        for found in (one, other):
            assert len(found.prompt_scores) == len(prompt) - 1
            np.testing.assert_allclose(
                [s.logprob for s in found.prompt_scores], wanted, atol=near(1e-3)
            )
    assert runner.alone([1, 2, 3], GREEDY, 20) == answer
    # An engine takes it that a row is removed that has ended already.
    runner.generator.remove(2000)
