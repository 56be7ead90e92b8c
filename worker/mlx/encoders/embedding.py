"""The engine of embedding models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_vlm.embedding_loader import load_embedding_model
from mlx_vlm.models.pooling import pool_by_config

from lmx.protocol.errors import ErrorCode, OperationError, RequestError
from lmx.protocol.messages.tasks import DescribeTokenizer, Detokenize, Embed, Tokenize, Vectors
from lmx.worker.engine import TaskPlan
from lmx.worker.mlx.encoders.encoder import MlxEncoder, cut, refused
from lmx.worker.mlx.model.token_text import check_tokens


@dataclass(frozen=True, slots=True)
class EmbedPiece:
    """Some inputs of an Embed, as tokens."""

    stream_id: int
    indexes: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    dimensions: int | None


class MlxEmbedder(MlxEncoder):
    """Pools and normalizes as the model's files say. An input's vector does not depend on what
    it was computed together with, but for rounding."""

    def load_model(self, folder: Path) -> Any:
        model = load_embedding_model(folder, lazy=True, trust_remote_code=False)
        model.pooling_config = self.settings.pooling
        # Layers after the pooling are the model's own, and so is what they end with.
        self._pools = not self.settings.normalize and not hasattr(model, "dense")
        return model

    def warm_up(self) -> None:
        vectors = self._embed([[0, 1]])
        if vectors.ndim != 2:
            raise OperationError(
                ErrorCode.MODEL_SOURCE_INVALID,
                "The model makes a vector for each token, not one for each text, which lmx "
                "doesn't serve.",
            )
        self.dimensions = vectors.shape[1]

    def plan(self, task: Any) -> TaskPlan:
        """Tokenize, check the lengths, and sort the inputs into batches."""
        match task:
            case Tokenize() | Detokenize() | DescribeTokenizer():
                return self.plan_tokens(task)
            case Embed():
                return self._plan_embed(task)
            case _:
                raise refused(self.kind)

    def compute(self, piece: EmbedPiece) -> Vectors:
        """Return the vectors of a piece."""
        vectors = self._embed(piece.rows)
        if piece.dimensions is not None and piece.dimensions < self.dimensions:
            vectors = vectors[:, : piece.dimensions]
            if self.settings.normalize:
                vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(vectors).all():
            raise ArithmeticError("a vector has numbers that are not finite")
        data = np.ascontiguousarray(vectors, dtype="<f4").tobytes()
        return Vectors(piece.stream_id, piece.indexes, vectors.shape[1], data)

    def _plan_embed(self, task: Embed) -> TaskPlan:
        if task.dimensions is not None and task.dimensions > self.dimensions:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"`dimensions` is {task.dimensions}, and this model's vectors have "
                f"{self.dimensions}: ask for fewer.",
                param="dimensions",
            )
        rows = self._rows(task)
        lengths = [len(row) for row in rows]
        pieces = [
            EmbedPiece(
                task.stream_id,
                tuple(batch),
                tuple(tuple(rows[index]) for index in batch),
                task.dimensions,
            )
            for batch in cut(lengths, self.piece_tokens)
        ]
        return TaskPlan(sum(lengths), pieces)

    def _rows(self, task: Embed) -> Sequence[Sequence[int]]:
        rows: Sequence[Sequence[int]] = task.tokens
        if task.texts:
            # Without truncation: some tokenizers' own files would have it.
            encoded = self.tokenizer(
                list(task.texts), truncation=False, padding=False, verbose=False
            )
            rows = encoded["input_ids"]
        for index, row in enumerate(rows):
            self.check_length(len(row), f"input[{index}]")
            if not task.texts:
                check_tokens(row, self.vocabulary_size, f"input[{index}]")
        return rows

    def _embed(self, rows: Any) -> np.ndarray[Any, Any]:
        ids, mask = self.pad(rows)
        output = self.model(ids, attention_mask=mask)
        vectors = output.text_embeds
        if self._pools and self.settings.pooling is not None:
            vectors = pool_by_config(output.last_hidden_state, mask, self.settings.pooling)
        vectors = vectors.astype(mx.float32)
        mx.eval(vectors)
        return np.array(vectors)
