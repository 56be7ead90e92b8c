"""What a worker asks of an engine: the interface, and the values that cross it.

Two threads call an engine. The *prompt thread* calls ``encode``, ``constrain`` and ``plan``, also
while a step runs; the *engine thread* calls everything else. So an engine needs no lock as long as
those two touch nothing that the other calls write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from lmx.protocol.messages.data import Assist, Structure, Thinking, ToolUse
from lmx.protocol.models.sampling import SamplingParameters
from lmx.protocol.states import LoadPhase

LoadReporter = Callable[[LoadPhase, float | None, str], None]
"""Takes the phase, the fraction done (None: unknown) and a word for people."""


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """What a model writes before and after its thinking, as text and as single tokens."""

    start: str
    end: str
    start_id: int
    end_id: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model once it is loaded."""

    context_tokens: int
    eos_token_ids: frozenset[int]
    """Tokens that end an answer, and are no part of it."""
    vocabulary_size: int
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


@dataclass(frozen=True, slots=True)
class PromptSource:
    """What a prompt is made of: exactly one of ``messages``, ``text`` and ``tokens``.

    Without ``add_generation_prompt`` messages end where the last one does, for counting.
    """

    messages: Sequence[Mapping[str, Any]] | None = None
    text: str | None = None
    tokens: Sequence[int] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tool_use: ToolUse | None = None
    thinking: Thinking = field(default_factory=Thinking)
    add_generation_prompt: bool = True


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt's tokens. ``thinking_open``: it ends inside the model's thinking, so that the
    answer begins there."""

    tokens: Sequence[int]
    thinking_open: bool = False


class Constraint(Protocol):
    """Which tokens a row may take next. One for each row; engine thread.

    An exception out of any method concerns its row alone.
    """

    def mask(self) -> Any:
        """Return the allowed tokens as packed bits, None when all are.

        A numpy array of uint32 [ceil(vocabulary / 32)]; token i is bit i % 32 of word i // 32.
        Valid until the next call of any method. Where the answer is complete, EOS alone is
        allowed.
        """

    def accept(self, token: int) -> None:
        """Take the token that came of it."""

    def fork(self) -> Constraint:
        """Return one in the same state that goes its own way: for the beams of a search."""


@dataclass(frozen=True, slots=True)
class ConstraintSource:
    """What a row's constraint is made of."""

    structure: Structure | None
    tool_use: ToolUse | None
    thinking: Thinking
    thinking_open: bool


AnswerCheck = Callable[[str], str | None]
"""Returns what is wrong with an answer that is whole, None when nothing is. Any thread."""


@dataclass(frozen=True, slots=True)
class ConstraintMaker:
    """Makes one row's constraint of what was compiled once for all rows of a request.

    ``check`` is for what the constraint does not enforce of a text, ``call_checks`` of the
    arguments of functions, by their names; ``remarks``, for people, say what is enforced otherwise
    than it was asked for.
    """

    make: Callable[[], Constraint]
    check: AnswerCheck | None = None
    remarks: tuple[str, ...] = ()
    call_checks: Mapping[str, AnswerCheck] = field(default_factory=dict)

    def __call__(self) -> Constraint:
        """Return a row's constraint, at its beginning."""
        return self.make()


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How one row draws its tokens. Temperature 0 is greedy; ``seed`` decides the rest.

    What each parameter means is in :mod:`lmx.protocol.models.sampling`; the defaults here are the
    values that change nothing. ``top_k`` 0: all tokens. ``min_tokens``: ``end_ids`` can't be drawn
    before."""

    temperature: float
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    end_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """A search by ``width`` beams. Scores are the sums of logprobs, divided by the length to
    the power of ``length_penalty``. ``end_ids`` end a beam."""

    width: int
    length_penalty: float
    end_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class RowRequest:
    """One sequence to generate: at least one prompt token, at least one token to make.

    ``top_logprobs``: None for none, else so many alternatives with each token.
    ``prompt_logprobs``: those of the prompt's tokens too, which takes its prefill from the
    start. Rows share cached prefixes only within one ``cache_salt``. A row with ``beam`` gives
    no tokens until it ends, with all its hypotheses at once, and takes the places of
    ``beam.width`` rows.
    """

    row_id: int
    prompt: Sequence[int]
    max_tokens: int
    sampling: RowSampling
    constraint: Constraint | None = None
    top_logprobs: int | None = None
    prompt_logprobs: bool = False
    beam: BeamSearch | None = None
    assist: Assist = field(default_factory=Assist)
    cache_salt: str = ""

    @property
    def places(self) -> int:
        """How many rows of the batch it takes."""
        return self.beam.width if self.beam else 1


class TokenScores(NamedTuple):
    """How likely a token was, by the model's own logits, before any parameter of a request;
    ``top``: the likeliest tokens in its place, the likeliest first, as (token, logprob)."""

    logprob: float
    top: Sequence[tuple[int, float]]


class RowToken(NamedTuple):
    """A token that a row made. ``scores`` where the row asked for logprobs."""

    row_id: int
    token: int
    scores: TokenScores | None = None


class Hypothesis(NamedTuple):
    """One outcome of a beam search. Its end token, if it has one, is the last of ``tokens``."""

    tokens: Sequence[int]
    score: float
    scores: Sequence[TokenScores] = ()


class RowStarted(NamedTuple):
    """A row's prefill is done. ``prompt_scores`` where asked for: one for each prompt token but
    the first."""

    row_id: int
    cached_tokens: int
    prompt_scores: Sequence[TokenScores] = ()


class RowDrafts(NamedTuple):
    """So many tokens were guessed ahead for a row, and so many of them were right."""

    row_id: int
    drafted_tokens: int
    accepted_tokens: int


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One step: what it made, and how many prompt tokens were processed.

    A row has no token in a step, or one, or with speculation several, in order. ``started``
    comes before or with a row's first token. A row in ``failed`` or ``found`` has ended and is
    removed already. ``search_tokens``: by how many tokens beam searches became longer, which
    show no tokens before they end. All empty means that the step made no progress.
    """

    tokens: Sequence[RowToken] = ()
    prefill_tokens: int = 0
    started: Sequence[RowStarted] = ()
    failed: Sequence[tuple[int, Exception]] = ()
    found: Sequence[tuple[int, Sequence[Hypothesis]]] = ()
    drafts: Sequence[RowDrafts] = ()
    search_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """How a task (:mod:`lmx.protocol.messages.tasks`) is done: ``pieces`` are given to ``compute``
    one after the other, and what each returns is sent. ``reply``: sent when there is nothing to
    compute."""

    prompt_tokens: int
    pieces: Sequence[Any] = ()
    reply: Any = None


