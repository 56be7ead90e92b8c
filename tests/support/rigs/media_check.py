"""Whether lmx computes what a model of mlx-vlm computes for a prompt with pictures and sounds,
however it comes about: in chunks, after a cached beginning, in a batch."""

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np

from lmx.protocol.messages.tasks import Tokenize, Tokenized
from lmx.protocol.states import MediaKind
from lmx.worker.engine.values import (
    EncodedPrompt,
    ModelFacts,
    PromptSource,
    SequenceRequest,
    SequenceSampling,
)
from lmx.worker.media.values import Media, Picture, Sound, Video
from lmx.worker.mlx.decoding.batch_mode import can_batch
from lmx.worker.mlx.decoding.prefill import PromptPrefill
from lmx.worker.mlx.media.encoding import FeatureCache
from lmx.worker.mlx.media.media_prompt import MediaPrompts
from lmx.worker.mlx.media.spans import MediaSpans
from lmx.worker.mlx.model.batch_slots import join
from lmx.worker.mlx.model.forward import Forward, PromptCache, cache_states
from lmx.worker.mlx.model.library import open_checkpoint
from lmx.worker.mlx.model.prompt_encoder import PromptEncoder
from lmx.worker.mlx.model.token_text import TokenTasks
from tests.support.models.media_models import MlxVlmAlone, conversation, tiny_towers
from tests.support.rigs.one_renderer import renderer

CHUNKS: Final = (1, 5, 8, 16)
TOLERANCE: Final = 2e-3
"""A share of the spread of the logits. A feature in a wrong place moves them by a hundred times
as much."""

PART_S: Final = 1e-5
"""So little that also tiny models compute in slices."""

RATE_HZ: Final = 16000


def picture(seed: int, height: int = 60, width: int = 76) -> Picture:
    """Return a picture of noise."""
    drawn = np.random.default_rng(seed).integers(0, 256, (height, width, 3))
    return Picture(drawn.astype(np.uint8))


def sound(seed: int, seconds: float = 0.7) -> Sound:
    """Return a sound of noise."""
    drawn = np.random.default_rng(seed).normal(0, 0.2, int(seconds * RATE_HZ))
    return Sound(drawn.astype(np.float32), RATE_HZ)


def video(seed: int, frames: int = 4) -> Video:
    """Return a video of noise, two frames a second."""
    drawn = np.random.default_rng(seed).integers(0, 256, (frames, 64, 80, 3))
    times_s = tuple(place / 2 for place in range(frames))
    return Video(drawn.astype(np.uint8), times_s, frames / 2)


MAKERS: Final[Mapping[MediaKind, tuple[Media, Media, Media]]] = {
    MediaKind.IMAGE: (picture(1), picture(2, 90, 50), picture(3)),
    # Where sounds of different lengths are encoded together, mlx-vlm lets the shorter one hear its
    # padding.
    MediaKind.AUDIO: (sound(1), sound(2), sound(3)),
    MediaKind.VIDEO: (video(1), video(2, 6), video(3)),
}
"""Three of each kind, not all of one size."""


