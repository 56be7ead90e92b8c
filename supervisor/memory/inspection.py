"""The questions about a model's files and the answers: values that travel between the supervisor
and the process that reads the files. This module is pure.

The files may contain anything. So the supervisor accepts an answer only if every figure and every
text in it is within bounds.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, ProtocolError, UnavailableError
from lmx.protocol.models.default_engine import MLX_ENGINE
from lmx.protocol.models.memory import MemoryModel
from lmx.protocol.models.ranks import Parallel
from lmx.protocol.models.voices import MOST_VOICES, VOICE_NAME
from lmx.protocol.states import MediaKind, ModelKind
from lmx.protocol.wire import codec

MOST_BYTES: Final = 2**50
"""More than any model has: a pebibyte."""

_MOST_LAYER_BYTES: Final = 2**40
"""More than the cache of one layer takes for one token."""

_MOST_LAYERS: Final = 8192
_MOST_TOKENS: Final = 2**31
_LONGEST_PATH: Final = 4096
_LONGEST_TEXT: Final = 2000
_LONGEST_FAMILY: Final = 80
_RETRY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Question:
    """Which model to read."""

    source: str
    """The source, as in the configuration."""
    path: str | None = None
    """The model's folder. None: look for it where an earlier fetch left it."""
    draft: str | None = None
    """The folder of the model's draft model, if it has one."""
    kind: ModelKind | None = None
    """What the model is for. None: its files say it."""
    engine: str = MLX_ENGINE
    """The engine that is asked for an estimate of the model's memory."""
    adapters: tuple[str, ...] = ()
    """The model's adapters: absolute paths of folders, and repositories of the hub."""
    ranks: int = 1
    """Among how many processes it is to be divided."""
    parallel: Parallel = Parallel.AUTO
    rdma_devices: tuple[str, ...] = ()
    """This machine's RDMA devices that its ranks need."""
    finds_draft: bool = False
    """Whether what may draft its tokens is looked for in its folder."""

    def same_model(self, other: Question) -> bool:
        """Return whether both ask the same about one model, wherever its folder is."""
        return replace(self, path=None) == replace(other, path=None)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model folder's config.json says about the model for people. A field is None if the
    file does not say it or was not read yet."""

    family: str | None = None
    """The architecture's name: ``qwen3``."""
    context_tokens: int | None = None
    """The longest context that the model was made for."""
    created_s: int | None = None
    """The time of day when the file was written."""
    media: tuple[MediaKind, ...] | None = None
    """What the model takes besides text, by its weights."""
    disk_bytes: int | None = None
    """How much the files of its folder take."""
    voices: tuple[str, ...] = ()
    """The names of the voices with which it reads texts aloud."""
    quantized: str | None = None
    """How lmx has quantized it, and what that costs, for people. None: lmx hasn't."""
    infills: bool | None = None
    """Whether its tokenizer has the tokens with which it fills a gap in a text."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a model folder's files say about the memory that its worker takes."""

    memory: MemoryModel
    """The estimate of the model's engine."""
    context_tokens: int | None
    """The longest context that the model was made for. None: the files do not say."""
    revision: str
    """A hash that changes when the files do, those of its adapters too."""
    adapters_bytes: int = 0
    """The weights of its adapters."""
    own_heads: bool = False
    """Whether heads for further tokens were looked for, and are what drafts its tokens."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a model's files say."""

    question: Question
    path: str | None = None
    """The model's folder. None: it is not on this machine."""
    missing: str | None = None
    """What a fetched folder still lacks, or lacks by now. Nothing else is read then."""
    gguf_path: str | None = None
    """The GGUF file under which the model's conversion is kept (``files.converted_file``)."""
    kind: ModelKind | None = None
    facts: ModelFacts = field(default_factory=ModelFacts)
    files: ModelFiles | None = None
    draft_files: ModelFiles | None = None
    problem: str | None = None
    """Why the model can't be loaded, for people. None: it can be loaded."""
    by_host: bool = False
    """Whether the problem is that the machine has no process to read them with, or lost it: that
    may pass by itself."""
    adapter_problems: tuple[str | None, ...] = ()
    """Why each of the question's adapters can't be used, for people; None where nothing is wrong.
    Whether they fit the model is not known before the load. It is empty if they were not read."""
    adapter_paths: tuple[str | None, ...] = ()
    """The folders of the question's adapters. None: it was not fetched yet. It is empty if they
    were not read."""
    source_problem: str | None = None
    """Why its source can't be the source of a model, for people."""

    @property
    def whole(self) -> bool:
        """Whether all of the model is on this machine."""
        return self.path is not None and self.missing is None


