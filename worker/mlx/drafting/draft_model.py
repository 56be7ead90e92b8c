"""A small model that drafts what a large one will say. Engine thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx
from mlx_vlm.models.cache import (
    BufferedRotatingKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from lmx.protocol.errors import ErrorCode, OperationError
from lmx.protocol.messages.data import Assist
from lmx.worker.mlx.drafting.token_drafter import Choose, SequenceDrafter
from lmx.worker.mlx.model.folder import read_folder
from lmx.worker.mlx.model.forward import Forward, cache_states
from lmx.worker.mlx.model.library import open_checkpoint
from lmx.worker.mlx.model.load import evaluate
from lmx.worker.mlx.model.passes import note_pass

_ROLLBACK_TOKENS: Final = 64
"""How many tokens a sliding window can take back; more than are ever drafted at once."""


class DraftModel:
    """A ``TokenDrafter`` that knows nothing of the model that checks its drafts, but how wide its
    logits are: models with the same tokenizer may have different numbers of tokens behind those of
    the tokenizer, and none looks up a token that it does not have."""

    observed_tokens = 0
    foresees = False

    def __init__(self, model: Forward, context_tokens: int | None, vocabulary_size: int) -> None:
        self._language_model = model.language_model
        self._most_token = model.vocabulary_size - 1
        self._missing_tokens = vocabulary_size - model.vocabulary_size
        self.context_tokens = context_tokens

    def open_sequence(self, assist: Assist) -> DraftModelSequence:
        """Begin a row. Its KV cache goes when the row does."""
        return DraftModelSequence(self._forward, self._make_cache(), self.context_tokens)

    def check(self) -> None:
        """Raise :class:`OperationError` for an architecture whose state can't be taken back."""
        kinds = sorted(
            {type(layer).__name__ for layer in self._make_cache() if not layer.is_trimmable()}
        )
        if kinds:
            raise OperationError(
                ErrorCode.CONFIG_INVALID,
                f"The draft model keeps a state that can't be taken back ({', '.join(kinds)}), "
                "so it can't draft: choose one with plain attention.",
            )

    def _make_cache(self) -> list[Any]:
        return [_with_rollback(layer) for layer in make_prompt_cache(self._language_model)]

    def _forward(self, tokens: mx.array, prompt_cache: list[Any]) -> mx.array:
        note_pass()
        known = mx.minimum(tokens, self._most_token)
        output = self._language_model(known, cache=prompt_cache)
        logits: mx.array = getattr(output, "logits", output)[:, -1]
        if self._missing_tokens > 0:
            return mx.pad(logits, [(0, 0), (0, self._missing_tokens)], constant_values=-mx.inf)
        return logits[:, : self._most_token + 1 + self._missing_tokens]


class DraftModelSequence(SequenceDrafter):
    """A ``SequenceDrafter`` with the draft model's KV cache of
    the row."""

    def __init__(
        self,
        forward: Callable[[mx.array, list[Any]], mx.array],
        prompt_cache: list[Any],
        context_tokens: int | None,
    ) -> None:
        self._forward = forward
        self._cache = prompt_cache
        self._context_tokens = context_tokens
        self._read_tokens = 0
        self._drafted_in_cache = 0

    @property
    def read_tokens(self) -> int:
        return self._read_tokens

    def most_drafts(self, length: int) -> int | None:
        return None if self._context_tokens is None else self._context_tokens - length

    def unread_tokens(self, length: int) -> int:
        return length - self._read_tokens

    def read(self, tokens: Sequence[int]) -> None:
        self._forward(mx.array([tokens]), self._cache)
        for layer in self._cache:
            if isinstance(layer, BufferedRotatingKVCache):
                # Its room for a whole chunk would stay.
                layer.state = [
                    mx.contiguous(part[..., -layer.max_size :, :]) for part in layer.state
                ]
        mx.eval(cache_states(self._cache))
        self._read_tokens += len(tokens)

    def draft(
        self,
        rest: Sequence[int],
        num_tokens: int,
        choose: Choose,
        confidence_threshold: float | None,
    ) -> mx.array | None:
        """Read the rest of the row's tokens, and draft. The drafts are not evaluated unless there
        is a threshold."""
        logits = self._forward(mx.array([rest]), self._cache)
        self._read_tokens += len(rest)
        drafts: list[mx.array] = []
        while True:
            token = choose(logits, len(drafts))
            if confidence_threshold is not None and (
                _probability(logits, token) < confidence_threshold
            ):
                break
            drafts.append(token)
            if len(drafts) == num_tokens:
                break
            logits = self._forward(token[:, None], self._cache)
            self._drafted_in_cache += 1
        return mx.concatenate(drafts) if drafts else None

    def keep(self, accepted_tokens: int) -> None:
        kept = min(accepted_tokens, self._drafted_in_cache)
        for layer in self._cache:
            layer.trim(self._drafted_in_cache - kept)
        self._read_tokens += kept
        self._drafted_in_cache = 0


def load_draft(
    folder: Path, tokenizer: Any, vocabulary_size: int, *, allow_code: bool = False
) -> DraftModel:
    """Load the draft model in ``folder``, for a model with ``tokenizer`` and logits of this width.
    ``allow_code``: the code of the draft model's own tokenizer may run.

    Raises :class:`OperationError` when it can't be loaded as it is, or can't draft for that
    model, and as :func:`lmx.worker.mlx.model.library.open_checkpoint` does.
    """
    config = read_folder(folder)
    checkpoint = open_checkpoint(folder, allow_code=allow_code)
    evaluate(checkpoint.model)
    differs = _difference(checkpoint.tokenizer, tokenizer)
    if differs:
        raise OperationError(
            ErrorCode.CONFIG_INVALID,
            f"The draft model in {folder} can't draft for this model: {differs}. Choose one "
            "with the same tokenizer.",
        )
    draft = DraftModel(checkpoint.forward, config.context_tokens, vocabulary_size)
    draft.check()
    return draft


def _difference(draft: Any, target: Any) -> str:
    """Return in words how two tokenizers differ, nothing if they don't."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours != theirs:
        different = len(ours.items() ^ theirs.items())
        return f"their vocabularies differ in {different} entries ({len(theirs)}, {len(ours)})"
    if set(draft.all_special_ids) != set(target.all_special_ids):
        return "their special tokens differ"
    return ""


def _with_rollback(layer: Any) -> Any:
    """Return a sliding window's cache as one that can take tokens back after it has slid."""
    if type(layer) is RotatingKVCache and layer.keep == 0:
        return BufferedRotatingKVCache(layer.max_size, buffer_size=_ROLLBACK_TOKENS)
    return layer


def _probability(logits: mx.array, token: mx.array) -> float:
    chances = mx.softmax(logits.astype(mx.float32), axis=-1)
    return cast(float, chances[0, token[0]].item())
