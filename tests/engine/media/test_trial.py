"""What a model's own class makes wrong is found at the load, and requests with it are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_rig import spec_of
from media_models import make_media_model

from lmx.protocol.states import MediaKind
from lmx.worker.mlx.engine import load_generator

pytestmark = pytest.mark.engine


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
def test_what_works_is_taken(
    tmp_path: Path, family: str, works: frozenset[MediaKind] | None
) -> None:
    loaded = load_generator(spec_of(make_media_model(tmp_path, family)), lambda *_: None)
    try:
        needs = loaded.facts.media
        assert (needs.kinds if needs else None) == works
    finally:
        loaded.resident.close()
