"""The part of an engine that generates nothing: what every row gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.states import ModelKind
from lmx.worker.engine import ConstraintSource, PromptSource, RowRequest, StepOutput

_USES = {
    ModelKind.CHAT: "answers: use /v1/chat/completions or /v1/completions",
    ModelKind.EMBEDDING: "makes vectors: use /v1/embeddings",
    ModelKind.RERANK: "ranks documents: use /v1/rerank",
}


def refused(kind: ModelKind) -> RequestError:
    """Return the error for a request that a model of this kind can't meet."""
    return RequestError(
        ErrorCode.UNSUPPORTED_VALUE,
        f"This model only {_USES[kind]}, or name another model here.",
        param="model",
    )


class Rowless:
    """Refuses each prompt, so that there never is a row."""

    kind: ModelKind

    def encode(self, source: PromptSource) -> NoReturn:
        """Refuse."""
        raise refused(self.kind)

    def constrain(self, source: ConstraintSource) -> NoReturn:
        """Refuse."""
        raise refused(self.kind)

    def detokenizer(
        self, markers: bool, after: Sequence[int] = (), *, special: bool = False
    ) -> NoReturn:
        """Refuse."""
        raise refused(self.kind)

    def token_bytes(self, token: int) -> NoReturn:
        """Refuse."""
        raise refused(self.kind)

    def can_admit(self) -> bool:
        """Nothing can be."""
        return False

    def admit(self, row: RowRequest) -> NoReturn:
        """Refuse."""
        raise refused(self.kind)

    def step(self) -> StepOutput:
        """There is nothing to advance."""
        return StepOutput()

    def remove(self, row_id: int) -> None:
        """There is nothing to forget."""
