"""Finds out by trying whether lmx makes of a prompt with a picture what the model's own class makes
of it.

mlx-vlm has some seventy classes with vision or audio encoders. A few keep a state of the whole
prompt in the model, attend to what lies ahead, or look at pictures from every layer: a prompt in
chunks would be another one for them. A model is asked for no picture that it would not see.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import mlx.core as mx
import numpy as np
import structlog

from lmx.protocol.errors import RequestError
from lmx.protocol.states import MediaKind
from lmx.worker.engine.values import EncodedPrompt, PromptSource, SequenceRequest, SequenceSampling
from lmx.worker.media.values import Media, MediaNeeds, Picture, Sound, Video
from lmx.worker.mlx.decoding.prefill import PromptPrefill
from lmx.worker.mlx.decoding.prefill_media import token_types
from lmx.worker.mlx.media.encoding import FeatureMismatchError, Features
from lmx.worker.mlx.media.processor import to_mlx
from lmx.worker.mlx.media.spans import MediaSpan, MediaSpans
from lmx.worker.mlx.model.forward import Forward, cache_states, logit_difference
from lmx.worker.scheduling.engine_errors import UNFIT, is_device_failure

log = structlog.get_logger()

# A share of the spread of the logits, as in the trial of batches. In tiny models of 13 families a
# picture that is left out moved them by 0.16 to 0.8, and features that are one place off by 0.03 to
# 0.75: the smallest of these can't be distinguished from the rounding of a real model.
_TOLERANCE: Final = 0.1
_SIDE: Final = 112
_FRAMES: Final = 4
_RATE_HZ: Final = 16_000
_PART_S: Final = 0.01


def probe_media(
    forward: Forward, encode: Callable[[PromptSource], EncodedPrompt], needs: MediaNeeds
) -> MediaNeeds | None:
    """Return what a model takes besides text, without the kinds with which it does not work; None:
    nothing is left. If a kind does not work, the reason is logged. Engine thread."""
    plain = copy.copy(forward)
    # Rounded keys are not what is tried here.
    plain.kv_quantization = None
    works: set[MediaKind] = set()
    for kind in sorted(needs.kinds):
        try:
            prompt, other = (encode(_source(kind, needs, seed)) for seed in range(2))
            off = _off(plain, prompt)
            blind = not _differ(plain, prompt, other)
        except (*UNFIT, RequestError, FeatureMismatchError) as error:
            if is_device_failure(error):
                raise
            log.warning("media.unsupported", kind=kind.value, reason=str(error), advice=_ADVICE)
            continue
        if off <= _TOLERANCE and not blind:
            works.add(kind)
        else:
            log.warning("media.unsupported", kind=kind.value, off=off, blind=blind, advice=_ADVICE)
    hears = MediaKind.AUDIO in works
    narrowed = replace(
        needs,
        kinds=frozenset(works),
        sample_rate_hz=needs.sample_rate_hz if hears else None,
        audio_in_video=needs.audio_in_video and hears and MediaKind.VIDEO in works,
    )
    return narrowed if works else None


_ADVICE: Final = "requests with it are refused; the model can be used with text"


def _off(forward: Forward, prompt: EncodedPrompt) -> float:
    """Return how far the logits behind a prompt in two chunks are from those behind the whole."""
    media = prompt.media
    assert isinstance(media, MediaSpans)
    prefill = PromptPrefill(
        forward,
        SequenceRequest(0, prompt.tokens, 1, SequenceSampling(0.0), media=media),
        forward.new_cache(),
        0,
    )
    assert prefill.media is not None
    while (span := prefill.media.missing(0, len(prompt.tokens))) is not None:
        prefill.media.put(span, _encoded(forward, span))
    if prefill.chunked:
        prefill.advance((media.spans[0].start + media.spans[0].end) // 2, ())
    found = prefill.finish()[0].astype(mx.float32)
    mx.eval(found, cache_states(prefill.prompt_cache))
    right = _at_once(forward, prompt, media).astype(mx.float32)
    return logit_difference(found, right)


def _encoded(forward: Forward, span: MediaSpan) -> Features:
    """Return the features of a picture or a sound, in parts. What these take is measured by that
    before the first request."""
    encoding = forward.encode(span, _PART_S)
    encoding.advance(math.inf)
    return encoding.features


def _differ(forward: Forward, *prompts: EncodedPrompt) -> bool:
    """Return whether the model makes something else of each of two prompts' media. Some classes
    silently leave out what they can't see."""
    made = []
    for prompt in prompts:
        assert isinstance(prompt.media, MediaSpans)
        (span,) = prompt.media.spans
        made.append(_encoded(forward, span).embeddings)
    one, other = made
    return one.shape != other.shape or not mx.array_equal(one, other).item()


def _at_once(forward: Forward, prompt: EncodedPrompt, media: MediaSpans) -> mx.array:
    """Return the logits behind a prompt with one picture or sound, as the model's class computes
    them."""
    tokens = mx.array([prompt.tokens])
    (span,) = media.spans
    inputs = {name: to_mlx(value) for name, value in span.inputs.items()}
    mask = mx.ones(tokens.shape, mx.int32)
    known = forward.embed(tokens, mask=mask, **inputs)
    if forward.atomic_media:
        known["mm_token_type_ids"] = mx.array(token_types(media, 0, len(prompt.tokens)))
    return forward.prompt(tokens, forward.new_cache(), known)[0, -1]


def _source(kind: MediaKind, needs: MediaNeeds, seed: int) -> PromptSource:
    content = [
        {"type": "text", "text": "What is this?"},
        {"type": kind.value, "media": 0},
        {"type": "text", "text": "Say it in a few words."},
    ]
    message = {"role": "user", "content": content}
    return PromptSource(messages=[message], media=[_noise(kind, needs, seed)])


def _noise(kind: MediaKind, needs: MediaNeeds, seed: int) -> Media:
    random = np.random.default_rng(seed)
    if kind is MediaKind.AUDIO:
        rate_hz = needs.sample_rate_hz or _RATE_HZ
        return Sound(random.normal(0, 0.1, rate_hz).astype(np.float32), rate_hz)
    frames = random.integers(0, 256, (_FRAMES, _SIDE, _SIDE, 3), dtype=np.uint8)
    if kind is MediaKind.VIDEO:
        return Video(frames, tuple(range(_FRAMES)), float(_FRAMES))
    return Picture(frames[0])
