"""Messages for the work of a model that is not a generation: one question, one answer, no credit.

Router to worker: Embed, Rerank, Transcribe, Speak, Tokenize, Detokenize, DescribeTokenizer, and
Cancel. Worker to router: Refused if there is no answer; else one or more Vectors, Scores,
Transcripts or Spokens and then TaskFinished, or one Tokenized, Detokenized or TokenizerDescribed.
Cancel and Refused are those of :mod:`lmx.protocol.messages.data`. The tasks and streams of one
router are numbered together. A task whose worker failed after some parts were sent is refused all
the same.

Some fields mean the same in every task. ``owner`` and ``keep_alive_s`` are those of ``Generate``.
When ``deadline_s`` has passed since its turn came (Preparing), a task is dropped and refused.
"""

from dataclasses import dataclass
from typing import Any

from lmx.protocol.messages.data import Thinking, ToolUse
from lmx.protocol.messages.media import MediaItem
from lmx.protocol.messages.speech import Speak, Spoken, Transcribe, Transcript
from lmx.protocol.wire.codec import message


@message
@dataclass(frozen=True, slots=True)
class Embed:
    """Turn inputs into vectors. The inputs are either ``texts`` or ``tokens``."""

    stream_id: int
    request_id: str
    deadline_s: float
    texts: tuple[str, ...] = ()
    tokens: tuple[tuple[int, ...], ...] = ()
    """The ids of the model's own tokens, for each input."""
    dimensions: int | None = None
    """Only this many leading dimensions of each vector are returned. None: all of them."""
    keep_alive_s: float | None = None
    owner: str = ""
    truncate: bool = False
    """A text that is longer than the model's context is cut off at its end. Otherwise it is
    refused."""
    background: bool = False
    """Whether it is computed only while no other task waits, as ``Generate`` with
    :data:`lmx.protocol.messages.data.BACKGROUND_PRIORITY` is."""


@message
@dataclass(frozen=True, slots=True)
class Rerank:
    """Return a score for how well each document answers the query."""

    stream_id: int
    request_id: str
    deadline_s: float
    query: str
    documents: tuple[str, ...]
    keep_alive_s: float | None = None
    owner: str = ""
    queries: tuple[str, ...] = ()
    """A query for each document, in place of ``query``. Empty: ``query`` is that of all."""


@message
@dataclass(frozen=True, slots=True)
class Tokenize:
    """Return the tokens of a text, or of a conversation as the model's template renders it. Exactly
    one of ``text`` and ``messages`` is given."""

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
    """Whether the name of each token in the vocabulary is returned too."""
    owner: str = ""
    thinking: Thinking | None = None
    """How the model would think, which its template may show. None: as it does by itself."""
    continue_final_message: bool = False
    """Whether the prompt ends within the last message."""
    media: tuple[MediaItem, ...] = ()
    """The images, sounds and videos that the parts of ``messages`` refer to by their place here.
    The bytes of each are a frame of their own behind this message, in the same order. Their tokens
    are those that they would take in a prompt."""


@message
@dataclass(frozen=True, slots=True)
class Detokenize:
    """Return the text of tokens. Special tokens appear in it by their names."""

    stream_id: int
    request_id: str
    deadline_s: float
    tokens: tuple[int, ...]
    owner: str = ""


@message
@dataclass(frozen=True, slots=True)
class DescribeTokenizer:
    """Return the configuration of the model's tokenizer."""

    stream_id: int
    request_id: str
    deadline_s: float
    owner: str = ""


Task = Embed | Rerank | Transcribe | Speak | Tokenize | Detokenize | DescribeTokenizer


@message
@dataclass(frozen=True, slots=True)
class Vectors:
    """Some of the vectors that an Embed asked for. The vector of each input comes once."""

    stream_id: int
    indexes: tuple[int, ...]
    """The inputs whose vectors these are."""
    dimensions: int
    data: bytes
    """The vectors, one after the other, each of ``dimensions`` float32 numbers in little endian."""


@message
@dataclass(frozen=True, slots=True)
class Scores:
    """Some of the scores that a Rerank asked for."""

    stream_id: int
    indexes: tuple[int, ...]
    """The documents whose scores these are."""
    scores: tuple[float, ...]
    """The higher a score, the better the document answers the query."""


@message
@dataclass(frozen=True, slots=True)
class TaskFinished:
    """All vectors of an Embed, all scores of a Rerank, or all of a transcript or of a sound have
    been sent."""

    stream_id: int
    prompt_tokens: int


@message
@dataclass(frozen=True, slots=True)
class Tokenized:
    """Reply to Tokenize."""

    stream_id: int
    tokens: tuple[int, ...]
    context_tokens: int
    pieces_json: bytes = b""
    """The tokens' names as a JSON array, if they were requested. To unpack a million strings, and
    to write them out again, would hold up the router's event loop for 0.15 s."""


@message
@dataclass(frozen=True, slots=True)
class Detokenized:
    """Reply to Detokenize."""

    stream_id: int
    text: str


@message
@dataclass(frozen=True, slots=True)
class TokenizerDescribed:
    """Reply to DescribeTokenizer."""

    stream_id: int
    text: str
    """A JSON object, as text."""


TaskPart = Vectors | Scores | Transcript | Spoken
"""The parts of an answer that comes in several messages, before its TaskFinished."""

TaskReply = Tokenized | Detokenized | TokenizerDescribed
"""The whole answer to a task."""
