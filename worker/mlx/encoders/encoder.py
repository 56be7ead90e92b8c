"""What embedding and rerank models have in common: one forward pass, no rows, no cache.

The part of an engine that generates nothing: what every row gets.

Cutting many sequences into batches for one forward pass each. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import mlx.core as mx
from transformers import AutoTokenizer

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.states import LoadPhase, ModelKind
from lmx.worker.engine import (
    ConstraintSource,
    LoadReporter,
    ModelFacts,
    PromptSource,
    RowRequest,
    StepOutput,
    TaskPlan,
)
from lmx.worker.mlx.encoders.folder import EncoderSettings, read_encoder_settings
from lmx.worker.mlx.model.folder import effective_context, read_folder
from lmx.worker.mlx.model.guard import forbid_checkpoint_code
from lmx.worker.mlx.model.load import read_weights
from lmx.worker.mlx.model.token_text import TokenTask, TokenTasks

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


class NoGeneration:
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


_CPU_PIECE_TOKENS: Final = 256
_METAL_PIECE_TOKENS: Final = 8192
"""Of one forward pass, padding included: about a second of a small model's time, in which nobody
else's piece moves. Measured with MiniLM and the reference BLAS on one core: 180 tokens a second."""


class MlxEncoder(NoGeneration, ABC):
    """Loading, tokenizing and the lengths that are allowed; see :class:`lmx.worker.engine.Engine`.

    A class for each kind says how its model is loaded, and what is done with a piece.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self.kind = spec.kind
        self._spec = spec
        self.piece_tokens = _METAL_PIECE_TOKENS if mx.metal.is_available() else _CPU_PIECE_TOKENS

    def load(self, advanced: LoadReporter) -> ModelFacts:
        """Load, and do one small piece, so that what can't be served fails here."""
        folder = Path(self._spec.model_path)
        read_folder(folder)
        self.settings = read_encoder_settings(folder)
        self.context_tokens = _context(self.settings, self._spec.context_length)
        advanced(LoadPhase.WEIGHTS, 0.0, "")
        forbid_checkpoint_code()
        self.model = self.load_model(folder)
        read_weights(self.model, advanced)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        self.vocabulary_size = int(self.model.config.vocab_size)
        self._token_tasks = TokenTasks(
            self.tokenizer, self.vocabulary_size, self.context_tokens, self._refuse_messages
        )
        advanced(LoadPhase.WARMUP, None, "")
        self.warm_up()
        return ModelFacts(self.context_tokens, frozenset(), self.vocabulary_size)

    @abstractmethod
    def load_model(self, folder: Path) -> Any:
        """Return the model, its weights not read yet."""

    @abstractmethod
    def warm_up(self) -> None:
        """Do one small piece."""

    def plan_tokens(self, task: TokenTask) -> TaskPlan:
        """Answer with the tokenizer."""
        return self._token_tasks.plan(task)

    def check_length(self, tokens: int, param: str) -> None:
        """Raise ``RequestError`` for an input that is empty or too long."""
        if tokens == 0:
            raise RequestError(
                ErrorCode.INVALID_VALUE, f"`{param}` has no tokens: leave it out.", param=param
            )
        if tokens > self.context_tokens:
            raise RequestError(
                ErrorCode.CONTEXT_LENGTH_EXCEEDED,
                f"`{param}` has {tokens} tokens, and this model takes {self.context_tokens} at "
                "most: shorten it, or split it.",
                param=param,
            )

    def pad(self, rows: Sequence[Sequence[int]]) -> tuple[mx.array, mx.array]:
        """Return ids and attention mask [rows, longest]; padding is at the end."""
        pad_id = self.tokenizer.pad_token_id or 0
        longest = max(map(len, rows))
        ids = [[*row, *([pad_id] * (longest - len(row)))] for row in rows]
        mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
        return mx.array(ids), mx.array(mask)

    def rest(self) -> None:
        """Give back what the last pieces took."""
        mx.clear_cache()

    def shrink(self) -> None:
        """Give back what the last pieces took."""
        mx.clear_cache()

    def regrow(self) -> None:
        """There is no cache but mlx's own."""

    def close(self) -> None:
        """There is nothing to keep."""

    def memory_bytes(self) -> int:
        """What mlx holds."""
        return int(mx.get_active_memory() + mx.get_cache_memory())

    def peak_memory_bytes(self) -> int:
        """What mlx had in use at most."""
        return int(mx.get_peak_memory())

    def _refuse_messages(self, source: PromptSource) -> NoReturn:
        raise RequestError(
            ErrorCode.UNSUPPORTED_VALUE,
            "This model has no chat template: send `prompt` instead of `messages`.",
            param="messages",
        )


def _context(settings: EncoderSettings, configured: int | None) -> int:
    """Return the longest input to take: as configured, else as the model was trained."""
    return effective_context(settings.position_tokens, configured or settings.context_tokens)


def cut(lengths: Sequence[int], limit_tokens: int) -> list[list[int]]:
    """Return the indexes of sequences, in batches of at most ``limit_tokens``, padding included.

    Alike lengths go together, the shortest first. One that is longer than the limit goes alone.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        # Sorted, so that this one is as long as the whole batch becomes.
        if not batches or (len(batches[-1]) + 1) * lengths[index] > limit_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches
