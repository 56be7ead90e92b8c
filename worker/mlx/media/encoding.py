"""What a model computes from a picture, a sound or a video: the embeddings of its placeholders.

Each is embedded alone, with its own tokens: by that, any model's own ``get_input_embeddings`` does
it, and what was computed can be used wherever the same picture stands. The number of features is
held against the number of placeholders, because several classes of mlx-vlm 0.7.10 hide a
difference: they begin from the front again, or leave out the rest.
"""

import functools
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, cast

import mlx.core as mx
import numpy as np

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.states import MediaKind
from lmx.worker.mlx.media.processor import to_mlx
from lmx.worker.mlx.media.spans import MediaSpan, MediaSpans

_OF_POSITIONS: Final = ("image_grid_thw", "video_grid_thw", "video_second_per_grid")
"""From what of a picture or a video the positions of a prompt follow."""
_MERGERS: Final = (
    "merge_input_ids_with_image_features",
    "prepare_inputs_for_multimodal",
    "_prepare_inputs_for_multimodal",
)
"""The methods that put features in the place of placeholders."""

_REFUSED: Final = (
    *("cross_attention_states", "cross_attention_mask", "full_text_row_masked_out_mask"),
    *("decoder_inputs_embeds", "pos_hw"),
)
"""What a model may return that is no part of a KV cache, or that decoding would need as well."""


class FeatureMismatchError(LmxError):
    """A model's encoder makes another number of features than the prompt has places for."""

    def __init__(self, places: int, features: float) -> None:
        super().__init__(
            ErrorCode.ENGINE_ERROR,
            f"The model makes {features:g} features of an image, a sound or a video, and its "
            f"processor {places} places for them: have the model fetched again, or name another "
            "one.",
        )


class Features(NamedTuple):
    """What takes the place of the placeholders of one picture, sound or video."""

    embeddings: mx.array
    """[placeholders, width]."""
    deep: mx.array | None
    """What is added behind the first layers, [layers, placeholders, width]. None: nothing is."""
    dense: bool = False
    """Whether the model takes ``deep`` as [1, tokens, layers, width], with zeros for the text."""

    @property
    def nbytes(self) -> int:
        """Their size, which is known before they are evaluated."""
        return self.embeddings.nbytes + (0 if self.deep is None else self.deep.nbytes)

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays, to be evaluated."""
        return [self.embeddings] if self.deep is None else [self.embeddings, self.deep]


def encode(model: Any, span: MediaSpan) -> Features:
    """Return the features of one picture, sound or video, not evaluated. Engine thread.

    Raises :class:`FeatureMismatchError`, and what the model raises.
    """
    inputs = {name: to_mlx(value) for name, value in span.inputs.items()}
    count = len(span.token_places)
    if hasattr(model, "_merge_deepstack_features"):
        # The class would evaluate all of it before it returns.
        return _checked(count, _deepstack(model, inputs))
    tokens = mx.array(span.tokens)[None]
    options: dict[str, Any] = {**inputs, "mask": mx.ones(tokens.shape, mx.int32)}
    with _counted(model, span):
        output = model.get_input_embeddings(tokens, **_taken(model.get_input_embeddings, options))
    made = {name: value for name, value in output.to_dict().items() if value is not None}
    if refused := [name for name in _REFUSED if name in made]:
        raise NotImplementedError(f"lmx can't pass on {', '.join(refused)}")
    places = mx.array(span.token_places)
    embeddings = made["inputs_embeds"][0, places]
    deep = made.get("deepstack_visual_embeds")
    if isinstance(deep, mx.array) and deep.ndim == 4:
        dense = deep[0, places].transpose(1, 0, 2)
        return _checked(count, Features(embeddings, dense, dense=True))
    return _checked(count, Features(embeddings, _stacked(deep)))


def positions(model: Any, tokens: mx.array, media: MediaSpans) -> dict[str, mx.array]:
    """Return the positions of a whole prompt [1, tokens], ``position_ids`` and ``rope_deltas``, for
    a model in which they don't simply count; for others nothing."""
    rope_index = getattr(model.language_model, "get_rope_index", None)
    if rope_index is None:
        return {}
    grids = {}
    for name in _OF_POSITIONS:
        parts = [np.asarray(span.inputs[name]) for span in media.spans if name in span.inputs]
        if parts:
            grids[name] = mx.array(np.concatenate(parts))
    position_ids, rope_deltas = rope_index(tokens, **_taken(rope_index, grids))
    mx.eval(position_ids, rope_deltas)
    return {"position_ids": position_ids, "rope_deltas": rope_deltas.reshape(1, -1)[:, :1]}


def _deepstack(model: Any, inputs: Mapping[str, Any]) -> Features:
    kind = "pixel_values_videos" if "pixel_values_videos" in inputs else "pixel_values"
    grid = inputs["video_grid_thw" if kind == "pixel_values_videos" else "image_grid_thw"]
    dtype = model.vision_tower.patch_embed.proj.weight.dtype
    features, deep = model.vision_tower(inputs[kind].astype(dtype), grid)
    return Features(features, _stacked(deep))


