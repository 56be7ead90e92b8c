"""What a worker asks of an engine: the interface, and the values that cross it.

Two threads call an engine. The *engine thread* calls everything but ``encode``; the *prompt
thread* calls ``encode`` alone, also while a step runs. So an engine needs no lock as long as
``encode`` touches nothing that the other calls write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lmx.protocol.states import LoadPhase

LoadReporter = Callable[[LoadPhase, float | None, str], None]
"""Takes the phase, the fraction done (None: unknown) and a word for people."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model once it is loaded.

    ``temperature`` and ``top_p`` are those of its generation_config.json, None where it has
    none. Tokens in ``eos_token_ids`` end an answer and are no part of it.
    """

    context_tokens: int
    eos_token_ids: frozenset[int]
    temperature: float | None = None
    top_p: float | None = None


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How one row draws its tokens. Temperature 0 is greedy; ``seed`` decides the rest."""

    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True, slots=True)
class RowRequest:
    """One sequence to generate: at least one prompt token, at least one token to make."""

    row_id: int
    prompt: Sequence[int]
    max_tokens: int
    sampling: RowSampling


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One step: at most one (row id, token) a row, and how many prompt tokens were processed.

    Both empty means that the step made no progress.
    """

    tokens: Sequence[tuple[int, int]]
    prefill_tokens: int


class Detokenizer(Protocol):
    """Turns one row's tokens into text. The pieces, joined, are the text of all the tokens."""

    def add(self, token: int) -> str:
        """Return the text that became final: whole characters, often none."""

    def flush(self) -> str:
        """Return what was held back; called once, after the last token."""


class Engine(Protocol):
    """A model that decodes a batch of rows, one token a row and step.

    Not concerned with streams, stop strings, EOS, credit or queues: rows are removed by the
    caller. An exception out of ``encode``, ``detokenizer`` or ``admit`` concerns its row alone;
    one out of ``step``, ``remove`` or ``rest`` means that the engine is broken.
    """

    def load(self, advanced: LoadReporter) -> ModelFacts:
        """Load and warm up; called once, first. Raises ``LmxError`` with a code, or anything."""

    def encode(
        self, messages: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, Any]
    ) -> Sequence[int]:
        """Return the prompt's tokens. Prompt thread. Raises ``RequestError``."""

    def detokenizer(self) -> Detokenizer:
        """Return a fresh one for a new row."""

    def can_admit(self) -> bool:
        """Return whether ``admit`` may be called now; the caller keeps the number of rows."""

    def admit(self, row: RowRequest) -> None:
        """Begin a row. It may end by itself after ``max_tokens`` tokens, for no other reason."""

    def step(self) -> StepOutput:
        """Advance every decoding row by one token, and prefill by at most one chunk.

        Blocks until the work is done, so that its progress is real. Called while a row lives.
        """

    def remove(self, row_id: int) -> None:
        """Forget a row wherever it is, and free its KV cache; ignores a row that has ended."""

    def rest(self) -> None:
        """Use a pause: no row lives. Gives caches back; called once a pause."""

    def memory_bytes(self) -> int:
        """Return the bytes that the engine holds, caches included; 0 when it can't tell."""