class MediaModel:
    """A folder's model, as the engine has it."""

    def __init__(self, folder: Path) -> None:
        with tiny_towers():
            checkpoint = open_checkpoint(folder)
        assert checkpoint.processor is not None, "the folder has no processor"
        mx.eval(checkpoint.model.parameters())
        self.model = checkpoint.model
        self.needs = checkpoint.media
        self.processor = checkpoint.processor
        self.forward = Forward(checkpoint.model)
        self._features = FeatureCache(1 << 30)
        facts = ModelFacts(4096, checkpoint.end_ids, self.forward.vocabulary_size)
        self._tokenizer = checkpoint.tokenizer
        config = checkpoint.model.config
        self.prompts = PromptEncoder(
            checkpoint.tokenizer,
            facts,
            renderer(),
            MediaPrompts(
                checkpoint.processor, checkpoint.tokenizer, config, str(config.model_type)
            ),
        )

    def encode(self, *parts: str | Media) -> EncodedPrompt:
        """Return the prompt of one message."""
        return self.prompts.encode(_source(parts))

    def counted(self, *parts: str | Media) -> Sequence[int]:
        """Return the tokens that such a message is said to have where tokens are counted."""
        source = _source(parts)
        tasks = TokenTasks(self._tokenizer, 4096, 4096, self.prompts.encode)
        task = Tokenize(1, "r", 9.0, messages=tuple(map(dict, source.messages or ())))
        reply = tasks.reply(task, source.media)
        assert isinstance(reply, Tokenized)
        return reply.tokens

    def begin(
        self, prompt: EncodedPrompt, cache: PromptCache | None = None, cached: int = 0
    ) -> PromptPrefill:
        """Return a prompt's prefill, behind what is cached."""
        row = SequenceRequest(0, prompt.tokens, 1, SequenceSampling(0.0), media=prompt.media)
        return PromptPrefill(self.forward, row, cache or self.forward.new_cache(), cached)

    def advance(self, prefill: PromptPrefill, chunk: int) -> None:
        """Read the next chunk."""
        if not prefill.ready:
            self._encode(prefill, prefill.done_tokens + chunk)
            prefill.advance(chunk, ())

    def finish(self, prefill: PromptPrefill, chunk: int = 1000) -> np.ndarray[Any, Any]:
        """Read the rest, and return the logits behind the prompt."""
        while not prefill.ready:
            self.advance(prefill, chunk)
        self._encode(prefill, len(prefill.row.prompt))
        logits = prefill.finish()[0].astype(mx.float32)
        mx.eval(logits, cache_states(prefill.prompt_cache))
        return np.array(logits)

    def logits(self, prompt: EncodedPrompt, chunk: int = 1000) -> np.ndarray[Any, Any]:
        """Return the logits behind a prompt that is read in chunks."""
        return self.finish(self.begin(prompt), chunk)

    def _encode(self, prefill: PromptPrefill, end: int) -> None:
        if prefill.media is None:
            return
        while (span := prefill.media.missing(prefill.done_tokens, end)) is not None:
            features = self._features.get(span.digest, "")
            if features is None:
                encoding = self.forward.encode(span, PART_S)
                while not encoding.advance(0.0):
                    pass
                features = encoding.features
                self._features.put(span.digest, "", features)
            prefill.media.put(span, features)


def _source(parts: Sequence[str | Media]) -> PromptSource:
    media = [part for part in parts if not isinstance(part, str)]
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
        else:
            kind = {Picture: "image", Sound: "audio", Video: "video"}[type(part)]
            content.append({"type": kind, "media": media.index(part)})
    message = {"role": "user", "content": content if media else parts[0]}
    return PromptSource(messages=[message], media=media)


def check_media(folder: Path, kind: MediaKind = MediaKind.IMAGE) -> None:
    """Check a folder's model with prompts that have two pictures, sounds or videos."""
    model = MediaModel(folder)
    one, other, third = MAKERS[kind]
    prompt = model.encode("ab", one, "cde", other, "fghij")
    reported = conversation("ab", 0, "cde", 1, "fghij", kind=kind.value)
    tokens, logits = MlxVlmAlone(folder).logits(reported, [one, other])
    right = logits[-1]
    assert list(prompt.tokens) == tokens, "the tokens are not those of the processor"
    assert list(model.counted("ab", one, "cde", other, "fghij")) == tokens, "it is counted wrong"
    spread = right.std()

    def off(logits: np.ndarray[Any, Any]) -> float:
        return float(np.abs(logits - right).max() / spread)

    assert off(model.logits(prompt)) < TOLERANCE, "the prompt at once"
    for chunk in CHUNKS:
        assert off(model.logits(prompt, chunk)) < TOLERANCE, f"chunks of {chunk}"
    check_slices(model, prompt)
    check_cached(model, prompt, right)
    check_batch(model, prompt, model.encode("klm", third, "n"))
    for first, second in ((third, other), (other, one), (one, third)):
        changed = model.encode("ab", first, "cde", second, "fghij")
        assert off(model.logits(changed)) > 10 * TOLERANCE, "it sees no difference"


