"""What the engine thread is given, and what it gives back: jobs, their text and their ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.data import Timings, TokenLogprob, ToolCallPart, Usage
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.worker.engine import AnswerCheck, RowRequest
from lmx.worker.formats.parser import OutputParser


@dataclass(frozen=True, slots=True)
class TextRules:
    """How a job's tokens become text, and when an answer ends.

    ``eos`` and ``stop_ids`` end it and are no text; those and ``stop`` not before
    ``min_tokens``. ``make_parser`` None: all text is content. ``called``: the reason of an end
    with tool calls; as at OpenAI, STOP where the function was named. ``logprobs``: tokens come
    with their scores. ``echo``: the answer begins with the prompt, of which ``prompt`` is the text;
    None: it was given as tokens. ``token_ids``: those of the text are told.
    """

    eos: frozenset[int]
    stop_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    make_parser: Callable[[], OutputParser] | None = None
    called: FinishReason = FinishReason.TOOL_CALLS
    logprobs: bool = False
    echo: bool = False
    prompt: str | None = None
    token_ids: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """An accepted stream. ``arrived_s``: monotonic clock. ``owner``: who takes turns with others.
    ``memory_wait_s``: how long it may wait for a row while the machine is short of memory.

    Has a row for each answer, all with the same prompt; or one row with a beam search, which
    finds ``answers`` of them. ``check``: what an answer must satisfy beside its constraint,
    ``call_checks``: what the arguments of its calls must, by the functions' names.
    ``remarks``: what is done otherwise than it was asked for, for people.
    """

    job_id: int
    request_id: str
    rows: tuple[RowRequest, ...]
    rules: TextRules
    answers: int
    arrived_s: float
    owner: str = ""
    memory_wait_s: float | None = None
    check: AnswerCheck | None = None
    remarks: tuple[str, ...] = ()
    call_checks: Mapping[str, AnswerCheck] = field(default_factory=dict)


class Piece(NamedTuple):
    """Text that became final in one answer, by its number. A tuple: one is made for every token."""

    job_id: int
    answer: int
    text: str
    tokens: int
    kind: DeltaKind = DeltaKind.CONTENT
    call: ToolCallPart | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    token_ids: tuple[int, ...] = ()


class AnswerEnded(NamedTuple):
    """An answer is whole: its tokens, and the sum of their logprobs where they are known."""

    job_id: int
    answer: int
    reason: FinishReason
    stop: str | None
    tokens: int
    logprob: float


class JobFinished(NamedTuple):
    """All answers are whole."""

    job_id: int
    usage: Usage
    timings: Timings


class JobFailed(NamedTuple):
    """The job was lost."""

    job_id: int
    code: ErrorCode
    message: str


class JobCancelled(NamedTuple):
    """The job was cancelled, and its places are free again."""

    job_id: int


JobEnd = JobFinished | JobFailed | JobCancelled
JobOutput = Piece | AnswerEnded | JobEnd
