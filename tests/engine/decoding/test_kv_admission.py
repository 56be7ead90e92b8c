"""What rows are counted at is what their caches take, as mlx-vlm holds them."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from lmx.protocol.models.memory import KvLayers
from lmx.worker.engine.values import BeamSearch, SequenceRequest, SequenceSampling
from lmx.worker.scheduling.kv_admission import KvAdmission
from tests.support.models.tiny_models import make_tiny_model
from tests.support.rigs.engine_rig import EngineRunner, spec_of

PROMPTS = (40, 700, 300)
MAX_TOKENS = 400
# Of the tiny model: keys and values, of 2 heads of 16 float32 each.
LAYERS = (KvLayers(3, 2 * 2 * 16 * 4, step_tokens=256),)


def held_bytes(prompt_cache: list[Any]) -> int:
    held = 0
    for layer in prompt_cache:
        mx.eval(layer.keys, layer.values)
        held += layer.keys.nbytes + layer.values.nbytes
    return held


@pytest.mark.parametrize("beam", [None, BeamSearch(4, 1.0, frozenset())])
def test_each_row_of_a_batch_takes_what_the_longest_takes(
    tmp_path: Path, beam: BeamSearch | None
) -> None:
    make_tiny_model(tmp_path / "model", "llama")
    runner = EngineRunner(spec_of(tmp_path / "model"))
    admission = KvAdmission(LAYERS, None)
    for sequence_id, length in enumerate(PROMPTS if beam is None else PROMPTS[1:2], start=1):
        prompt = [5 + place % 50 for place in range(length)]
        runner.admit(prompt, max_tokens=MAX_TOKENS, beam=beam)
        admission.begin(
            SequenceRequest(sequence_id, prompt, MAX_TOKENS, SequenceSampling(0.0), beam=beam)
        )
        while sequence_id not in runner.started:
            runner.step()
    for _ in range(20):
        runner.step()
    rows: Any = runner.generator
    if beam is None:
        held = held_bytes(rows._rows._buckets.only.prompt_cache)
    else:
        (search,) = rows._rows._searches.values()
        held = held_bytes(search.group._caches[0])
    # It was counted for the whole answer, of which 20 tokens are there, in steps of 256.
    assert held <= admission.total_bytes <= 1.5 * held
