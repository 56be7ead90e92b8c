"""Prompts with pictures, sounds and videos: their places in the text, and the tokens for them.
Prompt thread only."""

import re
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

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
from lmx.worker.mlx.media.processor import AudioLimits, Processed, kind_of, process
from lmx.worker.mlx.media.spans import (
    MediaSpan,
    MediaSpans,
    digest_of,
    image_token_id,
    placeholder_ids,
)


class _Found(NamedTuple):
    """A place in the text of a prompt for something that is no text."""

    begin: int
    end: int
    kind: MediaKind


class _Done(NamedTuple):
    """What the processor has made of a picture, a sound or a video."""

    kind: MediaKind
    processed: Processed


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
        self._audio_limits = AudioLimits()
        self._takes_several_sounds = bool(getattr(processor, "supports_multiple_audio", False))
        lift_audio_limit(processor)

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

    def expand(
        self, text: str, media: Sequence[Media], params: Sequence[str] = ()
    ) -> tuple[list[int], MediaSpans]:
        """Return the tokens of a prompt, of which ``text`` is what the template has made, and what
        its media are. ``params`` are their paths in the request, for errors. The sound of a video,
        if the model hears, comes right behind its frames, or in between where the model was made
        for that.

        Raises :class:`RequestError` if the text has not one place for each of them; for one that
        the processor refuses, or of which it would leave out a part; and if there is not one
        placeholder for each part of what was seen or heard.
        """
        found = list(self._places(text, {kind_of(one) for one in media}))
        # Some templates show the pictures of a message before its sounds, wherever they stand.
        waiting = {kind: deque(own) for kind, own in _by_kind(media).items()}
        if Counter(place.kind for place in found) != Counter(map(kind_of, media)):
            raise _misplaced(len(media), len(found))
        done: list[list[_Done]] = []
        pieces = []
        end = 0
        for place in found:
            number, one = waiting[place.kind].popleft()
            pieces.append(text[end : place.begin])
            param = params[number - 1] if params else "messages"
            done += self._described(self._processed(number, one, param), pieces)
            end = place.end
        pieces.append(text[end:])
        tokens: list[int] = self._tokenizer.encode("".join(pieces), add_special_tokens=False)
        return tokens, self._spans(tokens, done)

    def _described(self, parts: list[_Done], pieces: list[str]) -> list[list[_Done]]:
        """Add the text for a picture or a sound, or for a video and its sound. Return which of
        these have their placeholders among each other's."""
        if len(parts) > 1 and is_omni(self._processor):
            video, sound = parts
            tokens = interleaved(video.processed, sound.processed, self._placeholders)
            pieces.append(self._decode(tokens))
            return [parts]
        pieces += [self._decode(part.processed.tokens) for part in parts]
        return [[part] for part in parts]

    def _marker(self, kind: MediaKind, render: Render) -> Marker:
        marker = self._find(kind, render)
        if marker is None:
            raise RequestError(
                ErrorCode.UNSUPPORTED_VALUE,
                f"This model's chat template has no place for {kind.noun}s: send text, or name "
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

    def _processed(self, number: int, one: Media, param: str) -> list[_Done]:
        """Return what the processor makes of the parts of an item: of a sound in parts if it does
        not take all of it at once, and of the frames and then the sound of a video."""
        try:
            if isinstance(one, Sound):
                windows = self._audio_limits.windows(one, self._process)
                if len(windows) > 1 and not self._takes_several_sounds:
                    raise ValueError(
                        f"it takes one sound of at most {self._audio_limits.most_s:g} seconds, and "
                        f"this one has {one.duration_s:.1f}: send a part of it."
                    )
                return [_Done(MediaKind.AUDIO, self._process(each)) for each in windows]
            done = [_Done(kind_of(one), self._process(one))]
        except Exception as error:  # A processor raises anything for what it can't take.
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"The model can't take {kind_of(one)} {number} of the request: {error}",
                param=param,
            ) from error
        if isinstance(one, Video) and one.sound and self._markers.get(MediaKind.AUDIO):
            done += self._processed(number, one.sound, param)
        return done

    def _process(self, one: Media) -> Processed:
        marker = self._markers[kind_of(one)]
        assert marker is not None
        processed = process(self._processor, one, marker.text, self._image_token)
        if isinstance(one, Video) and is_omni(self._processor):
            return timed(self._processor, one, processed)
        return processed

    def _decode(self, tokens: npt.NDArray[np.int32]) -> str:
        text: str = self._tokenizer.decode(
            tokens.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def _spans(self, tokens: Sequence[int], done: Sequence[Sequence[_Done]]) -> MediaSpans:
        """``done``: those whose placeholders stand among each other's are together."""
        numbers, ids = np.asarray(tokens, np.int32), list(self._placeholders)
        places = np.flatnonzero(np.isin(numbers, ids)).astype(np.int32)
        spans = []
        begin = 0
        for group in done:
            own = [np.flatnonzero(np.isin(each.processed.tokens, ids)) for each in group]
            here = places[begin : begin + sum(map(len, own))]
            begin += len(here)
            for (kind, each), token_places in zip(group, own, strict=True):
                mine = here[np.isin(numbers[here], each.tokens[token_places])]
                if len(mine) != len(token_places) or not len(mine):
                    raise _misplaced(len(done), None)
                digest = digest_of(kind, each.tokens, each.inputs)
                span = MediaSpan(
                    kind, mine, each.tokens, token_places.astype(np.int32), each.inputs, digest
                )
                spans.append(span)
        if begin != len(places):
            raise _misplaced(len(done), None)
        if len(places) and places[-1] == len(tokens) - 1:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                "A prompt can't end with an image, a sound or a video: put text behind it.",
                param="messages",
            )
        return MediaSpans(tuple(spans))


