"""The engine of rerank models: cross-encoders, and Qwen3's form that answers yes or no."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx
from mlx_vlm.reranker_loader import load_sequence_classification_model
from mlx_vlm.utils import load

from lmx.protocol.messages.tasks import DescribeTokenizer, Detokenize, Rerank, Scores, Tokenize
from lmx.worker.engine import TaskPlan
from lmx.worker.mlx.encoders.encoder import MlxEncoder, cut, refused

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


@dataclass(frozen=True, slots=True)
class RerankPiece:
    """Some of a Rerank's documents, each together with the query, as tokens. ``types`` says to
    which of the two a token belongs; None for a model that doesn't ask."""

    stream_id: int
    indexes: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    types: tuple[tuple[int, ...], ...] | None


class MlxReranker(MlxEncoder):
    """Scores pairs of query and document."""

    def load_model(self, folder: Path) -> Any:
        config = json.loads((folder / "config.json").read_bytes())
        names = config.get("architectures") or []
        self._generative = not any(str(n).endswith("ForSequenceClassification") for n in names)
        if self._generative:
            return load(str(folder), lazy=True, trust_remote_code=False)[0]
        model = load_sequence_classification_model(folder, lazy=True)
        # Not every tokenizer tells the two texts apart unasked.
        self._has_types = getattr(model.config, "type_vocab_size", 1) > 1
        return model

    def warm_up(self) -> None:
        if self._generative:
            self._before = self._encode(_BEFORE)
            self._after = self._encode(_AFTER)
            self._answers = [self._answer("yes"), self._answer("no")]
        self.compute(RerankPiece(0, (0,), ((0, 1),), None))

    def plan(self, task: Any) -> TaskPlan:
        """Tokenize each pair, check the lengths, and sort them into batches."""
        match task:
            case Tokenize() | Detokenize() | DescribeTokenizer():
                return self.plan_tokens(task)
            case Rerank():
                return self._plan_rerank(task)
            case _:
                raise refused(self.kind)

    def compute(self, piece: RerankPiece) -> Scores:
        """Return the scores of a piece."""
        score = self._judge if self._generative else self._classify
        logits = score(piece)
        if self._generative or self.settings.sigmoid:
            logits = mx.sigmoid(logits)
        scores = cast("list[float]", logits.astype(mx.float32).tolist())
        if not all(map(math.isfinite, scores)):
            raise ArithmeticError("a score is not finite")
        return Scores(piece.stream_id, piece.indexes, tuple(scores))

    def _plan_rerank(self, task: Rerank) -> TaskPlan:
        queries = task.queries or (task.query,) * len(task.documents)
        rows, types = self._pairs(queries, task.documents)
        lengths = [len(row) for row in rows]
        for index, length in enumerate(lengths):
            self.check_length(length, f"documents[{index}]")
        pieces = [
            RerankPiece(
                task.stream_id,
                tuple(batch),
                tuple(tuple(rows[index]) for index in batch),
                None if types is None else tuple(tuple(types[index]) for index in batch),
            )
            for batch in cut(lengths, self.piece_tokens)
        ]
        return TaskPlan(sum(lengths), pieces)

    def _pairs(
        self, queries: Sequence[str], documents: Sequence[str]
    ) -> tuple[list[list[int]], list[list[int]] | None]:
        if self._generative:
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
        encoded = self.tokenizer(
            list(queries),
            list(documents),
            truncation=False,
            padding=False,
            verbose=False,
            return_token_type_ids=self._has_types,
        )
        return encoded["input_ids"], encoded["token_type_ids"] if self._has_types else None

    def _classify(self, piece: RerankPiece) -> mx.array:
        ids, mask = self.pad(piece.rows)
        types = None
        if piece.types is not None:
            longest = ids.shape[1]
            types = mx.array([[*row, *([0] * (longest - len(row)))] for row in piece.types])
        logits: mx.array = self.model(ids, attention_mask=mask, token_type_ids=types).logits
        return logits[:, 0]

    def _judge(self, piece: RerankPiece) -> mx.array:
        """Return how much likelier "yes" is than "no" after each row."""
        ids, _ = self.pad(piece.rows)
        inner = self.model.language_model.model
        hidden = inner.embed_tokens(ids)
        for layer in inner.layers:
            # Padding is at the end: no token of a row looks at it.
            hidden = layer(hidden, "causal", None)
        last = mx.array([len(row) - 1 for row in piece.rows])
        hidden = inner.norm(hidden[mx.arange(len(piece.rows)), last])
        head = getattr(self.model.language_model, "lm_head", None) or inner.embed_tokens.as_linear
        yes, no = self._answers
        logits: mx.array = head(hidden)
        return logits[:, yes] - logits[:, no]

    def _encode(self, text: str, **options: Any) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False, **options))

    def _answer(self, word: str) -> int:
        return self._encode(word)[-1]
