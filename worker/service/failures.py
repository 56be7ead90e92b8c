"""Why an engine could not be loaded, in words and codes. Pure.

``permanent`` means that the model's files or its configuration must change first. If that is not
certain, it is false: another try costs one load, giving up costs the model.
"""

import errno
import re
from typing import Final, NamedTuple

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.states import ModelKind
from lmx.worker.scheduling.engine_errors import is_out_of_memory


class LoadFailure(NamedTuple):
    """The reason, for the supervisor and for people."""

    code: ErrorCode
    message: str
    permanent: bool = False


_PERMANENT_CODES: Final = frozenset({ErrorCode.CONFIG_INVALID, ErrorCode.MODEL_SOURCE_INVALID})

_PERMANENT_ERRORS: Final[tuple[tuple[type[Exception], re.Pattern[str]], ...]] = (
    # mlx-vlm 0.7.10: an architecture that it doesn't have, a config.json that names none.
    (ValueError, re.compile(r"Model type \S+ not supported")),
    (KeyError, re.compile("^'model_type'$")),
    # mlx: weights that are not the architecture's.
    (ValueError, re.compile(r"^(Missing|Received) \d+ parameters")),
    (ValueError, re.compile(r"^Expected shape .* but received shape")),
    # mlx: a weight file that is damaged or cut short.
    (RuntimeError, re.compile(r"^\[load_safetensors\] (Invalid|The JSON header|Tensor)")),
    (FileNotFoundError, re.compile("")),
    # transformers: a folder without a tokenizer.
    (ValueError, re.compile("^Unrecognized processing class")),
)

_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

_OTHER_KIND: Final = re.compile(r"has no attribute '(language_model|text_embeds)'")
"""The error of a model of one kind that is asked for something only another kind has."""


def load_failure(error: BaseException, kind: ModelKind) -> LoadFailure:
    """Return the reason for ``error``, which was raised while a model was loaded as ``kind``."""
    match error:
        case LmxError():
            return LoadFailure(error.code, error.message, error.code in _PERMANENT_CODES)
        case _ if is_out_of_memory(error):
            return LoadFailure(
                ErrorCode.INSUFFICIENT_MEMORY,
                "The model doesn't fit in memory: give it a shorter context_length, or unload "
                "others first.",
            )
        case OSError() if error.errno in _DISK_FULL:
            return LoadFailure(
                ErrorCode.INSUFFICIENT_DISK,
                f"The disk takes nothing more ({error}): free some space there. lmx tries again by "
                "itself.",
            )
        case AttributeError() if _OTHER_KIND.search(str(error)):
            return LoadFailure(
                ErrorCode.CONFIG_INVALID,
                f"The model can't be served as {kind.value} ({error}): set `kind` to what it is, "
                "or serve another model.",
                permanent=True,
            )
    text = str(error)
    permanent = any(
        isinstance(error, kind_of_error) and pattern.search(text)
        for kind_of_error, pattern in _PERMANENT_ERRORS
    )
    return LoadFailure(
        ErrorCode.MODEL_SOURCE_INVALID if permanent else ErrorCode.MODEL_LOAD_FAILED,
        f"{type(error).__name__}: {text.strip()}",
        permanent,
    )
