"""What lmx uses of mlx-vlm that it promises nobody: that it is there, and does what is built on."""

import inspect

import mlx.core as mx
from mlx_vlm.generate.ar import _extend_cache
from mlx_vlm.models.cache import BatchKVCache, KVCache
from mlx_vlm.models.cohere_compass import language as cohere_compass
from mlx_vlm.models.glm4v import glm4v
from mlx_vlm.models.glm4v_moe import glm4v_moe
from mlx_vlm.models.glm_ocr import glm_ocr
from mlx_vlm.models.paddleocr_vl import paddleocr_vl

from tests.support.references.private_parts import FIELDS, said

LIBRARY = "mlx-vlm"


def filled(tokens: int) -> KVCache:
    cache = KVCache()
    values = mx.arange(tokens, dtype=mx.float32).reshape(1, 1, tokens, 1)
    cache.update_and_fetch(values, values)
    return cache


def test_two_rows_in_one_cache_end_together_and_begin_behind_their_padding() -> None:
    (name, file, use), *_ = FIELDS[LIBRARY]
    (joined,) = _extend_cache([filled(5)], [filled(2)])
    words = said(LIBRARY, f"BatchKVCache.{name}", (file,), use)
    assert type(joined) is BatchKVCache, f"{words}it is a {type(joined).__name__}"
    end = getattr(joined, name, None)
    assert end == 5, f"{words}it is {end!r} and not the 5 tokens of the longest row"
    padding = joined.left_padding.tolist()
    assert padding == [0, 3], f"{words}the padding of rows of 5 and 2 tokens is {padding}"
    row = joined.keys[1, 0, padding[1] : end, 0].tolist()
    assert row == [0, 1], f"{words}the keys of a row are {row} and not those that went in"


def test_a_plain_cache_is_its_keys_its_values_and_its_length() -> None:
    words = said(LIBRARY, "KVCache", ("worker/mlx/prefix/state.py",), "putting a prefix back")
    whole, again = filled(3), KVCache()
    again.keys, again.values, again.offset = whole.keys, whole.values, 3
    more = mx.zeros((1, 1, 1, 1))
    keys, _ = again.update_and_fetch(more, more)
    assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 0], f"{words}its fields are no longer all of it"


def test_what_a_class_knows_of_positions_is_in_its_fields() -> None:
    _, deltas, positions = FIELDS[LIBRARY]
    for text, (name, file, use), module in (
        ("self.language_model.{} = None", deltas, paddleocr_vl),
        ("self.language_model.{} = rope_deltas", deltas, glm4v),
        ("self.language_model.{} = rope_deltas", deltas, glm4v_moe),
        ("self.language_model.{} = rope_deltas", deltas, glm_ocr),
        ("self.language_model.{} = position_ids", positions, glm_ocr),
        ("self.{} = rope_deltas", deltas, cohere_compass),
    ):
        source = inspect.getsource(module)
        words = said(LIBRARY, f"LanguageModel.{name}", (file,), use)
        assert text.format(name) in source, f"{words}it is another field in {module.__name__}"
