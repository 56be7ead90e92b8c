"""The common part of embedding and rerank models: one forward pass, without rows and without a
cache.

It also cuts many sequences into batches, one for each forward pass.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from transformers import AutoTokenizer

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.messages.tasks import TaskReply
from lmx.protocol.states import LoadPhase
from lmx.worker.engine.interfaces import LoadReporter
from lmx.worker.engine.values import ModelFacts
from lmx.worker.mlx.device.gpu import on_gpu
from lmx.worker.mlx.device.metal_memory import release_memory, wire_weights
from lmx.worker.mlx.encoders.folder import EncoderSettings, read_encoder_settings
from lmx.worker.mlx.media.blocks import blocks
from lmx.worker.mlx.model.folder import effective_context, read_folder
from lmx.worker.mlx.model.guard import forbid_checkpoint_code
from lmx.worker.mlx.model.load import read_weights
from lmx.worker.mlx.model.token_text import TokenTask, TokenTasks
from lmx.worker.mlx.module_calls import wrap_call

CPU_PIECE_TOKENS: Final = 256
GPU_PIECE_TOKENS: Final = 8192
"""The most tokens of one forward pass, padding included: about a second of a small model's time, in
which no other piece is computed. Measured with MiniLM and the reference BLAS on one core: 180
tokens a second."""

MOST_ROWS: Final = 1024
"""The most sequences of one forward pass. What comes of them is one message, which costs the router
its connection if it has more than 64 MiB: 4 KiB for each number of a vector."""

_LEAST_REFUSED_CHARACTERS: Final = 1 << 20
"""A text that is no longer than this is tokenized in any case, in about a second: some tokenizers
make one token of a word of any length, and none of spaces."""

_CHARACTERS_AT_ONCE: Final = 1 << 18
"""So much text is tokenized in one call, which returns some hundred bytes for each token."""

ReadModel = Callable[[Path, EncoderSettings], Any]
"""Returns mlx-vlm's model of a folder, with its weights not read yet."""


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """A model whose weights are in memory, its tokenizer, and what is known of it."""

    model: Any
    tokenizer: Any
    settings: EncoderSettings
    facts: ModelFacts
    """``context_tokens`` is the longest input."""
    piece_tokens: int
    """How many tokens a piece may have at most, padding included."""


def load_encoder(spec: WorkerSpec, advanced: LoadReporter, read_model: ReadModel) -> LoadedEncoder:
    """Load the folder that the spec names. Engine thread; takes as long as the disk needs.

    Raises :class:`OperationError` for a folder that can't be served as configured, and whatever
    ``read_model`` raises for one that it can't load.
    """
    folder = Path(spec.model_path)
    config = read_folder(folder)
    settings = read_encoder_settings(folder)
    context_tokens = _context(settings, spec.context_length)
    advanced(LoadPhase.WEIGHTS, 0.0, "")
    forbid_checkpoint_code()
    model = read_model(folder, settings)
    read_weights(model, advanced, folder, config.checkpoint, spec.kind)
    wire_weights(spec.wiring, spec.memory_limit_bytes)
    return LoadedEncoder(
        model,
        AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False),
        settings,
        ModelFacts(context_tokens, frozenset(), int(model.config.vocab_size)),
        GPU_PIECE_TOKENS if on_gpu() else CPU_PIECE_TOKENS,
    )


