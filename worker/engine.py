"""What a worker asks of an engine: the interfaces, and the values that cross them.

An engine comes into being loaded: a *factory*, named by a worker's spec, loads a model and returns
an :class:`Engine`, which says what can be asked of it. There are three things to ask for:

- :class:`Resident`: every engine. It is in memory, and gives some of that back.
- :class:`TaskEngine`: every engine. It answers requests that are no generation.
- :class:`Generator`: an engine of a model that writes. It decodes a batch of rows.

Two threads call an engine, and an engine needs no lock as long as those two touch nothing that the
other calls write:

- The *prompt thread* calls ``Generator.encode``, ``Generator.constrain`` and ``TaskEngine.plan``,
  also while a step runs.
- The *engine thread* calls the factory and everything else, one call after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Assist, Structure, Thinking, ToolUse
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.messages.tasks import Task, TaskPart, TaskReply
from lmx.protocol.models.sampling import SamplingParameters
from lmx.protocol.states import LoadPhase, ModelKind

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# --- What is known of a model ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """What a model writes before and after its thinking."""

    start: str
    """The text that begins it."""
    end: str
    """The text that ends it."""
    start_id: int
    """The token of ``start``."""
    end_id: int
    """The token of ``end``."""


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
    """What its generation_config.json says."""
    reasoning: ReasoningMarkers | None = None
    """None for a model that does not think."""
    tool_parser: str | None = None
    """The family whose form its calls of tools have (:mod:`lmx.worker.formats.families`). None when
    its template knows no tools."""
    converses: bool = False
    """Whether it has a template for messages."""
    grammars: bool = False
    """Whether its answers can be held to a form."""


def capabilities(facts: ModelFacts) -> tuple[str, ...]:
    """Return what requests may ask of a model, in words for clients.

    ``tools``: it can be given functions; those that must be called are enforced where there is
    ``structured_outputs`` too, which is a form of the answer. ``native_tools``: its template
    knows functions; to others they are described in words.
    """
    has = {
        "tools": facts.converses,
        "native_tools": facts.converses and facts.tool_parser is not None,
        "structured_outputs": facts.grammars,
        "reasoning": facts.reasoning is not None,
    }
    return tuple(name for name, is_there in has.items() if is_there)


_WRONG_KIND: Final[Mapping[ModelKind, str]] = {
    ModelKind.CHAT: "This model writes answers; it makes no embeddings and ranks no documents: "
    "name an embedding or a rerank model.",
    ModelKind.EMBEDDING: "This model only makes vectors: use /v1/embeddings, or name another model "
    "here.",
    ModelKind.RERANK: "This model only ranks documents: use /v1/rerank, or name another model "
    "here.",
}


def wrong_kind(kind: ModelKind) -> RequestError:
    """Return the error for a request that no model of this kind can meet."""
    return RequestError(ErrorCode.UNSUPPORTED_VALUE, _WRONG_KIND[kind], param="model")


# --- Prompts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PromptSource:
    """What a prompt is made of: exactly one of ``messages``, ``text`` and ``tokens``."""

    messages: Sequence[Mapping[str, object]] | None = None
    """A conversation in OpenAI's form."""
    text: str | None = None
    """A text that the answer continues."""
    tokens: Sequence[int] | None = None
    """The prompt itself, as the model's own tokens."""
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    """What the chat template is called with besides."""
    tool_use: ToolUse | None = None
    """The functions that the template shows to the model."""
    thinking: Thinking = field(default_factory=Thinking)
    """Whether and how much the model is to think."""
    add_generation_prompt: bool = True
    """Whether the prompt ends where an answer begins; else it ends with the last message, as it is
    wanted for counting."""
    continue_final_message: bool = False
    """Whether the prompt ends with the text of the last message, which the answer goes on with."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as the model takes it."""

    tokens: Sequence[int]
    """At least one."""
    thinking_open: bool = False
    """The prompt ends inside the model's thinking, so that the answer begins there."""


# --- What an answer must keep to ------------------------------------------------------------------


class Constraint(Protocol):
    """Which tokens a row may take next. There is one for each row. Engine thread.

    An exception out of any method fails its row, and no other.
    """

    def mask(self) -> npt.NDArray[np.uint32] | None:
        """Return the allowed tokens as packed bits, None when all are allowed.

        The array is [ceil(vocabulary / 32)]; token i is bit i % 32 of word i // 32. It is valid
        until the next call of any method. Where the answer is complete, EOS alone is allowed.
        """

    def accept(self, token: int) -> None:
        """Take the token that the row took."""

    def fork(self) -> Constraint:
        """Return one in the same state that goes its own way: for the beams of a search."""


@dataclass(frozen=True, slots=True)
class ConstraintSource:
    """What the constraint of a request's rows is made of."""

    structure: Structure | None
    """The form of the answer; None: any."""
    tool_use: ToolUse | None
    """The functions that may be called, or must be; None: none."""
    thinking: Thinking
    """How much the model may think before its answer."""
    thinking_open: bool
    """As in :class:`EncodedPrompt`."""
    allowed_token_ids: tuple[int, ...] = ()
    """The only tokens that may come; none given: all of them."""
    bad_words: tuple[str, ...] = ()
    """Texts that may not come."""


