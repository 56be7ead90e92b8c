"""The values that cross the interfaces of an engine (:mod:`lmx.worker.engine.interfaces`)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import (
    BACKGROUND_PRIORITY,
    Assist,
    Infill,
    Structure,
    Thinking,
    ToolUse,
)
from lmx.protocol.messages.tasks import TaskPart
from lmx.protocol.messages.template import UNKNOWN_TEMPLATE, TemplateFacts
from lmx.protocol.models.sampling import SamplingParameters
from lmx.protocol.states import ModelKind, RereadReason
from lmx.worker.media.values import MediaNeeds

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from lmx.worker.media.values import Media

# --- What is known of a model ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The markers that a model writes before and after its thinking."""

    start: str
    """The text that begins it."""
    end: str
    """The text that ends it."""
    only_first: bool = False
    """Whether an answer can only begin with the thinking: markers that are words of a language may
    stand in any text."""
    answer: tuple[str, str] = ("", "")
    """The markers before and behind an answer that follows the thinking; "" if there are no such
    markers. They are no part of the answer."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model once it is loaded."""

    context_tokens: int
    """How many tokens a prompt and its answer may have together."""
    eos_token_ids: frozenset[int]
    """The tokens that end an answer and are no part of it; none for a model that doesn't write."""
    vocabulary_size: int
    """Its tokens are the numbers from 0 to one less."""
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    """The parameters in its generation_config.json."""
    reasoning: ReasoningMarkers | None = None
    """None for a model that does not think."""
    tool_parser: str | None = None
    """The family whose form its tool calls have (:mod:`lmx.worker.formats.families`). None if its
    template knows no tools."""
    calls_in_open_thought: bool = True
    """Whether whole calls at the end of a thought that was never closed are calls."""
    converses: bool = False
    """Whether it has a template for messages."""
    grammars: bool = False
    """Whether its answers can be held to a form."""
    infills: bool = False
    """Whether its tokenizer has the tokens with which it fills a gap in a text."""
    adapters: Mapping[str, str | None] = field(default_factory=dict)
    """The adapters that rows may name, by id, each with the reason why it can't be used after all;
    None where it can."""
    media: MediaNeeds | None = None
    """What it takes besides text; None for a model that takes text only."""
    template: TemplateFacts = UNKNOWN_TEMPLATE
    """What its chat template takes."""
    remarks: tuple[str, ...] = ()
    """Why its answers may differ from what the model was made for, in full sentences."""
    own_context_tokens: int | None = None
    """How many it was made for; None if that is not known."""

    @property
    def longer_context(self) -> str:
        """What else can be done about a prompt that is too long, as the end of a sentence; nothing
        if the context can't be longer."""
        own = self.own_context_tokens
        if own is None or own <= self.context_tokens:
            return ""
        return f", or have the model's context_length set to more (up to {own})"


def capabilities(facts: ModelFacts) -> tuple[str, ...]:
    """Return what requests may ask of a model, in words for clients.

    ``tools`` means that it accepts functions. Calls that must be made are enforced only with
    ``structured_outputs``, which means that answers can be held to a form. ``native_tools`` means
    that its template knows functions; for other models they are described in words. ``infill``
    means that its tokenizer has the tokens for a gap in a text.
    """
    has = {
        "tools": facts.converses,
        "native_tools": facts.converses and facts.tool_parser is not None,
        "structured_outputs": facts.grammars,
        "reasoning": facts.reasoning is not None,
        "infill": facts.infills,
    }
    return tuple(name for name, is_there in has.items() if is_there)


_WRONG_KIND: Final[Mapping[ModelKind, str]] = {
    ModelKind.CHAT: "This model writes answers; it makes no embeddings, ranks no documents, "
    "transcribes no speech and reads nothing aloud: name a model of the kind that does.",
    ModelKind.EMBEDDING: "This model only makes vectors: use /v1/embeddings, or name another model "
    "here.",
    ModelKind.RERANK: "This model only ranks documents: use /v1/rerank, or name another model "
    "here.",
    ModelKind.TRANSCRIPTION: "This model only transcribes speech: use "
    "/v1/audio/transcriptions, or name another model here.",
    ModelKind.SPEECH: "This model only reads texts aloud: use /v1/audio/speech, or name another "
    "model here.",
}


