"""The places of pictures, sounds and videos in a prompt, the tokens that stand there, and what the
model computes them from."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lmx.protocol.states import MediaKind
from lmx.worker.engine.values import PromptMedia, SequenceRequest

_LEAST_WORDS: Final = 5
"""This many words of 31 bits distinguish any two media, whoever chose them."""


@dataclass(frozen=True, slots=True, eq=False)
class MediaSpan:
    """A picture, a sound or a video in a prompt. The arrays are numpy's, because those of MLX
    belong to the thread that made them."""

    kind: MediaKind
    places: npt.NDArray[np.int32]
    """Where in the prompt its placeholders are, in order. Between them may be other tokens, such as
    those for the end of a line of a picture."""
    tokens: npt.NDArray[np.int32]
    """Its placeholders and the tokens that the processor puts around and between them."""
    token_places: npt.NDArray[np.int32]
    """Where in ``tokens`` its placeholders are."""
    inputs: Mapping[str, Any]
    """What the model's encoder takes, by the name of the argument: numbers, texts, arrays, and
    lists of them. Empty once it is released."""
    digest: bytes
    """The SHA-256 of the kind, the tokens and the inputs: everything that the model sees of it."""

    @property
    def start(self) -> int:
        """The place of its first placeholder."""
        return int(self.places[0])

    @property
    def end(self) -> int:
        """The place behind its last placeholder."""
        return int(self.places[-1]) + 1


@dataclass(slots=True, eq=False)
class MediaSpans:
    """All media of a prompt, in its order. It is what ``PromptMedia``
    promises. All rows of a request share it."""

    spans: tuple[MediaSpan, ...]

    @property
    def image_tokens(self) -> int:
        """How many tokens of the prompt stand for pictures."""
        return self._count(MediaKind.IMAGE)

    @property
    def audio_tokens(self) -> int:
        """How many tokens of the prompt stand for sounds."""
        return self._count(MediaKind.AUDIO)

    @property
    def video_tokens(self) -> int:
        """How many tokens of the prompt stand for videos."""
        return self._count(MediaKind.VIDEO)

    @property
    def size_bytes(self) -> int:
        """How much memory the arrays take."""
        return sum(_size_bytes(value) for span in self.spans for value in span.inputs.values())

    def release(self) -> None:
        """Give the encoder's inputs back. Places and digests stay: they distinguish prompts."""
        self.spans = tuple(replace(span, inputs={}) for span in self.spans)

    def restore(self, again: PromptMedia) -> None:
        """Take the inputs of the same media. Raises ``ValueError`` for others."""
        assert isinstance(again, MediaSpans)
        if [span.digest for span in self.spans] != [span.digest for span in again.spans]:
            raise ValueError("the media of the prompt were decoded to something else than before")
        self.spans = tuple(
            replace(span, inputs=same.inputs)
            for span, same in zip(self.spans, again.spans, strict=True)
        )

    @property
    def salt(self) -> str:
        """What has to be added to the salt of the prefix cache, because media with few placeholders
        are not distinguished by their keys. Empty for most."""
        return "".join(
            f" {span.digest.hex()}" for span in self.spans if len(span.places) < _LEAST_WORDS
        )

    def keyed(self, tokens: Sequence[int]) -> npt.NDArray[np.int32]:
        """Return the tokens of the prompt, or of its beginning, or of more than it, as keys for
        comparing prompts: the placeholders are replaced by negative numbers that follow from what
        they stand for."""
        keys = np.array(tokens, np.int32)
        for span in self.spans:
            here = int(np.searchsorted(span.places, len(keys)))
            keys[span.places[:here]] = _words(span)[:here]
        return keys

    def _count(self, kind: MediaKind) -> int:
        return sum(len(span.places) for span in self.spans if span.kind is kind)


def _size_bytes(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(map(_size_bytes, value))
    return int(getattr(value, "nbytes", 0))


def media_of(row: SequenceRequest) -> MediaSpans | None:
    """Return the media of a row's prompt; None: it has none."""
    media = row.media
    assert media is None or isinstance(media, MediaSpans)
    return media


def digest_of(kind: MediaKind, tokens: npt.NDArray[np.int32], inputs: Mapping[str, Any]) -> bytes:
    """Return the digest of what a model sees of one picture, sound or video."""
    digest = hashlib.sha256(kind.encode())
    _add(digest, tokens)
    for name in sorted(inputs):
        _add(digest, name)
        _add(digest, inputs[name])
    return digest.digest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        content = np.ascontiguousarray(value)
        head = f"{content.dtype.str}{content.shape}".encode()
        digest.update(len(head).to_bytes(8, "little") + head)
        digest.update(content.reshape(-1).view(np.uint8).data)
    elif isinstance(value, list | tuple):
        digest.update(b"list" + len(value).to_bytes(8, "little"))
        for part in value:
            _add(digest, part)
    else:
        text = repr(value).encode()
        digest.update(len(text).to_bytes(8, "little") + text)


def _words(span: MediaSpan) -> npt.NDArray[np.int32]:
    count = len(span.places)
    drawn = np.frombuffer(hashlib.shake_256(span.digest).digest(4 * count), "<u4")
    # With the sign bit they are no token's number.
    return (drawn | np.uint32(1 << 31)).view(np.int32)


_NAMES: Final = frozenset(
    f"{what}_{number}"
    for what, number in itertools.product(
        (
            *("image_token", "img_token", "image_context_token", "img_context_token"),
            *("media_placeholder_token", "video_token", "audio_token"),
        ),
        ("id", "index", "idx"),
    )
)
"""Their names in config.json, of all families."""

_SECTIONS: Final = ("thinker_config", "text_config")


def placeholder_ids(config: Any, processor: Any) -> frozenset[int]:
    """Return the placeholders of a model, of all kinds, by its configuration and its processor."""
    found = _named(config) | _named(processor)
    for section in _SECTIONS:
        found |= _named(getattr(config, section, None))
    return frozenset(found)


def image_token_id(config: Any) -> int | None:
    """Return the placeholder of pictures; None if the configuration does not name it."""
    for name in ("image_token_index", "image_token_id"):
        token = getattr(config, name, None)
        if isinstance(token, int):
            return token
    return None


def _named(owner: Any) -> set[int]:
    tokens = (getattr(owner, name, None) for name in _NAMES)
    return {token for token in tokens if isinstance(token, int) and token >= 0}
