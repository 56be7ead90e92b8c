"""What a model's own class makes wrong is found at the load, and requests with it are refused."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from lmx.protocol.states import MediaKind
from lmx.worker.mlx.engine import load_generator
from lmx.worker.mlx.model.passes import report_passes_to
from tests.support.models.media_models import make_media_model
from tests.support.rigs.engine_rig import spec_of


@pytest.mark.parametrize(
    ("family", "works"),
    [
        ("qwen3_vl", frozenset({MediaKind.IMAGE, MediaKind.VIDEO})),
        # It leaves videos out without a word.
        ("glm4v", frozenset({MediaKind.IMAGE})),
        # It puts all of a picture in the place of one of its tokens.
        ("llava_next", None),
    ],
)
def test_what_works_is_taken_and_each_pass_is_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, works: frozenset[MediaKind] | None
) -> None:
    looked_up, heard = 0, 0
    most_between = 0
    plain = nn.Embedding.__call__

    def look_up(embedding: nn.Embedding, tokens: mx.array) -> Any:
        nonlocal looked_up, most_between
        looked_up += 1
        most_between = max(most_between, looked_up)
        return plain(embedding, tokens)

    def hear() -> None:
        nonlocal looked_up, heard
        looked_up, heard = 0, heard + 1

    spec = spec_of(make_media_model(tmp_path, family))
    # Every forward pass of tokens looks their embeddings up.
    monkeypatch.setattr(nn.Embedding, "__call__", look_up)
    with report_passes_to(hear):
        loaded = load_generator(spec, lambda *_: None)
    assert heard > 30
    assert most_between <= 2  # of tokens, and of places in a picture
    try:
        needs = loaded.facts.media
        assert (needs.kinds if needs else None) == works
    finally:
        loaded.resident.close()