def _by_kind(media: Sequence[Media]) -> dict[MediaKind, list[tuple[int, Media]]]:
    """Return the media of each kind in their order, with their numbers among all of them."""
    found: dict[MediaKind, list[tuple[int, Media]]] = {}
    for number, one in enumerate(media, 1):
        found.setdefault(kind_of(one), []).append((number, one))
    return found


def _misplaced(media: int, places: int | None) -> RequestError:
    found = "" if places is None else f" in {places} places"
    return RequestError(
        ErrorCode.INVALID_VALUE,
        f"The prompt has {media} images, sounds and videos, and the model's chat template shows "
        f"them{found} otherwise: put them only into messages of the user, and send no text that "
        "contains the model's own tokens for them.",
        param="messages",
    )


# Videos with sound as Qwen3-Omni takes them: each sound between the frames at its time. Written as
# transformers 5.23 has it (``Qwen3OmniMoeProcessor.replace_video_with_audio_token``): the frames of
# a grid stand where it begins, and behind them what is heard until the next one begins. mlx-vlm
# 0.7.10 takes all videos for such of one frame a second.

_PROCESSOR: Final = "Qwen3OmniMoeProcessor"
_HEARD_A_SECOND: Final = 13.0
"""How many tokens stand for a second of sound."""
_SECONDS: Final = "video_second_per_grid"


def is_omni(processor: Any) -> bool:
    """Return whether a processor is Qwen3-Omni's."""
    return type(processor).__name__ == _PROCESSOR


def lift_audio_limit(processor: Any) -> None:
    """Let Qwen3-Omni's processor take sounds of any length. Of mlx-vlm's, Whisper's extractor cuts
    them at 30 seconds silently; transformers switches that off."""
    if is_omni(processor) and processor.feature_extractor is not None:
        processor.feature_extractor.n_samples = 2**62


def timed(processor: Any, video: Video, processed: Processed) -> Processed:
    """Return a video's frames with the time between two grids of them."""
    times_s = video.times_s
    between_s = (times_s[-1] - times_s[0]) / (len(times_s) - 1) if len(times_s) > 1 else 1.0
    frames = processor.video_processor.temporal_patch_size
    seconds = np.array([frames * between_s], np.float32)
    return processed._replace(inputs={**processed.inputs, _SECONDS: seconds})


def interleaved(
    video: Processed, sound: Processed, placeholders: Collection[int]
) -> npt.NDArray[np.int32]:
    """Return the tokens of a video and its sound: their beginnings, what is seen and what is heard
    in turns, and their ends. ``video`` is :func:`timed`."""
    ids = list(placeholders)
    seen, heard = (np.flatnonzero(np.isin(one.tokens, ids)) for one in (video, sound))
    grids = int(video.inputs["video_grid_thw"][0][0])
    grid_of_seen = np.repeat(np.arange(grids), len(seen) // grids)
    seen_at = grid_of_seen * float(video.inputs[_SECONDS][0]) * _HEARD_A_SECOND
    tokens = np.concatenate([video.tokens[seen], sound.tokens[heard]])
    # What is seen comes first where both are at one time.
    order = np.argsort(np.concatenate([seen_at, np.arange(len(heard))]), kind="stable")
    return np.concatenate(
        [
            *(video.tokens[: seen[0]], sound.tokens[: heard[0]]),
            tokens[order],
            *(sound.tokens[heard[-1] + 1 :], video.tokens[seen[-1] + 1 :]),
        ]
    )
