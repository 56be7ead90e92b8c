"""Whether a model can do what a route is for, and which route to use where it can't."""

from __future__ import annotations

from typing import Final

from lmx.protocol.control import ModelView
from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.states import ModelKind

_USES: Final[dict[ModelKind, tuple[str, str]]] = {
    ModelKind.CHAT: ("a language model", "/v1/chat/completions or /v1/completions"),
    ModelKind.EMBEDDING: ("an embedding model", "/v1/embeddings"),
    ModelKind.RERANK: ("a reranking model", "/v1/rerank"),
}


def require_kind(model: ModelView, wanted: ModelKind) -> None:
    """Raise :class:`RequestError` for a model of another kind. One whose kind is not known yet
    may be asked: its worker knows."""
    if model.kind is not None and model.kind is not wanted:
        what, route = _USES[model.kind]
        raise RequestError(
            ErrorCode.UNSUPPORTED_VALUE,
            f"The model {model.model_id!r} is {what}: use it with POST {route}, or name another "
            "model.",
            param="model",
        )