def wrong_kind(kind: ModelKind) -> RequestError:
    """Return the error for a request that a model of this kind can't answer."""
    return RequestError(ErrorCode.UNSUPPORTED_VALUE, _WRONG_KIND[kind], param="model")


# --- Prompts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PromptSource:
    """The source of a prompt: exactly one of ``messages``, ``text`` and ``tokens``."""

    messages: Sequence[Mapping[str, object]] | None = None
    """A conversation in OpenAI's form."""
    text: str | None = None
    """A text that the answer continues."""
    infill: Infill | None = None
    """With ``text``: what comes after the answer."""
    tokens: Sequence[int] | None = None
    """The prompt itself, as the model's own tokens."""
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Further variables for the chat template."""
    tool_use: ToolUse | None = None
    """The functions that the template shows to the model."""
    thinking: Thinking = field(default_factory=Thinking)
    """Whether and how much the model is to think."""
    add_generation_prompt: bool = True
    """Whether the prompt ends where an answer begins; otherwise it ends with the last message,
    which is useful for counting."""
    continue_final_message: bool = False
    """Whether the prompt ends with the text of the last message, which the answer continues."""
    media: Sequence[Media] = ()
    """The pictures, sounds and videos of ``messages``, whose parts name them by their numbers."""
    media_params: Sequence[str] = ()
    """The path of each of them in the request, for errors."""


class PromptMedia(Protocol):
    """The media of a prompt, as the engine that has encoded the prompt takes them. Others only look
    at the figures, and release what the model has read. Engine thread, once a row has it."""

    @property
    def image_tokens(self) -> int:
        """How many tokens of the prompt stand for pictures."""

    @property
    def audio_tokens(self) -> int:
        """How many tokens of the prompt stand for sounds."""

    @property
    def video_tokens(self) -> int:
        """How many tokens of the prompt stand for videos."""

    @property
    def size_bytes(self) -> int:
        """How much memory they take now."""

    def release(self) -> None:
        """Give back what only the reading of the prompt needs, which is nearly all of it."""

    def restore(self, again: PromptMedia) -> None:
        """Restore what was released, from the media of the same prompt, which was encoded again.
        Raises ``ValueError`` if they are not the same."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as the model takes it."""

    tokens: Sequence[int]
    """At least one."""
    thinking_open: bool = False
    """Whether the prompt ends inside the model's thinking, so that the answer begins there."""
    thinking_closed: bool = False
    """Whether the prompt has ended a thought, so that the answer itself begins behind it."""
    media: PromptMedia | None = None
    """Its pictures, sounds and videos; None: it is text alone. Then all of ``tokens`` belong
    together: none may be left out at the beginning."""
    ignored: tuple[str, ...] = ()
    """The fields of the request that change nothing, because this model can't do what they ask."""
    end_ids: frozenset[int] = frozenset()
    """The tokens that end the answer to this prompt besides the model's own."""


# --- Constraints ----------------------------------------------------------------------------------


class Constraint(Protocol):
    """Decides which tokens a row may take next. There is one for each row. Engine thread.

    An exception from any method fails only its row.
    """

    def mask(self) -> npt.NDArray[np.uint32] | None:
        """Return the allowed tokens as packed bits; None if all are allowed.

        The array is [ceil(vocabulary / 32)]; token i is bit i % 32 of word i // 32. It is valid
        until the next call of any method. If the answer is complete, only EOS is allowed.
        """

    def accept(self, token: int) -> None:
        """Note the token that the row got."""

    def fork(self) -> Constraint:
        """Return a copy in the same state that develops on its own: for the beams of a search."""


@dataclass(frozen=True, slots=True)
class ConstraintSource:
    """The source of the constraint for a request's rows."""

    structure: Structure | None
    """The form of the answer; None: any."""
    tool_use: ToolUse | None
    """The functions that may be called, or must be; None: none."""
    thinking: Thinking
    """How much the model may think before its answer."""
    thinking_open: bool
    """As in :class:`EncodedPrompt`."""
    only_form: bool = False
    """Whether the form of the answer is that of the whole text, without a thought or a header
    before it: nothing separates them from it, or the prompt ends behind them."""
    allowed_token_ids: tuple[int, ...] = ()
    """The only tokens that may come; none given: all of them."""
    bad_words: tuple[str, ...] = ()
    """Texts that may not come."""


