"""Short ways to ask a decoding process for what is in a file."""

import hashlib
from typing import Any

from lmx.protocol.messages.media import MediaItem
from lmx.protocol.states import MediaForm, MediaKind
from lmx.worker.media.decoder import MediaDecoder
from lmx.worker.media.values import MediaNeeds, Picture, Sound, Video

RATE_HZ = 16_000
EVERYTHING = MediaNeeds(frozenset(MediaKind), sample_rate_hz=RATE_HZ, audio_in_video=True)
PARAM = "messages[0].content[1]"


def item(kind: MediaKind, form: str, file: bytes, **options: Any) -> MediaItem:
    """Return what the router says of a file."""
    digest = hashlib.sha256(file).digest()
    return MediaItem(kind, MediaForm(form), PARAM, len(file), digest, **options)


def picture(decoder: MediaDecoder, form: str, file: bytes, **options: Any) -> Picture:
    """Decode a picture."""
    asked = item(MediaKind.IMAGE, form, file, **options)
    (found,) = decoder.decode([asked], [file], EVERYTHING)
    assert isinstance(found, Picture)
    return found


def sound(decoder: MediaDecoder, form: str, file: bytes, needs: MediaNeeds = EVERYTHING) -> Sound:
    """Decode a sound."""
    (found,) = decoder.decode([item(MediaKind.AUDIO, form, file)], [file], needs)
    assert isinstance(found, Sound)
    return found


def video(
    decoder: MediaDecoder, form: str, file: bytes, needs: MediaNeeds = EVERYTHING, **options: Any
) -> Video:
    """Decode a video."""
    (found,) = decoder.decode([item(MediaKind.VIDEO, form, file, **options)], [file], needs)
    assert isinstance(found, Video)
    return found
