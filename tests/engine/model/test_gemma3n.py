"""The text of Gemma 3n with eyes and ears: mlx-vlm's class makes it wrong, and lmx mends that."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance import FOLLOWING, PROMPT, examine
from media_models import make_media_model, tiny_towers
from vlm_models import text_logits

pytestmark = pytest.mark.engine

MOST_OFF = 1e-3


def test_its_text_is_that_of_mlx_lm(tmp_path: Path) -> None:
    folder = make_media_model(tmp_path, "gemma3n")
    with tiny_towers():
        found = examine(folder, text_logits(folder, "gemma3n", PROMPT, FOLLOWING))
    assert found.library == "mlx-vlm"
    assert found.alone_off < MOST_OFF, found
    assert found.batched_off is not None, found
    assert found.batched_off < MOST_OFF, found
    assert found.prefix_off is not None, found
    assert found.prefix_off < MOST_OFF, found