AnswerCheck = Callable[[str], str | None]
"""Returns what is wrong with an answer that is whole, None when nothing is. Any thread."""


@dataclass(frozen=True, slots=True)
class ConstraintMaker:
    """Makes one row's constraint of what was compiled once for all rows of a request."""

    make: Callable[[], Constraint]
    check: AnswerCheck | None = None
    """For what the constraint does not enforce of a text."""
    remarks: tuple[str, ...] = ()
    """What is enforced otherwise than it was asked for, in words for people."""
    call_checks: Mapping[str, AnswerCheck] = field(default_factory=dict)
    """For what the constraint does not enforce of the arguments of functions, by their names."""

    def __call__(self) -> Constraint:
        """Return a row's constraint, at its beginning. Prompt thread."""
        return self.make()


# --- Rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How one row draws its tokens.

    What each parameter means is in :mod:`lmx.protocol.models.sampling`; the defaults here are the
    values that change nothing.
    """

    temperature: float
    """0 is greedy."""
    top_p: float = 1.0
    seed: int = 0
    """With the same seed, all else being equal, the same tokens are drawn."""
    top_k: int = 0
    """0: all tokens."""
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs of a token and what is added to its logit."""
    min_tokens: int = 0
    """``end_ids`` can't be drawn before the row has so many tokens."""
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
class RowRequest:
    """One sequence to generate."""

    row_id: int
    """Unique for the life of the engine; a row that was preempted comes back under its own."""
    prompt: Sequence[int]
    """At least one token."""
    max_tokens: int
    """The row ends after so many tokens; with 0, which no search has, when its prompt is read."""
    sampling: RowSampling
    constraint: Constraint | None = None
    """None: every token is allowed."""
    top_logprobs: int | None = None
    """How many alternatives come with each token's own logprob; None: no logprobs at all."""
    prompt_logprobs: bool = False
    """Whether those of the prompt's tokens are wanted too: then its prefill begins at the start,
    whatever is cached of it."""
    beam: BeamSearch | None = None
    """A row with a search gives no tokens until it ends, with all its hypotheses at once."""
    assist: Assist = field(default_factory=Assist)
    """How tokens may be guessed ahead."""
    cache_salt: str = ""
    """Rows share cached prefixes only with rows of the same salt."""
    made_tokens: int = 0
    """So many of the last tokens of ``prompt`` are of the row's own answer, which it goes on with
    after it was preempted: draws, penalties and ``min_tokens`` take them for that, ``max_tokens``
    does not count them, and ``constraint`` has accepted them already."""

    @property
    def made(self) -> Sequence[int]:
        """The tokens of its answer that it had made when it was preempted."""
        return self.prompt[len(self.prompt) - self.made_tokens :]

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


class RowToken(NamedTuple):
    """A token that a row made."""

    row_id: int
    token: int
    scores: TokenScores | None = None
    """None where the row asked for no logprobs."""


class Hypothesis(NamedTuple):
    """One outcome of a beam search."""

    tokens: Sequence[int]
    """With its end token, if it has one, as the last."""
    score: float
    """See :attr:`BeamSearch.length_penalty`."""
    scores: Sequence[TokenScores] = ()
    """One for each token; empty where the row asked for no logprobs."""


class RowStarted(NamedTuple):
    """A row's prefill is done."""

    row_id: int
    cached_tokens: int
    """How many tokens of its prompt needed no computing."""
    prompt_scores: Sequence[TokenScores] = ()
    """Where asked for, one for each prompt token but the first."""


class RowDrafts(NamedTuple):
    """What became of the tokens that were guessed ahead for a row in one step."""

    row_id: int
    drafted_tokens: int
    """How many were guessed."""
    accepted_tokens: int
    """How many of them were right."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step made. All empty means that the step made no progress."""

    tokens: Sequence[RowToken] = ()
    """A row has no token in a step, or one, or with speculation several, in order."""
    prefill_tokens: int = 0
    """How many prompt tokens were processed."""
    started: Sequence[RowStarted] = ()
    """A row is in it before or with its first token."""
    failed: Sequence[tuple[int, Exception]] = ()
    """Rows that have ended by an error, and are removed already."""
    found: Sequence[tuple[int, Sequence[Hypothesis]]] = ()
    """Rows whose beam search has ended, and that are removed already."""
    drafts: Sequence[RowDrafts] = ()
    search_tokens: int = 0
    """By how many tokens beam searches became longer, which show no tokens before they end."""


# --- Tasks ----------------------------------------------------------------------------------------


TaskPiece = Callable[[], TaskPart]
"""A part of a task: returns the message that it makes. Engine thread, between two steps.

It blocks, for as long as some thousand tokens take. An exception concerns its task alone.
"""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """How a task is done for which the model must compute."""

    prompt_tokens: int
    """How many tokens the task's inputs have in all."""
    pieces: Sequence[TaskPiece]
    """They are called one after the other, and what each returns is sent."""