class Unchecked(Exception):
    """An answer can't be checked in the time there is for it. The text names the parts of the form
    that are checked."""


class AnswerCheck(Protocol):
    """Checks complete answers. Any thread, and one at a time."""

    def __call__(self, text: str, left_s: Callable[[], float] | None = ..., /) -> str | None:
        """Return what is wrong with an answer; None if nothing is. Raises :class:`Unchecked` when
        ``left_s`` returns that no seconds are left for it."""


@dataclass(frozen=True, slots=True)
class ConstraintMaker:
    """Makes one row's constraint from a form that was compiled once for all rows of a request."""

    make: Callable[[], Constraint] | None
    """Makes a constraint at its beginning. None: nothing is enforced; there are remarks."""
    check: AnswerCheck | None = None
    """Checks the part of a text's form that the constraint does not enforce."""
    remarks: tuple[str, ...] = ()
    """What is enforced differently than the request asked for, in sentences for people."""
    call_checks: Mapping[str, AnswerCheck] = field(default_factory=dict)
    """Check the part of functions' arguments that is not enforced, by function name."""
    marked_calls: bool = False
    """Whether text is a call only after the marker with which the family's calls begin."""

    def __call__(self) -> Constraint:
        """Return a row's constraint, at its beginning; ``make`` is not None. Prompt thread."""
        assert self.make is not None
        return self.make()


# --- Rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SequenceSampling:
    """How one row draws its tokens.

    :mod:`lmx.protocol.models.sampling` describes the parameters; the defaults here are the values
    that change nothing.
    """

    temperature: float
    """0 is greedy."""
    top_p: float = 1.0
    seed: int = 0
    """With the same seed, and everything else being equal, the same tokens are drawn."""
    top_k: int = 0
    """0: all tokens."""
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs of a token and the number that is added to its logit."""
    min_tokens: int = 0
    """``end_ids`` can't be drawn before the row has this many tokens."""
    end_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """A search for the likeliest answers."""

    width: int
    """How many beams it has; it takes as many places in the batch."""
    length_penalty: float
    """A beam's score is the sum of its logprobs, divided by its length to this power."""
    end_ids: frozenset[int]
    """The tokens that end a beam."""


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence to generate, which takes a row of the batch."""

    sequence_id: int
    """Unique for the life of the engine; a row that was preempted comes back under its own."""
    prompt: Sequence[int]
    """At least one token."""
    max_tokens: int
    """The row ends after this many tokens; with 0, which no search has, when its prompt is read."""
    sampling: SequenceSampling
    constraint: Constraint | None = None
    """None: every token is allowed."""
    top_logprobs: int | None = None
    """How many alternatives come with each token's own logprob; None: no logprobs at all."""
    prompt_logprobs: int | None = None
    """How many alternatives come with the logprob of each token of the prompt; None: the prompt's
    tokens have no logprobs. With logprobs the prefill begins at the start, even if a part of the
    prompt is cached."""
    beam: BeamSearch | None = None
    """A row with a search returns no tokens until it ends, and then all its hypotheses at once."""
    assist: Assist = field(default_factory=Assist)
    """How tokens may be drafted ahead."""
    cache_salt: str = ""
    """Rows share cached prefixes only with rows of the same salt and the same adapter."""
    generated_tokens: int = 0
    """How many of the last tokens of ``prompt`` belong to the row's own answer, which it continues
    after it was preempted: draws, penalties and ``min_tokens`` take them for that, ``max_tokens``
    does not count them, and ``constraint`` has accepted them already."""
    adapter: str = ""
    """The adapter that is applied to the model for this row: one of those in
    :attr:`ModelFacts.adapters` that can be used. Empty: none."""
    media: PromptMedia | None = None
    """The media of the prompt, as :attr:`EncodedPrompt.media` has them."""
    priority: int = 0
    """Prompts of rows of a lower value are read first."""

    @property
    def background(self) -> bool:
        """Whether it stands still while a row is there that is none of the background."""
        return self.priority >= BACKGROUND_PRIORITY

    @property
    def generated(self) -> Sequence[int]:
        """The tokens of its answer that it had generated when it was preempted."""
        return self.prompt[len(self.prompt) - self.generated_tokens :]

    @property
    def places(self) -> int:
        """How many places of the batch it takes."""
        return self.beam.width if self.beam else 1


