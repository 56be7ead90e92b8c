"""The engine of rerank models: cross-encoders, and Qwen3's form that answers yes or no."""

import math
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, cast

import mlx.core as mx
from mlx_vlm.reranker_loader import load_sequence_classification_model

from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.messages.speech import Speak, Transcribe
from lmx.protocol.messages.tasks import Embed, Rerank, Scores, Task, TaskReply
from lmx.protocol.models.checkpoint import read_checkpoint_config
from lmx.protocol.models.kind import is_classifier
from lmx.protocol.states import LoadPhase, ModelKind
from lmx.worker.engine.interfaces import Engine, LoadReporter
from lmx.worker.engine.values import TaskPlan, wrong_kind
from lmx.worker.media.values import Media
from lmx.worker.mlx.encoders.encoder import (
    EncoderInputs,
    EncoderMemory,
    LoadedEncoder,
    cut,
    load_encoder,
    tokenized_at_once,
)
from lmx.worker.mlx.encoders.folder import EncoderSettings
from lmx.worker.mlx.model.library import open_checkpoint
from lmx.worker.mlx.model.patches.mlx_vlm import patch_mlx_vlm

# The form in which Qwen3-Reranker was trained; the question is its makers' general one.
_BEFORE: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
    'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
_BODY: Final = (
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}"
)
_AFTER: Final = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


_Rows = Sequence[Sequence[int]]
"""Of each pair of query and document its tokens; or the types of these, which say whether a token
belongs to the query or to the document."""


class _Form(Protocol):
    """How a model is asked for a score, and how the score is read."""

    sigmoid: bool
    """Whether a sigmoid maps scores to the range 0 to 1."""

    def pairs(self, queries: Sequence[str], documents: Sequence[str]) -> tuple[_Rows, _Rows | None]:
        """Return each query with its document as tokens, and their types; None for a model that
        doesn't need them. Prompt thread."""

    def score(self, rows: _Rows, types: _Rows | None) -> mx.array:
        """Return a score for each row, before the sigmoid. Engine thread."""


