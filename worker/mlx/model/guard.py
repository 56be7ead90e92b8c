"""No checkpoint's code is run, unless the configuration allows it.

``trust_remote_code=False`` is not enough, because many of mlx-vlm's processors pass True by
themselves. To refuse every checkpoint with an ``auto_map`` would be too much, because most of them
load with built-in classes alone. So the one function that executes such code is replaced.
"""

from typing import NoReturn

from transformers import dynamic_module_utils

from lmx.protocol.errors import ErrorCode, OperationError


def forbid_checkpoint_code() -> None:
    """From now on, loading that needs a checkpoint's own code raises :class:`OperationError`.

    For the whole process, for good. Written for transformers 5.23, whose dynamic modules all
    go through ``get_class_in_module``.
    """
    dynamic_module_utils.get_class_in_module = _refuse


def needs_code(what: str) -> OperationError:
    """Return the error of a checkpoint that doesn't load without running code of its own."""
    return OperationError(
        ErrorCode.MODEL_SOURCE_INVALID,
        f"This checkpoint needs code of its own to be run ({what}), which lmx doesn't: set "
        "`allow_checkpoint_code: true` for this model if you trust its makers, or use a "
        "checkpoint that needs none.",
    )


def _refuse(class_name: str, *_: object, **__: object) -> NoReturn:
    raise needs_code(class_name)