class EncoderInputs:
    """The part of an encoder that handles tokens."""

    def __init__(self, encoder: LoadedEncoder) -> None:
        self._context_tokens = encoder.facts.context_tokens
        longest_token = max(map(len, encoder.tokenizer.get_vocab()))
        self._most_characters = max(
            _LEAST_REFUSED_CHARACTERS, (self._context_tokens + 1) * longest_token
        )
        self._cuts_beginning = encoder.tokenizer.truncation_side == "left"
        self._pad_id = encoder.tokenizer.pad_token_id or 0
        self._token_tasks = TokenTasks(
            encoder.tokenizer,
            encoder.facts.vocabulary_size,
            self._context_tokens,
        )

    def reply(self, task: TokenTask) -> TaskReply:
        """Answer a task with the tokenizer. Prompt thread. Raises ``RequestError``."""
        return self._token_tasks.reply(task)

    def check_text(self, text: str, param: str) -> None:
        """Raise ``RequestError`` for a text that can't fit whatever its tokens are. Prompt thread:
        tokenizing 15 MB takes 17 s, in which all other inputs wait."""
        if len(text) > self._most_characters:
            raise RequestError(
                ErrorCode.CONTEXT_LENGTH_EXCEEDED,
                f"`{param}` has {len(text)} characters, and this model takes "
                f"{self._context_tokens} tokens at most: shorten it, or split it.",
                param=param,
            )

    def cut_text(self, text: str) -> str:
        """Return a text without an end, or a beginning, that no truncated input has. Prompt
        thread."""
        most = self._most_characters
        return text[-most:] if self._cuts_beginning else text[:most]

    def check_length(self, tokens: int, param: str) -> None:
        """Raise ``RequestError`` for an input that is empty or too long. Prompt thread."""
        if tokens == 0:
            raise RequestError(
                ErrorCode.INVALID_VALUE, f"`{param}` has no tokens: leave it out.", param=param
            )
        if tokens > self._context_tokens:
            raise RequestError(
                ErrorCode.CONTEXT_LENGTH_EXCEEDED,
                f"`{param}` has {tokens} tokens, and this model takes {self._context_tokens} at "
                "most: shorten it, or split it.",
                param=param,
            )

    def pad(self, rows: Sequence[Sequence[int]]) -> tuple[mx.array, mx.array]:
        """Return ids and attention mask [rows, longest]; padding is at the end. Engine thread."""
        longest = max(map(len, rows))
        ids = [[*row, *([self._pad_id] * (longest - len(row)))] for row in rows]
        mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
        return mx.array(ids), mx.array(mask)


class Layers:
    """Computes layer by layer what takes long. MLX computes nothing before it is evaluated: so a
    whole forward pass is recorded first, with what each layer makes. Engine thread."""

    def __init__(self, encoder: LoadedEncoder) -> None:
        self._short_tokens = encoder.piece_tokens // 8
        self._made: deque[mx.array] = deque()
        for layer in blocks(encoder.model):
            wrap_call(layer, self._note)

    def computed(
        self, ids: mx.array, record: Callable[[], mx.array]
    ) -> Generator[None, None, mx.array]:
        """Return what ``record`` makes of the padded rows of ``ids``, and pause behind the layers,
        unless all of it is done soon."""
        made: deque[mx.array] = deque()
        self._made = made
        output = record()
        self._made = deque()
        while made and ids.size > self._short_tokens:
            mx.eval(made.popleft())
            yield
        mx.eval(output)
        return output

    def _note(self, output: Any) -> None:
        made = output[0] if isinstance(output, tuple) else output
        if isinstance(made, mx.array):
            self._made.append(made)


class EncoderMemory:
    """A ``Resident`` whose only cache is mlx's own."""

    def __init__(self, model: Any) -> None:
        """``model`` is the one whose weights are in memory."""
        self._model = model

    def rest(self) -> None:
        mx.clear_cache()

    def shrink(self) -> None:
        mx.clear_cache()

    def regrow(self) -> None:
        """Do nothing: no cache can grow."""

    def close(self) -> None:
        """Do nothing: nothing is kept on disk."""

    def release(self) -> None:
        release_memory([self._model])

    def memory_bytes(self) -> int:
        return int(mx.get_active_memory() + mx.get_cache_memory())

    def peak_memory_bytes(self) -> int:
        return int(mx.get_peak_memory())


def _context(settings: EncoderSettings, configured: int | None) -> int:
    """Return the longest input that is accepted: the configured length, else that of the
    training."""
    return effective_context(settings.position_tokens, configured or settings.context_tokens)


def tokenized_at_once(lengths: Sequence[int]) -> Iterator[slice]:
    """Yield which of some texts with so many characters to tokenize in one call, in order. Pure."""
    begin = characters = 0
    for index, length in enumerate(lengths):
        if index > begin and characters + length > _CHARACTERS_AT_ONCE:
            yield slice(begin, index)
            begin, characters = index, 0
        characters += length
    yield slice(begin, len(lengths))


def cut(lengths: Sequence[int], limit_tokens: int) -> list[list[int]]:
    """Return the indexes of sequences, in batches of at most ``limit_tokens``, padding included,
    and ``MOST_ROWS``. Pure.

    Sequences of similar length go together, the shortest first. One that is longer than the limit
    goes alone.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        # The sequences are sorted, so the whole batch becomes as long as this one.
        rows = len(batches[-1]) if batches else MOST_ROWS
        if rows == MOST_ROWS or (rows + 1) * lengths[index] > limit_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches
