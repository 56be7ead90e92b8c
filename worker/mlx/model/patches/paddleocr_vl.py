"""The positions of texts in PaddleOCR-VL, of which mlx-vlm's class makes something else.

Written for mlx-vlm 0.7.10. Whenever a text is embedded, the class forgets what it knows of its
positions, and lets the next chunk of the text begin at the first one.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx

from lmx.worker.mlx.module_calls import replace_methods

_MODULE: Final = "mlx_vlm.models.paddleocr_vl.paddleocr_vl"


def patch_paddleocr_vl(model: Any) -> None:
    """Let the positions of a text count on if it is a PaddleOCR-VL of mlx-vlm's."""
    plain = type(model)
    if plain.__module__ != _MODULE:
        return

    def embed(patched: Any, *args: Any, **kwargs: Any) -> Any:
        found = plain.get_input_embeddings(patched, *args, **kwargs)
        if patched.language_model._rope_deltas is None:
            patched.language_model._rope_deltas = mx.zeros((1, 1), mx.int32)
        return found

    replace_methods(model, get_input_embeddings=embed)
