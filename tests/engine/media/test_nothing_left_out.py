"""No processor leaves out a part of a picture or a frame of a video: whatever part is changed,
what the model sees changes. `make test-all` tries some of them, and `make conformance` all."""

from pathlib import Path

import numpy as np
import pytest

from lmx.worker.media.values import Media, Picture, Video
from lmx.worker.mlx.media.spans import MediaSpans
from tests.support.models.media_families import FAMILIES
from tests.support.models.media_models import make_media_model
from tests.support.rigs.media_check import MediaModel

QUICK = {("idefics3", "image"), ("internvl_chat", "image"), ("kimi_vl", "image"),
         ("gemma4", "video"), ("qwen3_vl", "video")}  # fmt: skip
CELLS = 4


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        pytest.param(
            name, kind, id=f"{name}:{kind}",
            marks=() if (name, kind) in QUICK else pytest.mark.conformance,
        )
        for name, family in sorted(FAMILIES.items())
        for kind in ("image", "video")
        if kind in family.places
    ],
)  # fmt: skip
def test_a_family(tmp_path: Path, family: str, kind: str) -> None:
    model = MediaModel(make_media_model(tmp_path, family))
    if kind == "image":
        picture = np.random.default_rng(1).integers(0, 256, (300, 520, 3), dtype=np.uint8)
        right = digest(model, Picture(picture))
        for row in range(CELLS):
            for column in range(CELLS):
                changed = picture.copy()
                cell = changed[75 * row : 75 * (row + 1), 130 * column : 130 * (column + 1)]
                np.subtract(255, cell, out=cell)
                assert digest(model, Picture(changed)) != right, f"row {row}, column {column}"
        return
    assert model.needs is not None
    count = model.needs.max_frames or 16
    frames = np.random.default_rng(1).integers(0, 256, (count, 60, 90, 3), dtype=np.uint8)
    times_s = tuple(map(float, range(count)))
    right = digest(model, Video(frames, times_s, float(count)))
    for place in range(count):
        changed = frames.copy()
        changed[place] = 255 - changed[place]
        assert digest(model, Video(changed, times_s, float(count))) != right, f"frame {place}"


def digest(model: MediaModel, media: Media) -> bytes:
    spans = model.encode("ab", media, "cd").media
    assert isinstance(spans, MediaSpans)
    (span,) = spans.spans
    return span.digest
