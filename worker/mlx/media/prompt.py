"""Prompts with pictures, sounds and videos: their places in the text, and the tokens for them.
Prompt thread only."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.states import MediaKind
from lmx.worker.media.values import Media, Sound, Video
from lmx.worker.mlx.media.markers import (
    Marker,
    Message,
    Render,
    find_marker,
    in_template_form,
    takes_text,
)
from lmx.worker.mlx.media.placeholders import image_token_id, placeholder_ids
from lmx.worker.mlx.media.processor import Processed, kind_of, process
from lmx.worker.mlx.media.spans import MediaSpan, MediaSpans, digest_of


class _Found(NamedTuple):
    """A place in the text of a prompt for something that is no text."""

    begin: int
    end: int
    kind: MediaKind


class MediaPrompts:
    """What one model's processor makes of media. It has the processor and the tokenizer to itself.

    A processor is given one picture, sound or video at a time, with what the template writes for
    it. The text that it makes of that takes its place in the prompt, which is tokenized as a whole,
    as the processor would do with all of them.
    """

    def __init__(self, processor: Any, tokenizer: Any, config: Any, model_type: str) -> None:
        """``config`` is the model's."""
        self._processor = processor
        self._tokenizer = tokenizer
        self._model_type = model_type
        self._placeholders = placeholder_ids(config, processor)
        self._image_token = image_token_id(config)
        self._markers: dict[MediaKind, Marker | None] = {}
        self._takes_text: bool | None = None

    def in_template_form(self, messages: Sequence[Message], render: Render) -> list[Message]:
        """Return the messages as the template wants them. Raises :class:`RequestError` for media
        for which it has no place."""
        if self._takes_text is None:
            self._takes_text = takes_text(render)
        kinds = {
            MediaKind(part["type"])
            for message in messages
            if isinstance(message.get("content"), list)
            for part in message["content"]
            if part["type"] != "text"
        }
        markers = {kind: self._marker(kind, render) for kind in kinds}
        if MediaKind.VIDEO in kinds:
            self._find(MediaKind.AUDIO, render)  # For its sound.
        return in_template_form(messages, markers, parts_only=not self._takes_text)

    def expand(self, text: str, media: Sequence[Media]) -> tuple[list[int], MediaSpans]:
        """Return the tokens of a prompt, of which ``text`` is what the template has made, and what
        its media are. The sound of a video, if the model hears, comes right behind its frames.

        Raises :class:`RequestError` if the text has not one place for each of them; for one that
        the processor refuses; and if there is not one placeholder for each part of what was seen
        or heard.
        """
        found = list(self._places(text, {kind_of(one) for one in media}))
        # Some templates show the pictures of a message before its sounds, wherever they stand.
        waiting = {kind: deque(own) for kind, own in _by_kind(media).items()}
        if Counter(place.kind for place in found) != Counter(map(kind_of, media)):
            raise _misplaced(len(media), len(found))
        done: list[tuple[MediaKind, Processed]] = []
        pieces = []
        end = 0
        for place in found:
            number, one = waiting[place.kind].popleft()
            pieces.append(text[end : place.begin])
            for part in (one, *self._heard(one)):
                processed = self._process(number, part)
                pieces.append(self._decode(processed))
                done.append((kind_of(part), processed))
            end = place.end
        pieces.append(text[end:])
        tokens: list[int] = self._tokenizer.encode("".join(pieces), add_special_tokens=False)
        return tokens, self._spans(tokens, done)

    def _heard(self, one: Media) -> Iterator[Sound]:
        """Yield the sound of a video, if the model has a place for it."""
        if isinstance(one, Video) and one.sound and self._markers.get(MediaKind.AUDIO):
            yield one.sound

    def _marker(self, kind: MediaKind, render: Render) -> Marker:
        marker = self._find(kind, render)
        if marker is None:
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                f"This model's chat template has no place for {_NOUNS[kind]}: send text, or name "
                "another model.",
                param="messages",
            )
        return marker

    def _find(self, kind: MediaKind, render: Render) -> Marker | None:
        if kind not in self._markers:
            self._markers[kind] = find_marker(render, kind, self._model_type, self._encode)
        return self._markers[kind]

    def _encode(self, text: str) -> Sequence[int]:
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def _places(self, text: str, kinds: Collection[MediaKind]) -> Iterator[_Found]:
        markers = {kind: self._markers[kind] for kind in kinds}
        known = {marker.text: kind for kind, marker in markers.items() if marker}
        # A longer marker may contain a shorter one.
        pattern = "|".join(re.escape(one) for one in sorted(known, key=len, reverse=True))
        for match in re.finditer(pattern, text) if pattern else ():
            yield _Found(match.start(), match.end(), known[match.group()])

    def _process(self, number: int, one: Media) -> Processed:
        kind = kind_of(one)
        marker = self._markers[kind]
        assert marker is not None
        try:
            return process(self._processor, one, marker.text, self._image_token)
        except Exception as error:  # A processor raises anything for what it can't take.
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"The model can't take {kind} {number} of the request: {error}",
                param="messages",
            ) from error

    def _decode(self, processed: Processed) -> str:
        text: str = self._tokenizer.decode(
            processed.tokens.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def _spans(
        self, tokens: Sequence[int], done: Sequence[tuple[MediaKind, Processed]]
    ) -> MediaSpans:
        ids = list(self._placeholders)
        places = np.flatnonzero(np.isin(np.asarray(tokens, np.int32), ids)).astype(np.int32)
        own = [np.flatnonzero(np.isin(each.tokens, ids)).astype(np.int32) for _, each in done]
        if sum(map(len, own)) != len(places) or not all(map(len, own)):
            raise _misplaced(len(done), None)
        if len(places) and places[-1] == len(tokens) - 1:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                "A prompt can't end with an image, a sound or a video: put text behind it.",
                param="messages",
            )
        ends = np.cumsum([len(each) for each in own])
        return MediaSpans(
            tuple(
                MediaSpan(
                    kind,
                    places[end - len(token_places) : end],
                    each.tokens,
                    token_places,
                    each.inputs,
                    digest_of(kind, each.tokens, each.inputs),
                )
                for (kind, each), token_places, end in zip(done, own, ends, strict=True)
            )
        )


def _by_kind(media: Sequence[Media]) -> dict[MediaKind, list[tuple[int, Media]]]:
    """Return the media of each kind in their order, with their numbers among all of them."""
    found: dict[MediaKind, list[tuple[int, Media]]] = {}
    for number, one in enumerate(media, 1):
        found.setdefault(kind_of(one), []).append((number, one))
    return found


_NOUNS = {
    MediaKind.IMAGE: "images",
    MediaKind.AUDIO: "sound",
    MediaKind.VIDEO: "videos",
}


def _misplaced(media: int, places: int | None) -> RequestError:
    found = "" if places is None else f" in {places} places"
    return RequestError(
        ErrorCode.INVALID_VALUE,
        f"The prompt has {media} images, sounds and videos, and the model's chat template shows "
        f"them{found} otherwise: put them only into messages of the user, and send no text that "
        "contains the model's own tokens for them.",
        param="messages",
    )
