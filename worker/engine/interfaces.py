"""What a worker needs of an engine: its interfaces.

An engine is always loaded: a *factory*, named by a worker's spec, loads a model and returns an
:class:`Engine`, which has what can be asked of it. There are four interfaces:

- :class:`Resident`: every engine. It is in memory, and can give some of that back.
- :class:`TaskEngine`: every engine. It answers requests that are no generation.
- :class:`Generator`: an engine of a model that writes. It decodes a batch of rows.
- :class:`Transcriber`: an engine of a model that transcribes speech.

Two threads call an engine. An engine needs no lock as long as the calls of one thread touch nothing
that the calls of the other write:

- The *prompt thread* calls ``Generator.encode``, ``Generator.constrain``, ``TaskEngine.plan``
  and ``Transcriber.transcribe``, even while a step runs.
- The *engine thread* calls the factory and everything else, one call after the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lmx.protocol.messages.specs import RanksSpec, WorkerSpec
from lmx.protocol.messages.speech import Transcribe
from lmx.protocol.messages.tasks import Task, TaskReply
from lmx.protocol.states import LoadPhase, RankCall
from lmx.worker.engine.values import (
    ConstraintMaker,
    ConstraintSource,
    EncodedPrompt,
    ModelFacts,
    PromptSource,
    SequenceRequest,
    StepOutput,
    TaskPlan,
)
from lmx.worker.media.values import Media, Sound


class Detokenizer(Protocol):
    """Turns one row's tokens into text. The joined pieces are the text of all the tokens.

    Engine thread. An exception concerns only its request.
    """

    def add(self, token: int) -> str:
        """Return the text that became final: whole characters, often none."""

    def flush(self) -> str:
        """Return the text that was held back; called once, after the last token."""


class Generator(Protocol):
    """A model that decodes a batch of rows, at least one token a row and step.

    It is not concerned with streams, stop strings, EOS, credit or queues: rows are removed by the
    caller. An exception out of ``encode``, ``constrain``, ``detokenizer``, ``token_bytes`` or
    ``admit`` concerns its request alone; one out of ``step`` or ``remove`` means that the engine is
    broken, or that memory ran out (:func:`lmx.worker.scheduling.engine_errors.is_out_of_memory`).
    """

    def encode(self, source: PromptSource) -> EncodedPrompt:
        """Return the prompt's tokens. Prompt thread.

        Raises ``RequestError`` for a prompt that the model can't take; that it is too long by a
        little is the caller's to find.
        """

    def constrain(self, source: ConstraintSource) -> ConstraintMaker | None:
        """Compile the constraint of a request's rows; None: nothing. Prompt thread.

        Raises ``RequestError`` for a structure that is invalid or can't be enforced.
        """

    def detokenizer(
        self, markers: bool, after: Sequence[int] = (), *, special: bool = False
    ) -> Detokenizer:
        """Return a fresh one for a new row, whose text follows the tokens ``after``. Engine thread.

        Special tokens are no text; with ``markers`` those are that separate tool calls and
        reasoning from content, with ``special`` all.
        """

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; for a special token, those of its name. Engine thread."""

    def can_admit(self) -> bool:
        """Return whether ``admit`` may be called now; the caller keeps the number of rows.
        Engine thread."""

    def admit(self, row: SequenceRequest) -> None:
        """Begin a row. It may end by itself after ``max_tokens`` tokens, for no other reason.
        Engine thread."""

    def step(self, interrupted: Callable[[], bool] = lambda: False) -> StepOutput:
        """Advance every decoding row by one token or more, and prefill by at most one chunk. Engine
        thread.

        ``interrupted`` returns whether somebody waits for the end of the step. An engine that can
        pause in the middle of its work does so, and continues in a later step.

        Rows of the background (:attr:`SequenceRequest.background`) stand still while there is any
        other row, and keep what they have.

        Blocks until the work is done, so that its progress is real. Called while a row lives.
        """

    def remove(self, sequence_id: int) -> None:
        """Forget a row wherever it is, and free its KV cache; ignores a row that has ended.
        Engine thread."""

    def flush(self) -> StepOutput:
        """Return what is computed already and was not returned yet, and begin nothing. The caller
        handles it as the output of ``step``. Engine thread."""

    def preempt(self, sequence_id: int) -> Sequence[int] | None:
        """Remove a row that is to be admitted again later
        (:attr:`SequenceRequest.generated_tokens`), and return the tokens of its answer that
        ``step`` and ``flush`` have returned, of its whole life. What it has computed is kept where
        there is memory; after a ``flush``, all of it can be used again. None: such a row can't come
        back, and it is left as it is. Engine thread."""