def check_together(folder: Path, media: Sequence[Media], *, by_library: bool) -> None:
    """Check a prompt with media of several kinds: in chunks, after a cached beginning, and
    reversed. ``by_library``: also against what mlx-vlm makes of it at once."""
    model = MediaModel(folder)
    parts = [part for each in media for part in ("ab", each)]
    prompt = model.encode(*parts, "cdef")
    right = model.logits(prompt)
    if by_library:
        messages = _source((*parts, "cdef")).messages or ()
        tokens, logits = MlxVlmAlone(folder).logits(messages, media)
        assert list(prompt.tokens) == tokens, "the tokens are not those of the processor"
        off = np.abs(right - logits[-1]).max()
        assert off < TOLERANCE * right.std(), "the prompt at once"
    for chunk in CHUNKS[1:]:
        off = np.abs(model.logits(prompt, chunk) - right).max()
        assert off < TOLERANCE * right.std(), f"chunks of {chunk}"
    check_cached(model, prompt, right)
    reversed_parts = [part for each in reversed(media) for part in ("ab", each)]
    off = np.abs(model.logits(model.encode(*reversed_parts, "cdef")) - right).max()
    assert off > 10 * TOLERANCE * right.std(), "it sees no difference"


def check_slices(model: MediaModel, prompt: EncodedPrompt) -> None:
    """Check that what is computed of media in slices is what is computed in one go."""
    media = prompt.media
    assert isinstance(media, MediaSpans)
    found = []
    for part_s in (math.inf, PART_S):
        encoding = model.forward.encode(media.spans[0], part_s)
        slices = sum(part.multiplications > 0 for part in encoding._left)
        encoding.advance(math.inf)
        found.append((slices, np.array(encoding.features.embeddings.astype(mx.float32))))
    (none, whole), (some, sliced) = found
    assert none == 0 and some > 4, "nothing is sliced"
    assert np.abs(sliced - whole).max() < 1e-3 * np.abs(whole).max(), "slices"


def check_cached(model: MediaModel, prompt: EncodedPrompt, right: np.ndarray[Any, Any]) -> None:
    """Check a prompt whose beginning is cached: before, inside and behind each of its media."""
    media = prompt.media
    assert isinstance(media, MediaSpans)
    for span in media.spans:
        inside = [] if model.forward.atomic_media else [(span.start + span.end) // 2]
        for cached in (span.start - 1, span.start, *inside, span.end):
            first = model.begin(prompt)
            while first.done_tokens < cached and not first.ready:
                model.advance(first, cached - first.done_tokens)
            again = model.begin(prompt, copy.deepcopy(first.prompt_cache), first.done_tokens)
            off = float(np.abs(model.finish(again, 7) - right).max() / right.std())
            assert off < TOLERANCE, f"{first.done_tokens} tokens were cached"


def check_batch(model: MediaModel, *prompts: EncodedPrompt) -> None:
    """Check that rows with media and one without decode together as they do alone."""
    if not can_batch(model.forward):
        return
    rows = []
    for prompt in (*prompts, model.encode("just text")):
        prefill = model.begin(prompt)
        model.finish(prefill, 6)
        rows.append((prefill.prompt_cache, prefill.rope_deltas()))
    following = [[70 + place, 90 + place] for place in range(len(rows))]
    alone = [
        _decoded(model.forward, copy.deepcopy(cache), deltas, [tokens])
        for (cache, deltas), tokens in zip(rows, following, strict=True)
    ]
    joined: PromptCache = []
    for cache, _ in rows:
        joined = join(joined, cache) if joined else cache
    deltas = [each for _, each in rows if each is not None]
    together = _decoded(
        model.forward, joined, mx.concatenate(deltas) if deltas else None, following
    )
    for place, right in enumerate(alone):
        off = float(np.abs(together[place] - right[0]).max() / right.std())
        assert off < TOLERANCE, f"row {place} of the batch"


def _decoded(
    forward: Forward,
    cache: PromptCache,
    deltas: mx.array | None,
    following: Sequence[Sequence[int]],
) -> np.ndarray[Any, Any]:
    for tokens in zip(*following, strict=True):
        logits = forward.decode(mx.array(tokens)[:, None], cache, deltas)[:, -1]
        mx.eval(logits)
    return np.array(logits.astype(mx.float32))