def _stacked(deep: Any) -> mx.array | None:
    if isinstance(deep, list | tuple):
        return mx.stack(list(deep)) if deep else None
    stacked: mx.array | None = deep
    return stacked


def _checked(count: int, features: Features) -> Features:
    found = features.embeddings.shape[0]
    if found != count:
        raise FeatureMismatchError(count, found)
    if features.deep is not None and features.deep.shape[:-1][1:] != (count,):
        raise NotImplementedError(f"lmx can't pass on deep features of {features.deep.shape}")
    return features


def _taken(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that a function takes."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return dict(options)
    return {name: value for name, value in options.items() if name in parameters}


@contextmanager
def _counted(model: Any, span: MediaSpan) -> Iterator[None]:
    """Raise :class:`FeatureMismatchError` if inside of the block another number of features is put
    in the place of a span's placeholders."""
    count = len(span.token_places)
    module = sys.modules[type(model).__module__]
    scatter = getattr(module, "masked_scatter", None)
    replaced: list[tuple[Any, str, Any]] = []
    if scatter is not None:
        replaced.append((module, "masked_scatter", scatter))
        module.__dict__["masked_scatter"] = _counting_scatter(scatter)
    hears = getattr(model, "thinker", model)
    if span.kind is MediaKind.AUDIO and hasattr(hears, "get_audio_features"):
        # What is too much is cut off by the class, and what lacks is silence.
        replaced.append((hears, "get_audio_features", None))
        listen = _counting_audio(hears.get_audio_features, count)
        object.__setattr__(hears, "get_audio_features", listen)
    for name in _MERGERS:
        plain = getattr(model, name, None)
        if plain is not None and "image_features" in inspect.signature(plain).parameters:
            replaced.append((model, name, None))
            object.__setattr__(model, name, _counting_merger(plain, count))
    try:
        yield
    finally:
        for owner, name, value in replaced:
            if value is None:
                object.__delattr__(owner, name)
            else:
                owner.__dict__[name] = value


def _counting_scatter(scatter: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(scatter)
    def counting(target: mx.array, mask: mx.array, source: mx.array) -> Any:
        width = target.shape[-1]
        places = cast(int, mx.sum(mx.broadcast_to(mask, target.shape).astype(mx.int32)).item())
        # A kind of media that is not there has no places and no features that would be seen.
        if places and places != source.size:
            raise FeatureMismatchError(places // width, source.size / width)
        return scatter(target, mask, source)

    return counting


def _counting_audio(listen: Callable[..., Any], count: int) -> Callable[..., Any]:
    @functools.wraps(listen)
    def counting(*args: Any, **kwargs: Any) -> Any:
        features = listen(*args, **kwargs)
        if isinstance(features, mx.array) and features.size != count * features.shape[-1]:
            raise FeatureMismatchError(count, features.size / features.shape[-1])
        return features

    return counting


def _counting_merger(merge: Callable[..., Any], count: int) -> Callable[..., Any]:
    signature = inspect.signature(merge)

    @functools.wraps(merge)
    def counting(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        features, embeddings = arguments["image_features"], arguments.get("inputs_embeds")
        if isinstance(features, mx.array) and embeddings is not None:
            width = embeddings.shape[-1]
            if features.size != count * width:
                raise FeatureMismatchError(count, features.size / width)
        return merge(*args, **kwargs)

    return counting


_Key = tuple[bytes, str]


class FeatureCache:
    """The features of what was seen or heard last. Engine thread.

    What was computed for requests with one salt is found only by those with the same: the time that
    an answer takes must not show whether somebody else has sent the same picture.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.encoded = 0
        """How many features were put in."""
        self._budget_bytes = limit_bytes
        self._limit_bytes = limit_bytes
        self._held: OrderedDict[_Key, Features] = OrderedDict()
        self._held_bytes = 0

    def get(self, digest: bytes, salt: str) -> Features | None:
        """Return the features of what has this digest; None: they are not here."""
        found = self._held.get((digest, salt))
        if found is not None:
            self._held.move_to_end((digest, salt))
        return found

    def put(self, digest: bytes, salt: str, features: Features) -> None:
        """Keep features, which are evaluated, and give up those that were used least recently."""
        self.encoded += 1
        if features.nbytes > self._limit_bytes or (digest, salt) in self._held:
            return
        self._held[digest, salt] = features
        self._held_bytes += features.nbytes
        self._fit()

    def shrink(self) -> None:
        """Give up half of what is kept, and keep no more than the other half."""
        self._limit_bytes = self._held_bytes // 2
        self._fit()

    def regrow(self) -> None:
        """Keep as much as at first again."""
        self._limit_bytes = self._budget_bytes

    def _fit(self) -> None:
        while self._held_bytes > self._limit_bytes:
            _, features = self._held.popitem(last=False)
            self._held_bytes -= features.nbytes
