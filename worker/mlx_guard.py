"""Keeps transformers from running code that a checkpoint brings along.

``trust_remote_code=False`` is not enough: many of mlx-vlm's processors pass True by themselves.
Refusing every checkpoint with an ``auto_map`` would be too much: most of those that carry one
load with built-in classes alone. So the one function that executes such code is taken away.
"""

from __future__ import annotations

from typing import NoReturn

from transformers import dynamic_module_utils

from lmx.protocol.errors import ErrorCode, OperationError


def forbid_checkpoint_code() -> None:
    """From now on, loading that needs a checkpoint's own code raises :class:`OperationError`.

    For the whole process, for good. Written for transformers 5.23, whose dynamic modules all
    go through ``get_class_in_module``.
    """
    dynamic_module_utils.get_class_in_module = _refuse


def _refuse(class_name: str, *_: object, **__: object) -> NoReturn:
    raise OperationError(
        ErrorCode.MODEL_SOURCE_INVALID,
        f"This checkpoint needs code of its own to be run ({class_name}), which lmx doesn't: "
        "use a checkpoint of a built-in architecture.",
    )