def load_reranker(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """Load a rerank model, and compute one small piece, so that a model that can't be served fails
    here. See ``EngineFactory``."""
    encoder = load_encoder(spec, advanced, _read_model)
    advanced(LoadPhase.WARMUP, None, "")
    is_judge = _is_judge(Path(spec.model_path))
    form: _Form = _Judge(encoder) if is_judge else _CrossEncoder(encoder)
    reranker = MlxReranker(encoder, form)
    return Engine(encoder.facts, resident=EncoderMemory(encoder.model), tasks=reranker)


def _is_judge(folder: Path) -> bool:
    return not is_classifier(read_checkpoint_config(folder))


def _read_model(folder: Path, settings: EncoderSettings) -> Any:
    if _is_judge(folder):
        return open_checkpoint(folder).model
    model = load_sequence_classification_model(folder, lazy=True)
    patch_mlx_vlm(model)
    return model


class MlxReranker:
    """A ``TaskEngine`` that scores pairs of query and document."""

    def __init__(self, encoder: LoadedEncoder, form: _Form) -> None:
        """Compute one small piece."""
        self._inputs = EncoderInputs(encoder)
        self._tokenizer = encoder.tokenizer
        self._piece_tokens = encoder.piece_tokens
        self._form = form
        self._compute(0, [0], [[0, 1]], None)

    def plan(self, task: Task, media: Sequence[Media] = ()) -> TaskPlan | TaskReply:
        """Tokenize each pair, check the lengths, and sort them into batches."""
        match task:
            case Rerank():
                return self._plan_rerank(task)
            case Embed() | Transcribe() | Speak():
                raise wrong_kind(ModelKind.RERANK)
            case _:
                return self._inputs.reply(task)

    def _compute(
        self, stream_id: int, indexes: Sequence[int], rows: _Rows, types: _Rows | None
    ) -> Scores:
        """Compute the scores of some documents."""
        # In 16 bits the sigmoid of all large scores is exactly 1, and nothing ranks them.
        logits = self._form.score(rows, types).astype(mx.float32)
        if self._form.sigmoid:
            logits = mx.sigmoid(logits)
        scores = cast("list[float]", logits.tolist())
        if not all(map(math.isfinite, scores)):
            raise ArithmeticError("a score is not finite")
        return Scores(stream_id, tuple(indexes), tuple(scores))

    def _plan_rerank(self, task: Rerank) -> TaskPlan:
        rows, types = self._tokenized(task)
        lengths = [len(row) for row in rows]
        pieces = [
            partial(
                self._compute,
                task.stream_id,
                batch,
                [rows[index] for index in batch],
                None if types is None else [types[index] for index in batch],
            )
            for batch in cut(lengths, self._piece_tokens)
        ]
        return TaskPlan(sum(lengths), pieces)

    def _tokenized(self, task: Rerank) -> tuple[_Rows, _Rows | None]:
        """Return the tokens of all pairs, and their types. Nothing that is too long is tokenized
        more than once: a query is in as many pairs as there are documents."""
        queries = task.queries or (task.query,) * len(task.documents)
        for query in dict.fromkeys(queries):
            self._inputs.check_text(query, "query")
        for index, document in enumerate(task.documents):
            self._inputs.check_text(document, f"documents[{index}]")
        if not task.queries:
            # No pair has fewer tokens than its query.
            tokens = len(self._tokenizer.encode(task.query, truncation=False, verbose=False))
            self._inputs.check_length(max(1, tokens), "query")
        rows: list[Sequence[int]] = []
        types: list[Sequence[int]] = []
        pairs = zip(queries, task.documents, strict=True)
        for part in tokenized_at_once([len(query) + len(document) for query, document in pairs]):
            more, more_types = self._form.pairs(queries[part], task.documents[part])
            for index, row in enumerate(more, len(rows)):
                self._inputs.check_length(len(row), f"documents[{index}]")
                rows.append(array("i", row))
            types += (array("b", row) for row in more_types or ())
        return rows, types or None


class _CrossEncoder:
    """A model with a head for one score."""

    def __init__(self, encoder: LoadedEncoder) -> None:
        self.sigmoid = encoder.settings.sigmoid
        self._model = encoder.model
        self._tokenizer = encoder.tokenizer
        self._inputs = EncoderInputs(encoder)
        # Not every tokenizer returns the types unless it is asked to.
        self._has_types = getattr(encoder.model.config, "type_vocab_size", 1) > 1

    def pairs(self, queries: Sequence[str], documents: Sequence[str]) -> tuple[_Rows, _Rows | None]:
        encoded = self._tokenizer(
            list(queries),
            list(documents),
            truncation=False,
            padding=False,
            verbose=False,
            return_token_type_ids=self._has_types,
        )
        return encoded["input_ids"], encoded["token_type_ids"] if self._has_types else None

    def score(self, rows: _Rows, types: _Rows | None) -> mx.array:
        ids, mask = self._inputs.pad(rows)
        padded = None
        if types is not None:
            longest = ids.shape[1]
            padded = mx.array([[*row, *([0] * (longest - len(row)))] for row in types])
        logits: mx.array = self._model(ids, attention_mask=mask, token_type_ids=padded).logits
        return logits[:, 0]


class _Judge:
    """Qwen3's form: a model that writes is asked whether a document answers the query. The score is
    how much likelier "yes" is than "no"."""

    sigmoid = True

    def __init__(self, encoder: LoadedEncoder) -> None:
        language = encoder.model.language_model
        # mlx-lm's class is inside of one that has mlx-vlm's form.
        self._model = getattr(language, "inner", language)
        self._tokenizer = encoder.tokenizer
        self._inputs = EncoderInputs(encoder)
        self._before = self._encode(_BEFORE)
        self._after = self._encode(_AFTER)
        self._yes_no = [self._encode("yes")[-1], self._encode("no")[-1]]

    def pairs(self, queries: Sequence[str], documents: Sequence[str]) -> tuple[_Rows, _Rows | None]:
        bodies = (
            _BODY.format(query=query, document=document)
            for query, document in zip(queries, documents, strict=True)
        )
        # A document that spells a special token must not end its own turn.
        rows = [
            [*self._before, *self._encode(body, split_special_tokens=True), *self._after]
            for body in bodies
        ]
        return rows, None

    def score(self, rows: _Rows, types: _Rows | None) -> mx.array:
        ids, _ = self._inputs.pad(rows)
        inner = self._model.model
        hidden = inner.embed_tokens(ids)
        for layer in inner.layers:
            # Padding is at the end: no token of a row looks at it.
            hidden = layer(hidden, "causal", None)
        last = mx.array([len(row) - 1 for row in rows])
        hidden = inner.norm(hidden[mx.arange(len(rows)), last])
        head = getattr(self._model, "lm_head", None) or inner.embed_tokens
        logits = _float32_logits(head, hidden, self._yes_no)
        return logits[:, 0] - logits[:, 1]

    def _encode(self, text: str, **options: Any) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False, **options))


def _float32_logits(head: Any, hidden: mx.array, ids: list[int]) -> mx.array:
    """Return the logits of a few tokens alone. In 16 bits the difference of two large ones would
    have few digits, and a copy of the whole head in 32 bits would take gigabytes."""
    rows = mx.array(ids)
    parts: dict[str, mx.array] = {
        name: part[rows].astype(mx.float32)
        if mx.issubdtype(part.dtype, mx.floating)
        else part[rows]
        for name, part in head.parameters().items()
    }
    weight = parts["weight"]
    if "scales" in parts:
        weight = mx.dequantize(
            weight, parts["scales"], parts.get("biases"), head.group_size, head.bits, head.mode
        )
    return hidden.astype(mx.float32) @ weight.astype(mx.float32).T + parts.get("bias", 0)
