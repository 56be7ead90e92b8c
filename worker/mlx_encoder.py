"""What embedding and rerank models have in common: one forward pass, no rows, no cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import mlx.core as mx
from transformers import AutoTokenizer

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.specs import WorkerSpec
from lmx.protocol.states import LoadPhase
from lmx.worker.encoder_files import EncoderSettings, read_encoder_settings
from lmx.worker.engine import LoadReporter, ModelFacts, PromptSource, TaskPlan
from lmx.worker.mlx_config import effective_context, read_folder
from lmx.worker.mlx_guard import forbid_checkpoint_code
from lmx.worker.mlx_weights import read_weights
from lmx.worker.rowless import Rowless
from lmx.worker.token_tasks import TokenTask, TokenTasks

_CPU_PIECE_TOKENS: Final = 256
_METAL_PIECE_TOKENS: Final = 8192
"""Of one forward pass, padding included: about a second of a small model's time, in which nobody
else's piece moves. Measured with MiniLM and the reference BLAS on one core: 180 tokens a second."""


class MlxEncoder(Rowless, ABC):
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
