"""What every family makes of prompts with media in the engine, held against mlx-vlm's own classes:
at once, in chunks, after a cached beginning, and in a batch."""

from pathlib import Path

import pytest
from media_check import check_media
from media_families import FAMILIES
from media_models import make_media_model

from lmx.protocol.states import MediaKind

pytestmark = pytest.mark.engine

NOT_YET = "gemma3n"
EACH = [
    (family, kind)
    for family in sorted(FAMILIES.keys() - {NOT_YET})
    for kind in FAMILIES[family].places
]


@pytest.mark.parametrize(("family", "kind"), EACH)
def test_it_computes_what_mlx_vlm_computes(tmp_path: Path, family: str, kind: str) -> None:
    check_media(make_media_model(tmp_path, family), MediaKind(kind))
