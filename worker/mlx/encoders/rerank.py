"""The engine of rerank models: cross-encoders, and Qwen3's form that answers yes or no."""

import math
from array import array
from collections.abc import Callable, Generator, Sequence
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
from lmx.worker.mlx.model.library import open_checkpoint
from lmx.worker.mlx.model.patches.mlx_vlm import patch_mlx_vlm

# The form in which Qwen3-Reranker was trained; the question is its makers' general one.
_BEFORE: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
    'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
_QUERY: Final = (
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {}\n"
)
_DOCUMENT: Final = "<Document>: {}"
_AFTER: Final = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


_Row = Sequence[int]
_Pair = tuple[_Row, _Row]
"""The tokens of a query and of a document."""


class _Form(Protocol):
    """How a model is asked for a score, and how the score is read."""

    sigmoid: bool
    """Whether a sigmoid maps scores to the range 0 to 1."""

    around: tuple[_Row, _Row, _Row]
    """The tokens before a query, between it and its document, and behind both."""

    def queries(self, texts: Sequence[str]) -> Sequence[_Row]:
        """Return the tokens of queries. Prompt thread."""

    def documents(self, texts: Sequence[str]) -> Sequence[_Row]:
        """Return the tokens of documents. Prompt thread."""

    def score(self, ids: mx.array, mask: mx.array, pairs: Sequence[_Pair]) -> mx.array:
        """Return a score for each padded row, before the sigmoid, not evaluated. Engine thread."""


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
        self._piece_tokens = encoder.piece_tokens
        self._form = form
        self._layers = Layers(encoder)
        list(self._compute(0, [0], [([0], [1])]))

    def plan(self, task: Task, media: Sequence[Media] = ()) -> TaskPlan | TaskReply:
        """Tokenize the texts, check the lengths of the pairs, and sort them into batches."""
        match task:
            case Rerank():
                return self._plan_rerank(task)
            case Embed() | Transcribe() | Speak():
                raise wrong_kind(ModelKind.RERANK)
            case _:
                return self._inputs.reply(task)

    def _compute(
        self, stream_id: int, indexes: Sequence[int], pairs: Sequence[_Pair]
    ) -> Generator[None, None, Scores]:
        """Compute the scores of some documents."""
        before, between, after = self._form.around
        rows = [[*before, *query, *between, *document, *after] for query, document in pairs]
        ids, mask = self._inputs.pad(rows)
        record = partial(self._form.score, ids, mask, pairs)
        logits = yield from self._layers.computed(ids, record)
        # In 16 bits the sigmoid of all large scores is exactly 1, and nothing ranks them.
        logits = logits.astype(mx.float32)
        if self._form.sigmoid:
            logits = mx.sigmoid(logits)
        scores = cast("list[float]", logits.tolist())
        if not all(map(math.isfinite, scores)):
            raise ArithmeticError("a score is not finite")
        return Scores(stream_id, tuple(indexes), tuple(scores))

    def _plan_rerank(self, task: Rerank) -> TaskPlan:
        pairs = self._tokenized(task)
        added = sum(map(len, self._form.around))
        lengths = [added + len(query) + len(document) for query, document in pairs]
        for index, length in enumerate(lengths):
            self._inputs.check_length(length, f"documents[{index}]")
        pieces = [
            partial(advance, self._compute(task.stream_id, batch, [pairs[at] for at in batch]))
            for batch in cut(lengths, self._piece_tokens)
        ]
        return TaskPlan(sum(lengths), pieces)

    def _tokenized(self, task: Rerank) -> list[_Pair]:
        """Return the tokens of all pairs. A query is in as many of them as there are documents, and
        is tokenized once: 2,048 times would take a minute."""
        queries = task.queries or (task.query,)
        for query in dict.fromkeys(queries):
            self._inputs.check_text(query, "query")
        for index, document in enumerate(task.documents):
            self._inputs.check_text(document, f"documents[{index}]")
        firsts = _in_parts(self._form.queries, queries)
        if not task.queries:
            # No pair has fewer tokens than its query.
            before, _, after = self._form.around
            self._inputs.check_length(len(before) + len(firsts[0]) + len(after), "query")
            firsts *= len(task.documents)
        return [*zip(firsts, _in_parts(self._form.documents, task.documents), strict=True)]


def _in_parts(
    tokenize: Callable[[Sequence[str]], Sequence[_Row]], texts: Sequence[str]
) -> list[_Row]:
    return [
        array("i", row)
        for part in tokenized_at_once([len(text) for text in texts])
        for row in tokenize(texts[part])
    ]


class _CrossEncoder:
    """A model with a head for one score."""

    def __init__(self, encoder: LoadedEncoder) -> None:
        self.sigmoid = encoder.settings.sigmoid
        self._model = encoder.model
        self._tokenizer = encoder.tokenizer
        # Not every tokenizer returns the types unless it is asked to.
        has_types = getattr(encoder.model.config, "type_vocab_size", 1) > 1
        pair = self._tokenizer(
            "a", "b", truncation=False, padding=False, return_token_type_ids=has_types
        )
        ids = pair["input_ids"]
        (query,), (document,) = self.queries(["a"]), self.documents(["b"])
        # What a tokenizer puts around the texts depends on neither.
        first = ids.index(query[0])
        last = len(ids) - ids[::-1].index(document[-1])
        between = slice(first + len(query), last - len(document))
        self.around: tuple[_Row, _Row, _Row] = ids[:first], ids[between], ids[last:]
        types = pair["token_type_ids"] if has_types else None
        self._types = types and (
            (types[:first], types[between], types[last:]),
            (types[first], types[last - 1]),
        )

    def queries(self, texts: Sequence[str]) -> Sequence[_Row]:
        encoded = self._tokenizer(
            list(texts), add_special_tokens=False, truncation=False, padding=False, verbose=False
        )
        return cast("Sequence[_Row]", encoded["input_ids"])

    documents = queries

    def score(self, ids: mx.array, mask: mx.array, pairs: Sequence[_Pair]) -> mx.array:
        types = None
        if self._types is not None:
            (before, between, after), (first, second) = self._types
            rows = [
                [*before, *([first] * len(query)), *between, *([second] * len(document)), *after]
                for query, document in pairs
            ]
            types = mx.array([[*row, *([0] * (ids.shape[1] - len(row)))] for row in rows])
        logits: mx.array = self._model(ids, attention_mask=mask, token_type_ids=types).logits
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
        self.around: tuple[_Row, _Row, _Row] = self._encode(_BEFORE), (), self._encode(_AFTER)
        self._yes_no = [self._encode("yes")[-1], self._encode("no")[-1]]

    def queries(self, texts: Sequence[str]) -> Sequence[_Row]:
        # No token goes across the end of the query's line.
        return [self._encode(_QUERY.format(text), split_special_tokens=True) for text in texts]

    def documents(self, texts: Sequence[str]) -> Sequence[_Row]:
        # A document that spells a special token must not end its own turn.
        return [self._encode(_DOCUMENT.format(text), split_special_tokens=True) for text in texts]

    def score(self, ids: mx.array, mask: mx.array, pairs: Sequence[_Pair]) -> mx.array:
        inner = self._model.model
        hidden = inner.embed_tokens(ids)
        for layer in inner.layers:
            # Padding is at the end: no token of a row looks at it.
            hidden = layer(hidden, "causal", None)
        hidden = inner.norm(hidden[mx.arange(len(pairs)), mask.sum(axis=1) - 1])
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
