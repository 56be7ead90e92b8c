"""Models that the pinned libraries compute wrongly, and in which way. Pure."""

from collections.abc import Iterable
from typing import Final

from lmx.protocol.errors import ErrorCode, OperationError

INEXACT: Final[dict[str, str]] = {
    "deepseek_v4": "in mlx-vlm 0.7.10 what it pools of four tokens is another in a chunk than of "
    "tokens that come alone",
}
"""By type. Conformance holds each against a reference, and fails when a library has corrected
one."""

_NEEDED: Final = {"ernie4_5_moe": ".moe_statics.e_score_correction_bias"}
"""Ends of the names of weights without which a type is not what it was made as. mlx-lm's convert
drops them."""


def known_inexact(model_type: str, tensors: Iterable[str]) -> str | None:
    """Return why a model with these weights is computed wrongly; None: it is not known to be."""
    if reason := INEXACT.get(model_type):
        return (
            f"Models of the type {model_type!r} are computed wrongly by the engine's library: "
            f"{reason}."
        )
    needed = _NEEDED.get(model_type)
    if needed is None or any(name.endswith(needed) for name in tensors):
        return None
    return (
        f"The weights have none that end in {needed}, by which a model of the type {model_type!r} "
        "chooses its experts: the program that converted it dropped them."
    )


def allowed(problem: str, allow_inexact: bool) -> str:
    """Return what to remark of a model that is computed wrongly. Raises :class:`OperationError`
    where that is not allowed."""
    if allow_inexact:
        return problem
    raise OperationError(
        ErrorCode.MODEL_SOURCE_INVALID,
        f"{problem} Choose another model or conversion, or set allow_inexact: true for this one.",
    )