class TaskEngine(Protocol):
    """A model that answers tasks: requests that are no generation
    (:mod:`lmx.protocol.messages.tasks`)."""

    def plan(self, task: Task, media: Sequence[Media] = ()) -> TaskPlan | TaskReply:
        """Tokenize and check a task, and cut it into pieces; or return the reply to it, if nothing
        must be computed. ``media`` are those of a ``Tokenize``; the model takes them. Prompt
        thread.

        Raises ``RequestError`` for a task that this model can't do. Any other exception concerns
        only the task.
        """


class Transcriber(Protocol):
    """A model that transcribes speech."""

    def transcribe(self, task: Transcribe, sound: Sound) -> TaskPlan:
        """Check a task, and cut it into pieces. ``sound`` has the rate that the model's facts ask
        for. Prompt thread.

        Raises ``RequestError`` for a task that this model can't do. Any other exception concerns
        only the task.
        """


class Resident(Protocol):
    """A model in memory. Engine thread.

    An exception from any method means that the engine is broken, or that memory ran out.
    """

    def rest(self) -> None:
        """Use a pause, in which there are no rows: give caches back. Called once a pause."""

    def shrink(self) -> None:
        """Give about half of the caches back between two steps, because the machine's memory runs
        short, and take no more than the rest from now on. Another call halves it again."""

    def regrow(self) -> None:
        """Let caches grow to their full size again: there is enough memory."""

    def close(self) -> None:
        """Write what is to survive the worker to disk. Only :meth:`release` follows. It is not
        called after another method has raised."""

    def release(self) -> None:
        """Give back the memory of a device that would not come back by itself when the process
        ends. This is the last call, also after another method has raised."""

    def memory_bytes(self) -> int:
        """Return the bytes that the engine holds, caches included; 0 if that is unknown."""

    def peak_memory_bytes(self) -> int:
        """Return the most that it has held, also between two calls; 0 if that is unknown."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A model that is loaded and warm, with its interfaces. One object may be several."""

    facts: ModelFacts
    resident: Resident
    tasks: TaskEngine
    generator: Generator | None = None
    """None for a model that doesn't write: it never has a row."""
    transcriber: Transcriber | None = None
    """None for a model that doesn't transcribe."""
    speculation: Callable[[], str] | None = None
    """Returns how tokens are guessed ahead now, for people; None: the engine does not say. Engine
    thread."""


LoadReporter = Callable[[LoadPhase, float | None, str], None]
"""Takes the phase, the fraction done (None: unknown) and a word for people. Engine thread."""


class Ranks(Protocol):
    """The ranks of a divided model, as the engine of each of them sees the others. All engines run
    the same code on the same rows, each with its part of the model. Rank 0's says what is called,
    and decides what depends on a clock, on chance or on a constraint. Engine thread.

    Each method raises if another rank is gone.
    """

    @property
    def spec(self) -> RanksSpec:
        """How many there are, and how the model is divided."""

    @property
    def rank(self) -> int:
        """This process's own number."""

    def meet(self) -> dict[str, str]:
        """Wait until all ranks have come this far; return the variables with which mlx makes their
        group."""

    def admit(self, row: SequenceRequest) -> None:
        """Have the followers admit a row. Nothing on a follower, as the next one."""

    def order(self, call: RankCall, sequence_id: int = 0) -> None:
        """Have the followers make a call that rank 0 makes too."""

    def settle(self, what: str, numbers: Sequence[int]) -> Sequence[int]:
        """Return rank 0's numbers. ``what`` says what they are, and must be the same on all."""

    def check(self, what: str, numbers: Sequence[int]) -> None:
        """Raise on a follower if its numbers are not rank 0's."""


class EngineFactory(Protocol):
    """The function that a spec's ``engine`` names, as ``module:function``."""

    def __call__(
        self, spec: WorkerSpec, advanced: LoadReporter, ranks: Ranks | None = None
    ) -> Engine:
        """Load a model and warm it up. Called once, on the engine thread. It takes as long as the
        disk needs, and reports its progress to ``advanced``. ``ranks``: those of a divided model,
        of which this process has one; only an engine that can do that gets them.

        Raises ``LmxError`` with a code if the reason is known; otherwise whatever the engine's
        library raises (:func:`lmx.worker.service.failures.load_failure` judges that).
        """
