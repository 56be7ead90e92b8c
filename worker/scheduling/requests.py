"""The input and output of the engine thread: requests, their text and their ends. Pure values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.data import Delta, Reread, Timings, Usage
from lmx.protocol.states import FinishReason
from lmx.worker.engine.values import AnswerCheck, SequenceRequest
from lmx.worker.formats.parser import OutputParser


@dataclass(frozen=True, slots=True)
class TextRules:
    """How a request's tokens become text, and when an answer ends."""

    eos: frozenset[int]
    """These tokens end an answer and are no text, but not before ``min_tokens``."""
    stop_ids: frozenset[int] = frozenset()
    """The request's stop tokens. They end an answer in the same way."""
    stop: tuple[str, ...] = ()
    """The request's stop strings, which also count only after ``min_tokens``."""
    include_stop: bool = False
    """Whether the stop string stays in the text."""
    min_tokens: int = 0
    """Before this many tokens none of the above ends an answer."""
    make_parser: Callable[[], OutputParser] | None = None
    """Makes the parser for reasoning and tool calls. None: all text is content."""
    logprobs: bool = False
    """Whether tokens come with their scores."""
    echo: bool = False
    """Whether the answer begins with the prompt."""
    prompt_logprobs: int | None = None
    """How many alternatives come with the logprob of each token of the prompt, which are sent in
    addition to the answers. None: they are not sent."""
    prompt: str | None = None
    """The text of the prompt. None: it was given as tokens, or not all of it was taken."""
    token_ids: bool = False
    """Whether the text comes with its tokens."""
    continues: bool = True
    """Whether the text continues the prompt's."""
    show_reread: bool = False
    """Whether the prompt's text is shown where it departs from an earlier one."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request that is ready for the engine.

    It has a sequence for each answer, all with the same prompt; or one with a beam search, which
    finds ``answers`` of them.
    """

    run_id: int
    """Unique in the worker: a request whose answer is made again has a new one."""
    request_id: str
    sequences: tuple[SequenceRequest, ...]
    rules: TextRules
    answers: int
    arrived_s: float
    """When its request arrived, on the monotonic clock."""
    owner: str = ""
    """Takes turns with other owners."""
    memory_wait_s: float | None = None
    """How long it may wait for its first row while the machine is short of memory."""
    check: AnswerCheck | None = None
    """What an answer must satisfy besides its constraint."""
    remarks: tuple[str, ...] = ()
    """What is done differently from what was requested, in sentences for people."""
    call_checks: Mapping[str, AnswerCheck] = field(default_factory=dict)
    """What the arguments of an answer's calls must satisfy, by the names of the functions."""
    ignored: tuple[str, ...] = ()
    """The fields of the request that change nothing with this model."""
    decode_s: float = 0.0
    """How long it took to decode its media."""

    @property
    def waits_since_s(self) -> float:
        """The time from which its waiting is counted, without the decoding of its own media."""
        return self.arrived_s + self.decode_s

    @property
    def priority(self) -> int:
        """That of its sequences. Requests of a lower value begin first, and are preempted last."""
        return self.sequences[0].priority


class ChoiceFinished(NamedTuple):
    """An answer is complete."""

    stream_id: int
    """The request's ``run_id``, as in all its output."""
    choice: int
    reason: FinishReason
    stop: str | None
    """The stop string that ended it, if one did."""
    tokens: int
    mean_logprob: float
    """The mean logprob of its tokens and of the token that ended it; 0 if none is known."""


class MediaReleased(NamedTuple):
    """The prompt of every sequence of a request has been read: its media take no more memory."""

    stream_id: int


class MediaWanted(NamedTuple):
    """A request that was preempted has its turn, and needs the media that it has released."""

    stream_id: int


class RequestFinished(NamedTuple):
    """All answers are complete."""

    stream_id: int
    usage: Usage
    timings: Timings
    reread: Reread | None = None
    compute_s: float = 0.0
    """Its part of the engine's time."""


class RequestFailed(NamedTuple):
    """The request failed."""

    stream_id: int
    code: ErrorCode
    message: str


class RequestCancelled(NamedTuple):
    """The request was cancelled, and its places are free again."""

    stream_id: int


RequestEnd = RequestFinished | RequestFailed | RequestCancelled
RequestOutput = Delta | ChoiceFinished | MediaReleased | MediaWanted | RequestEnd
