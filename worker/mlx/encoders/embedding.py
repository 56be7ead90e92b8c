"""The engine of embedding models."""

import sys
from array import array
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_vlm.embedding_loader import load_embedding_model
from mlx_vlm.models.pooling import normalize_embeddings, pool_by_config

from lmx.protocol.errors import ErrorCode, OperationError, RequestError
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.messages.speech import Speak, Transcribe
from lmx.protocol.messages.tasks import Embed, Rerank, Task, TaskReply, Vectors
from lmx.protocol.states import LoadPhase, ModelKind
from lmx.worker.engine.interfaces import Engine, LoadReporter
from lmx.worker.engine.values import TaskPlan, advance, wrong_kind
from lmx.worker.media.values import Media
from lmx.worker.mlx.encoders.encoder import (
    EncoderInputs,
    EncoderMemory,
    Layers,
    LoadedEncoder,
    cut,
    load_encoder,
    tokenized_at_once,
)
from lmx.worker.mlx.encoders.folder import EncoderSettings
from lmx.worker.mlx.model.patches.mlx_vlm import patch_mlx_vlm
from lmx.worker.mlx.model.token_text import check_tokens


def load_embedder(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """Load an embedding model, and compute one small piece, so that a model that can't be served
    fails here. See ``EngineFactory``."""
    encoder = load_encoder(spec, advanced, _read_model)
    advanced(LoadPhase.WARMUP, None, "")
    return Engine(encoder.facts, resident=EncoderMemory(encoder.model), tasks=MlxEmbedder(encoder))


def _read_model(folder: Path, settings: EncoderSettings) -> Any:
    model = load_embedding_model(folder, lazy=True, trust_remote_code=False)
    model.pooling_config = settings.pooling
    patch_mlx_vlm(model)
    # Each class has imported the function under this name.
    space: Any = sys.modules[type(model).__module__]
    if hasattr(space, "normalize_embeddings"):
        space.normalize_embeddings = _normalized
    return model


def _normalized(vectors: mx.array) -> mx.array:
    """Normalize in 32 bits whatever the weights are: the squares of float16 numbers overflow, and
    in bfloat16 no length is exactly 1."""
    normalized: mx.array = normalize_embeddings(vectors.astype(mx.float32))
    return normalized


class MlxEmbedder:
    """A ``TaskEngine``. It pools and normalizes as the model's files say.

    An input's vector does not depend on the inputs that were computed with it, except for rounding.
    """

    def __init__(self, encoder: LoadedEncoder) -> None:
        """Compute one small piece. Raises :class:`OperationError` for a model with another
        purpose."""
        self._encoder = encoder
        self._settings = encoder.settings
        self._inputs = EncoderInputs(encoder)
        # Layers after the pooling are the model's own, and they decide how its vectors end.
        self._pools = not self._settings.normalize and not hasattr(encoder.model, "dense")
        self._layers = Layers(encoder)
        vectors = self._embedded(*self._inputs.pad([[0, 1]]))
        mx.eval(vectors)
        if vectors.ndim != 2:
            raise OperationError(
                ErrorCode.MODEL_SOURCE_INVALID,
                "The model makes a vector for each token, not one for each text, which lmx "
                "doesn't serve.",
            )
        self._dimensions = vectors.shape[1]

    def plan(self, task: Task, media: Sequence[Media] = ()) -> TaskPlan | TaskReply:
        """Tokenize, check the lengths, and sort the inputs into batches."""
        match task:
            case Embed():
                return self._plan_embed(task)
            case Rerank() | Transcribe() | Speak():
                raise wrong_kind(ModelKind.EMBEDDING)
            case _:
                return self._inputs.reply(task)

    def _compute(
        self, task: Embed, indexes: Sequence[int], rows: Sequence[Sequence[int]]
    ) -> Generator[None, None, Vectors]:
        """Compute the vectors of some inputs, whose tokens are ``rows``."""
        ids, mask = self._inputs.pad(rows)
        computed = yield from self._layers.computed(ids, partial(self._embedded, ids, mask))
        vectors = np.array(computed)
        if task.dimensions is not None and task.dimensions < self._dimensions:
            vectors = vectors[:, : task.dimensions]
            if self._settings.normalize:
                vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(vectors).all():
            raise ArithmeticError("a vector has numbers that are not finite")
        data = np.ascontiguousarray(vectors, dtype="<f4").tobytes()
        return Vectors(task.stream_id, tuple(indexes), vectors.shape[1], data)

    def _plan_embed(self, task: Embed) -> TaskPlan:
        if task.dimensions is not None and task.dimensions > self._dimensions:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"`dimensions` is {task.dimensions}, and this model's vectors have "
                f"{self._dimensions}: ask for fewer.",
                param="dimensions",
            )
        rows = self._rows(task)
        lengths = [len(row) for row in rows]
        pieces = [
            partial(advance, self._compute(task, batch, [rows[index] for index in batch]))
            for batch in cut(lengths, self._encoder.piece_tokens)
        ]
        return TaskPlan(sum(lengths), pieces)

    def _rows(self, task: Embed) -> Sequence[Sequence[int]]:
        if task.texts:
            return self._tokenized(task.texts, truncate=task.truncate)
        for index, row in enumerate(task.tokens):
            self._inputs.check_length(len(row), f"input[{index}]")
            check_tokens(row, self._encoder.facts.vocabulary_size, f"input[{index}]")
        return task.tokens

    def _tokenized(self, texts: Sequence[str], *, truncate: bool) -> Sequence[Sequence[int]]:
        if truncate:
            texts = [self._inputs.cut_text(text) for text in texts]
        for index, text in enumerate(texts):
            self._inputs.check_text(text, f"input[{index}]")
        rows: list[Sequence[int]] = []
        for part in tokenized_at_once([len(text) for text in texts]):
            # It is said in any case, because the files of some tokenizers switch truncation on.
            encoded = self._encoder.tokenizer(
                list(texts[part]),
                truncation=truncate,
                max_length=self._encoder.facts.context_tokens if truncate else None,
                padding=False,
                verbose=False,
            )
            for index, row in enumerate(encoded["input_ids"], len(rows)):
                self._inputs.check_length(len(row), f"input[{index}]")
                rows.append(array("i", row))
        return rows

    def _embedded(self, ids: mx.array, mask: mx.array) -> mx.array:
        output = self._encoder.model(ids, attention_mask=mask)
        vectors: mx.array = output.text_embeds
        if self._pools and self._settings.pooling is not None:
            vectors = pool_by_config(output.last_hidden_state, mask, self._settings.pooling)
        return vectors.astype(mx.float32)
