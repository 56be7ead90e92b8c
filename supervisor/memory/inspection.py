"""What is asked of a model's files, and what they say: values that travel between the supervisor
and the process that reads the files. Pure.

Whoever wrote the files may have written anything: the supervisor takes an answer only if every
figure and every text in it is within bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from lmx.protocol.errors import ProtocolError
from lmx.protocol.states import ModelKind
from lmx.protocol.wire import codec
from lmx.supervisor.memory.facts import ModelFacts
from lmx.supervisor.memory.files import MOST_BYTES, ModelFiles

_MOST_FIGURE: Final = 2**31
_MOST_LAYERS: Final = 8192
_MOST_TOKEN_BYTES: Final = 2**41
_LONGEST_PATH: Final = 4096
_LONGEST_TEXT: Final = 2000
_LONGEST_FAMILY: Final = 80


@dataclass(frozen=True, slots=True)
class Question:
    """Which model to read. ``path``: its folder, None where it is to be looked for as an earlier
    fetch left it. ``draft``: the folder of its draft model. ``kind`` None: as the files tell."""

    source: str
    path: str | None = None
    draft: str | None = None
    kind: ModelKind | None = None

    def same_model(self, other: Question) -> bool:
        """Whether both ask of one model, wherever its folder is."""
        mine, others = (self.source, self.draft, self.kind), (other.source, other.draft, other.kind)
        return mine == others


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a model's files say.

    ``path`` None: no folder of it is on this machine. ``missing``: what of a fetched one is still
    to come; nothing else is read then. ``gguf_path``: of a model that is made from a GGUF file,
    the file, links followed. ``problem``: why it can't be loaded, for people; None: it can.
    ``source_problem``: why its source can't be one.
    """

    question: Question
    path: str | None = None
    missing: str | None = None
    gguf_path: str | None = None
    kind: ModelKind | None = None
    facts: ModelFacts = field(default_factory=ModelFacts)
    files: ModelFiles | None = None
    draft_files: ModelFiles | None = None
    problem: str | None = None
    source_problem: str | None = None

    @property
    def whole(self) -> bool:
        """Whether all of the model is on this machine."""
        return self.path is not None and self.missing is None


def shown(text: str, longest: int = _LONGEST_TEXT) -> str:
    """Return a text that may have come from a file so that it can be sent and printed."""
    plain = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in plain)[
        :longest
    ]


def read_answer(question: Question, answer: Any) -> Inspection:
    """Return the answer to a question. Raises :class:`ProtocolError` for what is out of bounds."""
    found = codec.from_map(Inspection, answer, "inspection")
    if found.question != question:
        raise ProtocolError("inspection: it answers another question")
    for path in (found.path, found.gguf_path):
        _check(path is None or (0 < len(path) <= _LONGEST_PATH and "\0" not in path), "path")
    for text in (found.missing, found.problem, found.source_problem):
        _check(text is None or text == shown(text), "text")
    family = found.facts.family
    _check(family is None or family == shown(family, _LONGEST_FAMILY), "family")
    _check(0 < (found.facts.context_tokens or 1) < _MOST_FIGURE, "context_tokens")
    _check(0 <= (found.facts.created_s or 0) < MOST_BYTES, "created_s")
    for files in (found.files, found.draft_files):
        if files is not None:
            _check_files(files)
    return found


def _check_files(files: ModelFiles) -> None:
    widths = files.widths
    _check(0 <= files.weights_bytes <= MOST_BYTES, "weights_bytes")
    _check(files.element_bytes in (1, 2, 4), "element_bytes")
    _check(0 < (files.context_tokens or 1) < _MOST_FIGURE, "context_tokens")
    for width in (widths.hidden, widths.heads, widths.vocabulary):
        _check(0 <= width < _MOST_FIGURE, "widths")
    _check(0 <= widths.inner < _MOST_FIGURE**2, "widths")
    _check(len(files.kv_layers) <= _MOST_LAYERS, "kv_layers")
    for part in files.kv_layers:
        _check(0 < part.layers <= _MOST_LAYERS, "kv_layers.layers")
        _check(0 <= part.token_bytes < _MOST_TOKEN_BYTES, "kv_layers.token_bytes")
        _check(0 < (part.window_tokens or 1) < _MOST_FIGURE, "kv_layers.window_tokens")
        _check(0 <= part.fixed_bytes < MOST_BYTES, "kv_layers.fixed_bytes")
    _check(len(files.revision) == 64 and files.revision.isalnum(), "revision")


def _check(right: bool, name: str) -> None:
    if not right:
        raise ProtocolError(f"inspection: {name} is out of bounds")
