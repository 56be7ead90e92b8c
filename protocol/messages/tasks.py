"""Messages for work of a model that is no generation: one question, one answer, no credit.

Router to worker: Embed, Rerank, Tokenize, Detokenize, DescribeTokenizer, and data.Cancel. Worker to
router: Refused (data) whenever there is no answer, else Vectors (one or more) or Scores, then
TaskFinished; or Tokenized; or Detokenized; or TokenizerDescribed. ``owner`` as in ``Generate``.
Streams and tasks of a router have their numbers in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmx.protocol.messages.data import ToolUse
from lmx.protocol.wire.codec import message


@message
@dataclass(frozen=True, slots=True)
class Embed:
    """Turn inputs into vectors: ``texts``, or ``tokens`` as the model's own ids.

    ``dimensions``: so many leading ones of each vector; None: all. After ``deadline_s`` from
    its arrival the work is dropped and refused. ``keep_alive_s`` as in ``Generate``.
    """

    stream_id: int
    request_id: str
    deadline_s: float
    texts: tuple[str, ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()
    dimensions: int | None = None
    keep_alive_s: float | None = None
    owner: str = ""


@message
@dataclass(frozen=True, slots=True)
class Rerank:
    """Say how well each document answers the query, or with ``queries``, as many as there are
    documents, its own one. ``keep_alive_s`` as in ``Generate``."""

    stream_id: int
    request_id: str
    deadline_s: float
    query: str
    documents: tuple[str, ...]
    keep_alive_s: float | None = None
    owner: str = ""
    queries: tuple[str, ...] = ()


@message
@dataclass(frozen=True, slots=True)
class Tokenize:
    """Return the tokens of a text, or of a conversation as the model's template renders it:
    exactly one of ``text`` and ``messages``. ``pieces``: with each token's own name."""

    stream_id: int
    request_id: str
    deadline_s: float
    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    template_kwargs: dict[str, Any] | None = None
    tool_use: ToolUse | None = None
    pieces: bool = False
    owner: str = ""


@message
@dataclass(frozen=True, slots=True)
class Detokenize:
    """Return the text of tokens, special tokens by their names."""

    stream_id: int
    request_id: str
    deadline_s: float
    tokens: tuple[int, ...]
    owner: str = ""


@message
@dataclass(frozen=True, slots=True)
class DescribeTokenizer:
    """Return what the model's tokenizer is configured with."""

    stream_id: int
    request_id: str
    deadline_s: float
    owner: str = ""


Task = Embed | Rerank | Tokenize | Detokenize | DescribeTokenizer


@message
@dataclass(frozen=True, slots=True)
class Vectors:
    """Some of an Embed's vectors: ``data`` has, one after the other, those of the inputs
    ``indexes``, each of ``dimensions`` float32 in little endian. Each input's comes once."""

    stream_id: int
    indexes: tuple[int, ...]
    dimensions: int
    data: bytes


@message
@dataclass(frozen=True, slots=True)
class Scores:
    """Some of a Rerank's scores, of the documents ``indexes``: the higher, the better."""

    stream_id: int
    indexes: tuple[int, ...]
    scores: tuple[float, ...]


@message
@dataclass(frozen=True, slots=True)
class TaskFinished:
    """All of an Embed's vectors or of a Rerank's scores have come."""

    stream_id: int
    prompt_tokens: int


@message
@dataclass(frozen=True, slots=True)
class Tokenized:
    """Reply to Tokenize. ``pieces`` is empty unless they were asked for."""

    stream_id: int
    tokens: tuple[int, ...]
    context_tokens: int
    pieces: tuple[str, ...] = ()


@message
@dataclass(frozen=True, slots=True)
class Detokenized:
    """Reply to Detokenize."""

    stream_id: int
    text: str


@message
@dataclass(frozen=True, slots=True)
class TokenizerDescribed:
    """Reply to DescribeTokenizer: an object of JSON, as text."""

    stream_id: int
    text: str


TaskPart = Vectors | Scores
"""What comes of a task piece by piece, before its TaskFinished."""

TaskReply = Tokenized | Detokenized | TokenizerDescribed
"""The whole answer to a task."""
