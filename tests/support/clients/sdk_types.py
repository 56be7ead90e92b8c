"""Our answers by the OpenAI SDK's own types: strictly, and with nothing that is not known here.

The SDK itself builds its objects without a check. Here every field must be there and have its
type, and every field that the SDK's type has not must be one of OURS.
"""

from collections.abc import Iterator
from typing import Any, Final, TypeVar

from pydantic import BaseModel

_Model = TypeVar("_Model", bound=BaseModel)

OURS: Final = frozenset(
    {
        # kiapi's timings, Moonshot's figure, vLLM's reason, and where reasoning goes.
        "timings", "usage.cached_tokens", "choices.stop_reason",
        "choices.message.reasoning_content", "choices.delta.reasoning_content",
        # What API.md adds to a model.
        "state", "context_length", "modalities", "capabilities", "chat_template",
        "reasoning_efforts", "aliases", "kind", "parent", "architecture",
    }
)  # fmt: skip
"""The fields that lmx has beyond the SDK's types, as paths without list places."""


def checked(model: type[_Model], raw: str | bytes) -> _Model:
    """Return a JSON answer as the SDK's type.

    Raises ``pydantic.ValidationError`` for a field that is missing or has another type, and
    ``AssertionError`` for a field that is neither the SDK's nor in OURS.
    """
    made = model.model_validate_json(raw, strict=True)
    extra = set(extras_of(made, ""))
    assert extra <= OURS, extra - OURS
    return made


def extras_of(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the fields that the types of an object do not know."""
    if isinstance(value, BaseModel):
        for name in value.model_extra or {}:
            yield f"{path}.{name}".lstrip(".")
        for name in type(value).model_fields:
            yield from extras_of(getattr(value, name, None), f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for item in value:
            yield from extras_of(item, path)


def left_out(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the fields of a JSON value that are not in ``kept``: what is left of it in
    a library whose types drop the fields that they do not know."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, one in given.items():
            inner = f"{path}.{name}".lstrip(".")
            if name in kept:
                yield from left_out(one, kept[name], inner)
            else:
                yield inner
    elif isinstance(given, list) and isinstance(kept, list):
        for one, other in zip(given, kept, strict=True):
            yield from left_out(one, other, path)
