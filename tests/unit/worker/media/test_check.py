"""What a model doesn't take is refused before it is decoded, and the error names the part."""

import pytest

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.states import MediaForm, MediaKind
from lmx.worker.media.values import MediaNeeds, check_media

EYES = MediaNeeds(frozenset({MediaKind.IMAGE}))
ALL = MediaNeeds(frozenset(MediaKind), 16_000)
ONE = MediaNeeds(frozenset(MediaKind), 16_000, {MediaKind.IMAGE: 2, MediaKind.AUDIO: 1})


def items(kinds: str) -> list[MediaItem]:
    known = {each.value[0]: each for each in MediaKind}
    return [
        MediaItem(known[kind], MediaForm.PNG, f"part {place}", 1, bytes(32))
        for place, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("kinds", "needs"),
    [("", None), ("", EYES), ("iii", EYES), ("iavaiv", ALL), ("iiavvv", ONE)],
)
def test_taken(kinds: str, needs: MediaNeeds | None) -> None:
    check_media(items(kinds), needs)


@pytest.mark.parametrize(
    ("kinds", "needs", "place", "reported"),
    [
        ("i", None, 0, "takes text only, and no images"),
        ("ia", EYES, 1, "takes text and images, and no sounds"),
        ("vi", EYES, 0, "and no videos"),
        ("iaia", ONE, 3, "at most 1 sound in"),
        ("iiai", ONE, 3, "at most 2 images in"),
    ],
)
def test_refused(kinds: str, needs: MediaNeeds | None, place: int, reported: str) -> None:
    with pytest.raises(RequestError, match=reported) as caught:
        check_media(items(kinds), needs)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VALUE
    assert caught.value.param == f"part {place}"


def test_all_kinds_are_reported() -> None:
    with pytest.raises(RequestError, match="text, images and sounds, and no videos"):
        check_media(items("v"), MediaNeeds(frozenset({MediaKind.IMAGE, MediaKind.AUDIO})))