def refuse_unread(found: Inspection) -> None:
    """Raise :class:`UnavailableError` (queue_full) where the machine is to blame that files were
    not read: nothing is known about them then."""
    if found.by_host:
        message = f"{found.problem} (try again in a few seconds)"
        raise UnavailableError(ErrorCode.QUEUE_FULL, message, retry_after_s=_RETRY_S)


def shown(text: str, longest: int = _LONGEST_TEXT) -> str:
    """Return a text that may have come from a file in a form that can be sent and printed."""
    plain = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in plain)[
        :longest
    ]


def read_answer(question: Question, answer: Any) -> Inspection:
    """Return the answer to a question. Raises :class:`ProtocolError` for what is out of bounds."""
    found = codec.from_map(Inspection, answer, "inspection")
    if found.question != question:
        raise ProtocolError("inspection: it answers another question")
    for path in (found.path, found.gguf_path, *found.adapter_paths):
        _check(path is None or (0 < len(path) <= _LONGEST_PATH and "\0" not in path), "path")
    texts = (found.missing, found.problem, found.source_problem, found.facts.quantized)
    for text in (*texts, *found.adapter_problems):
        _check(text is None or text == shown(text), "text")
    _check(len(found.adapter_problems) in (0, len(question.adapters)), "adapter_problems")
    _check(len(found.adapter_paths) == len(found.adapter_problems), "adapter_paths")
    family = found.facts.family
    _check(family is None or family == shown(family, _LONGEST_FAMILY), "family")
    media = found.facts.media or ()
    _check(len(set(media)) == len(media), "media")
    voices = found.facts.voices
    _check(len(voices) <= MOST_VOICES, "voices")
    _check(all(map(VOICE_NAME.fullmatch, voices)), "voices")
    _check(0 < (found.facts.context_tokens or 1) < _MOST_TOKENS, "context_tokens")
    _check(0 <= (found.facts.created_s or 0) < MOST_BYTES, "created_s")
    _check(0 <= (found.facts.disk_bytes or 0) < MOST_BYTES, "disk_bytes")
    for files in (found.files, found.draft_files):
        if files is not None:
            _check_files(files)
    return found


def figures_problem(memory: MemoryModel) -> str | None:
    """Return which figure of an estimate no model can have, for people. None: all are possible."""
    work = memory.activations
    sizes = {
        "weights_bytes": memory.weights_bytes,
        "divided_bytes": memory.divided_bytes,
        "process_bytes": memory.process_bytes,
        "buffers_bytes": memory.buffers_bytes,
        "activations.token_bytes": work.token_bytes,
        "activations.pair_bytes": work.pair_bytes,
        "activations.row_bytes": work.row_bytes,
    }
    counts = {
        "activations.chunk_tokens": work.chunk_tokens,
        "activations.depth_tokens": work.depth_tokens,
    }
    if memory.media is not None:
        sizes["media.weights_bytes"] = memory.media.weights_bytes
        sizes["media.image_bytes"] = memory.media.image_bytes
        counts["media.image_tokens"] = memory.media.image_tokens or 1
    for name, size in sizes.items():
        if not 0 <= size <= MOST_BYTES:
            return f"{name} would be {_figure(size)}"
    for name, tokens in counts.items():
        if not 0 < tokens < _MOST_TOKENS:
            return f"{name} would be {_figure(tokens)}"
    kinds = (memory.kv_layers, memory.kv_layers_8bit, memory.kv_layers_4bit)
    if max(map(len, kinds)) > _MOST_LAYERS:
        return f"it has more than {_MOST_LAYERS} kinds of layers"
    for part in itertools.chain(*kinds):
        if not 0 < part.layers <= _MOST_LAYERS:
            return f"it has {part.layers} layers that are alike"
        if min(part.token_bytes, part.fixed_bytes, part.read_bytes) < 0:
            return "a layer's cache is less than nothing"
        if part.token_bytes + part.fixed_bytes + part.read_bytes > _MOST_LAYER_BYTES:
            return "a layer's cache is beyond any memory"
        if not (
            0 < part.step_tokens < _MOST_TOKENS and 0 < (part.window_tokens or 1) < _MOST_TOKENS
        ):
            return "a layer's cache has no possible number of tokens"
    return None


def _figure(number: int) -> str:
    return str(number) if abs(number) < 2**63 else "beyond 64 bits"


def _check_files(files: ModelFiles) -> None:
    problem = figures_problem(files.memory)
    _check(problem is None, f"memory ({problem})")
    _check(0 < (files.context_tokens or 1) < _MOST_TOKENS, "context_tokens")
    _check(0 <= files.adapters_bytes <= MOST_BYTES, "adapters_bytes")
    _check(len(files.revision) == 64 and files.revision.isalnum(), "revision")


def _check(right: bool, name: str) -> None:
    if not right:
        raise ProtocolError(f"inspection: {name} is out of bounds")
