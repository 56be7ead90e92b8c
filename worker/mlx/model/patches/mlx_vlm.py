"""Models of mlx-vlm 0.7.10 that are computed wrongly as they are, and what makes them right.

Each patch changes the modules of one model. Its docstring says what is wrong without it.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import mlx.core as mx
from mlx_vlm.quantization import checkpoint

from lmx.worker.mlx.model.passes import note_pass
from lmx.worker.mlx.model.patches.qwen3_omni import patch_qwen3_omni
from lmx.worker.mlx.module_calls import replace_methods

_MODELS: Final = "mlx_vlm.models."

_LARGE_BYTES: Final = 4 * 1024**2
_decode: Final = checkpoint._dequantize_compressed_tensors_fp8_weight


def _decode_with_progress(
    weight: mx.array, scale: mx.array, block_structure: list[int] | None = None
) -> mx.array:
    """mlx-vlm decodes 8-bit floats while it opens a model, 256 weights at a time. That may be
    gigabytes to read from a slow disk, so the large ones are evaluated one by one, each of which is
    noted as progress."""
    note_pass()
    decoded: mx.array = _decode(weight, scale, block_structure)
    if decoded.nbytes >= _LARGE_BYTES:
        mx.eval(decoded)
    return decoded


checkpoint._dequantize_compressed_tensors_fp8_weight = _decode_with_progress


def patch_mlx_vlm(model: Any) -> None:
    """Patch a model if its class is one of those that need it."""
    _, _, name = type(model).__module__.partition(_MODELS)
    if patch := _PATCHES.get(name.partition(".")[0]):
        patch(model)


def _patch_gemma3n(model: Any) -> None:
    """Gemma 3n with its encoders: the embeddings of a prompt are not multiplied as the tokens of an
    answer are (in transformers ``Gemma3nTextScaledWordEmbedding`` does it). And the layers that
    read the keys of an earlier one turn their queries as if the tokens came after themselves,
    because that layer has moved the cache on: a prompt in chunks would be another one than the
    whole prompt. mlx-lm's class, which is of text alone, does both right."""
    plain = type(model)

    def scaled(patched: Any, input_ids: mx.array, *args: Any, **kwargs: Any) -> Any:
        found = plain.get_input_embeddings(patched, input_ids, *args, **kwargs)
        is_text = (input_ids < patched.embed_vision.vocab_offset)[..., None]
        embeddings = found.inputs_embeds
        scale = patched.config.text_config.hidden_size**0.5
        found.inputs_embeds = mx.where(is_text, embeddings * scale, embeddings)
        return found

    replace_methods(model, get_input_embeddings=scaled)
    for layer in model.language_model.model.layers:
        if layer.self_attn.is_kv_shared_layer:
            _turn_where_they_are(layer.self_attn)


class _Before:
    """A cache as it was before the tokens of a pass were added, but with their keys in it."""

    def __init__(self, cache: Any, tokens: int) -> None:
        self._cache = cache
        self.offset = cache.offset - tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def _turn_where_they_are(attention: Any) -> None:
    plain = type(attention)

    def call(patched: Any, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        before = None if cache is None else _Before(cache, x.shape[1])
        found: mx.array = plain.__call__(patched, x, mask, before)
        return found

    replace_methods(attention, __call__=call)


def _patch_hy_v4(model: Any) -> None:
    """Hy V4: its indexer is compiled once for all lengths, but the place at which it parts the
    scores is counted from the end of the first text that it meets. For every other length it takes
    other tokens, or fewer: what an answer is then depends on the length of the first prompt after
    the load."""
    indexer: Any = importlib.import_module(f"{_MODELS}hy_v4.indexer")
    indexer._partition_scores = _partition_scores


def _partition_scores(top_k: int, masked: bool) -> Callable[..., mx.array]:
    """Return the same as mlx-vlm's function does, but not compiled."""

    def partition(
        queries: mx.array, keys: mx.array, weights: mx.array, mask: mx.array | None = None
    ) -> mx.array:
        scores = mx.maximum(queries @ keys.swapaxes(-1, -2), 0)
        scores = (scores * weights.swapaxes(-1, -2)[..., None]).sum(axis=1, keepdims=True)
        if masked and mask is not None:
            scores = mx.where(mask, scores, -mx.inf)
        return mx.argpartition(scores, kth=-top_k, axis=-1)

    return partition


def _patch_mllama(model: Any) -> None:
    """Llama 3.2 Vision: where a text has no picture, its cross attention reads the queries as keys
    and values. transformers passes over these layers then. With a picture, an answer would read
    the same; :mod:`lmx.worker.mlx.media.encoding` refuses pictures of this kind."""
    for index in model.language_model.config.cross_attention_layers:
        replace_methods(model.layers[index], __call__=_pass_over)


def _pass_over(layer: Any, hidden_states: mx.array, **seen: Any) -> mx.array:
    if seen.get("cross_attention_states") is not None:
        raise NotImplementedError("lmx does not show pictures to models of the type mllama")
    return hidden_states


def _patch_modernbert(model: Any) -> None:
    """ModernBERT in float16: what masks a token out is -1e9, which becomes -inf. Padding that sees
    nothing but padding in its window is then no number, and after the next layer nothing is one."""
    plain = type(model)

    def finite(patched: Any, attention_mask: mx.array, dtype: mx.Dtype) -> tuple[mx.array, ...]:
        least = mx.array(mx.finfo(dtype).min, dtype)
        return tuple(
            mx.maximum(mask, least) for mask in plain._masks(patched, attention_mask, dtype)
        )

    replace_methods(model, _masks=finite)


def _reset_rope_deltas(model: Any) -> None:
    """Classes that keep rope deltas from one call to the next. In Cohere Compass and the kinds of
    GLM-4V and GLM-OCR, they are those of the picture or the rows that were computed last, and the
    next chunk of any text gets its positions by them. PaddleOCR-VL forgets them, and lets the next
    chunk begin at the first position. lmx passes on the positions of a prompt with pictures, and
    the rope deltas of the rows that decode: what is kept is only used for text."""
    plain = type(model)

    def embed(patched: Any, *args: Any, **kwargs: Any) -> Any:
        found = plain.get_input_embeddings(patched, *args, **kwargs)
        patched.language_model._rope_deltas = mx.zeros((1, 1), mx.int32)
        return found

    replace_methods(model, get_input_embeddings=embed)


def _patch_glm_ocr(model: Any) -> None:
    """GLM-OCR: in addition, it keeps the positions of the prompt that it embedded or computed last,
    and a row that decodes alone gets these as long as it is shorter, whatever its rope deltas
    are."""
    _reset_rope_deltas(model)
    plain = type(model.language_model)

    def call(patched: Any, inputs: mx.array, inputs_embeds: Any = None, **kwargs: Any) -> Any:
        if inputs_embeds is None:  # It decodes. A prompt was embedded just before.
            patched._position_ids = None
        return plain.__call__(patched, inputs, inputs_embeds, **kwargs)

    replace_methods(model.language_model, __call__=call)


_PATCHES: Final[Mapping[str, Callable[[Any], None]]] = {
    "cohere_compass": _reset_rope_deltas,
    "gemma3n": _patch_gemma3n,
    "glm4v": _reset_rope_deltas,
    "glm4v_moe": _reset_rope_deltas,
    "glm_ocr": _patch_glm_ocr,
    "hy_v4": _patch_hy_v4,
    "mllama": _patch_mllama,
    "modernbert": _patch_modernbert,
    "paddleocr_vl": _reset_rope_deltas,
    "qwen3_omni_moe": patch_qwen3_omni,
}
"""By the package of a model's class."""