# --- Engines --------------------------------------------------------------------------------------


class Detokenizer(Protocol):
    """Turns one row's tokens into text. The pieces, joined, are the text of all the tokens.
    Engine thread. An exception concerns its request alone."""

    def add(self, token: int) -> str:
        """Return the text that became final: whole characters, often none."""

    def flush(self) -> str:
        """Return what was held back; called once, after the last token."""


class Generator(Protocol):
    """A model that decodes a batch of rows, at least one token a row and step.

    It is not concerned with streams, stop strings, EOS, credit or queues: rows are removed by the
    caller. An exception out of ``encode``, ``constrain``, ``detokenizer``, ``token_bytes`` or
    ``admit`` concerns its request alone; one out of ``step`` or ``remove`` means that the engine is
    broken, or that memory ran out (:func:`lmx.worker.scheduling.out_of_memory.is_out_of_memory`).
    """

    def encode(self, source: PromptSource) -> EncodedPrompt:
        """Return the prompt's tokens. Prompt thread.

        Raises ``RequestError`` for a prompt that the model can't take; that it is too long by a
        little is the caller's to find.
        """

    def constrain(self, source: ConstraintSource) -> ConstraintMaker | None:
        """Compile what a request's rows must keep to; None: nothing. Prompt thread.

        Raises ``RequestError`` for a structure that is invalid or can't be enforced.
        """

    def detokenizer(
        self, markers: bool, after: Sequence[int] = (), *, special: bool = False
    ) -> Detokenizer:
        """Return a fresh one for a new row, whose text goes on after the tokens ``after``.
        Engine thread.

        Special tokens are no text; with ``markers`` those are that tell tool calls and
        reasoning from content, with ``special`` all.
        """

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for; a special token's name. Engine thread."""

    def can_admit(self) -> bool:
        """Return whether ``admit`` may be called now; the caller keeps the number of rows.
        Engine thread."""

    def admit(self, row: RowRequest) -> None:
        """Begin a row. It may end by itself after ``max_tokens`` tokens, for no other reason.
        Engine thread."""

    def step(self) -> StepOutput:
        """Advance every decoding row by one token or more, and prefill by at most one chunk.
        Engine thread.

        Blocks until the work is done, so that its progress is real. Called while a row lives.
        """

    def remove(self, row_id: int) -> None:
        """Forget a row wherever it is, and free its KV cache; ignores a row that has ended.
        Engine thread."""

    def preempt(self, row_id: int) -> Sequence[int] | None:
        """Remove a row that is to be admitted again later (:attr:`RowRequest.made_tokens`), and
        return the tokens of its answer that ``step`` has returned, of its whole life. What it has
        computed is kept where there is room. None: such a row can't come back, and it is left as
        it is. Engine thread."""


class TaskEngine(Protocol):
    """A model that answers tasks: requests that are no generation
    (:mod:`lmx.protocol.messages.tasks`)."""

    def plan(self, task: Task) -> TaskPlan | TaskReply:
        """Tokenize and check a task, and cut it into pieces; or return the reply to it, where
        nothing need be computed. Prompt thread.

        Raises ``RequestError`` for what this model can't do. Another exception concerns the task
        alone.
        """


class Resident(Protocol):
    """A model in memory. Engine thread.

    An exception out of any method means that the engine is broken, or that memory ran out.
    """

    def rest(self) -> None:
        """Use a pause: no row lives. Give caches back; called once a pause."""

    def shrink(self) -> None:
        """The machine's memory runs out: give caches back between two steps, about half of
        them, and take no more than what is left; called again, half of that."""

    def regrow(self) -> None:
        """There is memory again: caches may grow to their size."""

    def close(self) -> None:
        """The worker ends in good order: keep on disk what is to survive it. The last call."""

    def memory_bytes(self) -> int:
        """Return the bytes that the engine holds, caches included; 0 when it can't tell."""

    def peak_memory_bytes(self) -> int:
        """Return the most that it has held, between two calls too; 0 when it can't tell."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A model that is loaded and warm, by what can be asked of it. One object may be all three."""

    facts: ModelFacts
    resident: Resident
    tasks: TaskEngine
    generator: Generator | None = None
    """None for a model that doesn't write: it never has a row."""


LoadReporter = Callable[[LoadPhase, float | None, str], None]
"""Takes the phase, the fraction done (None: unknown) and a word for people. Engine thread."""


class EngineFactory(Protocol):
    """What a spec's ``engine`` names, as ``module:function``."""

    def __call__(self, spec: WorkerSpec, advanced: LoadReporter) -> Engine:
        """Load a model and warm it up. Called once, on the engine thread; takes as long as the
        disk needs, and tells ``advanced`` how far it is.

        Raises ``LmxError`` with a code where the reason is known; else whatever the engine's
        library raises (:func:`lmx.worker.service.failures.load_failure` judges that).
        """
