"""Every family that sees or hears does in lmx what it does in mlx-vlm alone: at once and in chunks,
after a beginning that was cached, and in a batch. `make test-all` tries some of them, and
`make conformance` all."""

from pathlib import Path
from typing import Any

import pytest

from lmx.protocol.states import MediaKind
from tests.support.models.media_families import FAMILIES
from tests.support.models.media_models import make_media_model, tiny_towers
from tests.support.rigs.media_check import MAKERS, check_media, check_together

pytestmark = pytest.mark.long

QUICK = {
    *(("gemma3", "image"), ("gemma3n", "audio"), ("gemma4", "image"), ("gemma4", "video")),
    *(("idefics3", "image"), ("internvl", "image"), ("lfm2_vl", "image"), ("mistral3", "image")),
    *(("qwen2_5_vl", "image"), ("qwen3_5", "image"), ("qwen3_omni_moe", "audio")),
    *(("qwen3_omni_moe", "video"), ("qwen3_vl", "image")),
}
"""Each kind, and each way in which a family differs from the others."""

SEVERAL = {name for name, family in FAMILIES.items() if len(family.places) > 1}
SEVERAL_QUICK = {"gemma4", "qwen3_omni_moe", "qwen2_5_vl"}
MIXED_WRONG = {"qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl_moe"}
"""Beside a picture, mlx-vlm 0.7.10 alone leaves a video out or refuses it. lmx can, because it
looks at one after the other."""


def of_all(cases: dict[str, Any]) -> list[Any]:
    """Return parameters for a test that `make test-all` has only those of whose value is true."""
    return [
        pytest.param(*name.split(":"), marks=() if quick else pytest.mark.conformance, id=name)
        for name, quick in sorted(cases.items())
    ]


@pytest.mark.parametrize(
    ("family", "kind"),
    of_all(
        {
            f"{name}:{kind}": (name, kind) in QUICK
            for name, family in FAMILIES.items()
            for kind in family.places
        }
    ),
)
def test_a_family(tmp_path: Path, family: str, kind: str) -> None:
    with tiny_towers():
        check_media(make_media_model(tmp_path, family), MediaKind(kind))


@pytest.mark.parametrize("family", of_all({name: name in SEVERAL_QUICK for name in SEVERAL}))
def test_kinds_in_one_prompt(tmp_path: Path, family: str) -> None:
    media = [MAKERS[kind][0] for kind in MediaKind if kind.value in FAMILIES[family].places]
    with tiny_towers():
        folder = make_media_model(tmp_path, family)
        check_together(folder, media, by_library=family not in MIXED_WRONG)
