"""Whether a model takes the media of a request, before anything is decoded. This module is pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.states import MediaKind
from lmx.worker.media.values import MediaNeeds

_ORDER: Final = (MediaKind.IMAGE, MediaKind.AUDIO, MediaKind.VIDEO)
_NOUNS: Final = {MediaKind.IMAGE: "image", MediaKind.AUDIO: "sound", MediaKind.VIDEO: "video"}


def check_media(items: Sequence[MediaItem], needs: MediaNeeds | None) -> None:
    """Raise ``RequestError`` for the first item of a kind that the model does not take, or of which
    it takes fewer. ``needs``: what the model takes; None: text only."""
    found: Counter[MediaKind] = Counter()
    for item in items:
        if needs is None or item.kind not in needs.kinds:
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                f"This model takes {_taken(needs)}, and no {_NOUNS[item.kind]}s: leave the "
                f"{_NOUNS[item.kind]} out, or name another model.",
                param=item.param,
            )
        found[item.kind] += 1
        most = needs.max_items.get(item.kind)
        if most is not None and found[item.kind] > most:
            noun = _NOUNS[item.kind] + ("" if most == 1 else "s")
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                f"This model takes at most {most} {noun} in a request, earlier messages "
                "included: send fewer, or name another model.",
                param=item.param,
            )


def _taken(needs: MediaNeeds | None) -> str:
    if needs is None:
        return "text only"
    *names, last = ["text", *(f"{_NOUNS[kind]}s" for kind in _ORDER if kind in needs.kinds)]
    return f"{', '.join(names)} and {last}"