class TokenScores(NamedTuple):
    """How likely a token was, by the model's own logits, before any parameter of a request."""

    logprob: float
    """The natural logarithm of its probability."""
    top: Sequence[tuple[int, float]]
    """The likeliest tokens in its place and their logprobs, the likeliest first."""
    rank: int | None = None
    """How many tokens were at least as likely, with this one. Only of a prompt's tokens."""


class GeneratedToken(NamedTuple):
    """A token that a row generated."""

    sequence_id: int
    token: int
    scores: TokenScores | None = None
    """None where the row asked for no logprobs."""


class Hypothesis(NamedTuple):
    """One outcome of a beam search."""

    tokens: Sequence[int]
    """The tokens, with the end token last, if there is one."""
    score: float
    """See :attr:`BeamSearch.length_penalty`."""
    scores: Sequence[TokenScores] = ()
    """One for each token; empty where the row asked for no logprobs."""


class RereadPrompt(NamedTuple):
    """Why tokens of a prompt were computed that had been computed for an earlier one."""

    reason: RereadReason
    position: int
    """The first token that differs; where none does, the first that was computed again."""
    expected_tokens: int
    """How many tokens of the prompt had been computed before."""
    before: Sequence[int] = ()
    """The tokens before ``position``, if some differ there. Those of media are negative."""
    was: Sequence[int] = ()
    """What came then in the earlier prompt."""
    now: Sequence[int] = ()
    """What comes then in this one."""


class PrefillFinished(NamedTuple):
    """A row's prefill is done."""

    sequence_id: int
    cached_tokens: int
    """How many tokens of its prompt needed no computing."""
    prompt_scores: Sequence[TokenScores] = ()
    """Where asked for, one for each prompt token but the first."""
    reread: RereadPrompt | None = None
    """Why much of it was computed although it had been before; None: it was not."""


class DraftCounts(NamedTuple):
    """What became of the tokens that were drafted for a row in one step."""

    sequence_id: int
    drafted_tokens: int
    """How many tokens were drafted."""
    accepted_tokens: int
    """How many of them were right."""


@dataclass(slots=True)
class StepOutput:
    """The output of one step, filled on the way. If all is empty, it made no progress."""

    tokens: list[GeneratedToken] = field(default_factory=list)
    """A row has no token in a step, or one, or with speculation several, in order."""
    prefill_tokens: int = 0
    """How many prompt tokens were processed."""
    started: list[PrefillFinished] = field(default_factory=list)
    """A row is listed here before or with its first token."""
    failed: list[tuple[int, Exception]] = field(default_factory=list)
    """Rows that ended with an error; they have been removed."""
    found: list[tuple[int, Sequence[Hypothesis]]] = field(default_factory=list)
    """Rows whose beam search has ended; they have been removed."""
    drafts: list[DraftCounts] = field(default_factory=list)
    search_tokens: int = 0
    """By how many tokens beam searches became longer; they show no tokens before they end."""
    media_tokens: int = 0
    """How many tokens of prompts stand for the pictures, sounds and videos that were encoded."""
    read: int | None = None
    """The row whose prompt was read in this step; None: the step was for all rows that decode."""
    cached_tokens: int | None = None
    """How much of that prompt was stored when the row began to read it."""


# --- Tasks ----------------------------------------------------------------------------------------


_Part = TypeVar("_Part", bound=TaskPart)

TaskPiece = Callable[[], TaskPart | None]
"""A part of a task: returns the message that it makes; None if it is not done and is to be called
again, before any other piece. Engine thread, between two steps.

It blocks for as long as some thousand tokens take. An exception concerns only its task.
"""


def advance(work: Generator[None, None, _Part]) -> _Part | None:
    """Do one part of some work, up to its next yield: the function of a :data:`TaskPiece`."""
    try:
        next(work)
    except StopIteration as end:
        part: _Part = end.value
        return part
    return None


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """How a task that needs computing is done."""

    prompt_tokens: int
    """How many tokens the task's inputs have in all."""
    pieces: Iterable[TaskPiece]
    """They are called one after the other, and the result of each is sent. The next one is asked
    for when the one before is done, on the event loop: so it may follow from that one."""
    held_bytes: int = 0
    """What the decoded media take that it keeps until its end."""