class Detokenizer(Protocol):
    """Turns one row's tokens into text. The pieces, joined, are the text of all the tokens."""

    def add(self, token: int) -> str:
        """Return the text that became final: whole characters, often none."""

    def flush(self) -> str:
        """Return what was held back; called once, after the last token."""


class Engine(Protocol):
    """A model that decodes a batch of rows, at least one token a row and step.

    Not concerned with streams, stop strings, EOS, credit or queues: rows are removed by the
    caller. An exception out of ``encode``, ``constrain``, ``detokenizer``, ``admit`` or
    ``compute`` concerns its request alone; one out of ``step``, ``remove`` or ``rest`` means
    that the engine is broken, or that memory ran out
    (:func:`lmx.worker.scheduling.out_of_memory.is_out_of_memory`).
    """

    def load(self, advanced: LoadReporter) -> ModelFacts:
        """Load and warm up; called once, first. Raises ``LmxError`` with a code, or anything."""

    def encode(self, source: PromptSource) -> EncodedPrompt:
        """Return the prompt's tokens. Prompt thread. Raises ``RequestError``."""

    def constrain(self, source: ConstraintSource) -> ConstraintMaker | None:
        """Compile what rows must keep to; None: nothing. Prompt thread. Raises
        ``RequestError`` for a structure that is invalid or can't be enforced."""

    def detokenizer(
        self, markers: bool, after: Sequence[int] = (), *, special: bool = False
    ) -> Detokenizer:
        """Return a fresh one for a new row, whose text goes on after the tokens ``after``.
        Special tokens are no text; with ``markers`` those are that tell tool calls and
        reasoning from content, with ``special`` all."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for; a special token's name."""

    def can_admit(self) -> bool:
        """Return whether ``admit`` may be called now; the caller keeps the number of rows."""

    def admit(self, row: RowRequest) -> None:
        """Begin a row. It may end by itself after ``max_tokens`` tokens, for no other reason."""

    def step(self) -> StepOutput:
        """Advance every decoding row by one token or more, and prefill by at most one chunk.

        Blocks until the work is done, so that its progress is real. Called while a row lives.
        """

    def remove(self, row_id: int) -> None:
        """Forget a row wherever it is, and free its KV cache; ignores a row that has ended."""

    def plan(self, task: Any) -> TaskPlan:
        """Tokenize and check a task, and cut it into pieces. Prompt thread. Raises
        ``RequestError`` for what this model can't do."""

    def compute(self, piece: Any) -> Any:
        """Do one piece of a task, between two steps; return the message that it makes.

        Blocks, for as long as some thousand tokens take. An exception concerns its task alone.
        """

    def rest(self) -> None:
        """Use a pause: no row lives. Gives caches back; called once a pause."""

    def shrink(self) -> None:
        """The machine's memory runs out: give caches back between two steps, about half of
        them, and take no more than what is left; called again, half of that."""

    def regrow(self) -> None:
        """There is memory again: caches may grow to their size."""

    def close(self) -> None:
        """The worker ends in good order: keep on disk what is to survive it."""

    def memory_bytes(self) -> int:
        """Return the bytes that the engine holds, caches included; 0 when it can't tell."""

    def peak_memory_bytes(self) -> int:
        """Return the most that it has held, between two calls too; 0 when it can't tell."""
