"""The text of Llama 3.2 Vision, of which mlx-vlm's class makes something else.

Written for mlx-vlm 0.7.10. Where a text has no picture, its cross attention reads the queries as
keys and values. transformers passes over these layers then. With a picture, an answer would read
the same; :mod:`lmx.worker.mlx.media.encoding` refuses pictures of this kind.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx

from lmx.worker.mlx.module_calls import replace_methods

_MODULE: Final = "mlx_vlm.models.mllama.mllama"


def patch_mllama(model: Any) -> None:
    """Let a text pass over the layers of cross attention if it is a Mllama of mlx-vlm's."""
    if type(model).__module__ != _MODULE:
        return
    for index in model.language_model.config.cross_attention_layers:
        replace_methods(model.layers[index], __call__=_pass_over)


def _pass_over(layer: Any, hidden_states: mx.array, **seen: Any) -> mx.array:
    if seen.get("cross_attention_states") is not None:
        raise NotImplementedError("lmx does not show pictures to models of the type mllama")
    return hidden_states
