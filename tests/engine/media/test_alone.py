"""The tiny models that see and hear: mlx-vlm alone loads them with their processors, and what it is
shown changes what it makes of a prompt. The other tests of media build on that."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.models.media_families import FAMILIES
from tests.support.models.media_models import (
    MlxVlmAlone,
    conversation,
    make_media_model,
    random_media,
)

LEAST_OFF = 0.02
"""Other media change the last logits by this much of their spread at least. Noises that sound alike
change them by about a tenth, and what is not heard changes nothing."""


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_media_and_their_order_change_the_logits(tmp_path: Path, family: str) -> None:
    alone = MlxVlmAlone(make_media_model(tmp_path, family))
    for kind in FAMILIES[family].places:
        # Of one size, so that the tokens are the same.
        first, second, third = (random_media(kind, seed) for seed in (1, 2, 3))
        reported = conversation("ab", 0, "cd", 1, "ef", kind=kind)
        if kind == "video":
            reported = conversation("ab", 0, "cd", kind=kind)
        tokens, logits = alone.logits(reported, [first, second])
        swapped_tokens, swapped = alone.logits(reported, [second, first])
        _, other = alone.logits(reported, [third, second])
        assert tokens == swapped_tokens
        assert off(swapped, logits) > LEAST_OFF
        assert off(other, logits) > LEAST_OFF


def off(found: Any, expected: Any) -> float:
    return float(np.abs(found[-1] - expected[-1]).max() / expected.std())
