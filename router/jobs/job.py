"""One generation from its request to its record: what it has made, where it is, and how it
ended."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

import orjson
import structlog

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.data import ChoiceEnded, Delta, Finished
from lmx.router.http.api_family import openai_error
from lmx.router.http.errors import http_status
from lmx.router.http.outcome import Outcome
from lmx.router.jobs.conversations import Piece
from lmx.router.jobs.live import ENDS, LiveRequest, LiveRequests, LiveState, reread_object
from lmx.router.jobs.records import JobRow, JobState, ResponseRow
from lmx.router.jobs.store import JobStore
from lmx.router.rendering.accumulator import AccumulatedChoice, Accumulator
from lmx.router.rendering.answer_format import AnswerFormat, Beginning, Ending, Generated
from lmx.router.rendering.envelope import (
    Identity,
    RouterTimings,
    timings_object,
    tokens_per_s,
    usage_object,
)
from lmx.router.workers.dispatch import Generation
from lmx.router.workers.prompt_group import PromptGroup
from lmx.router.workers.stream import Batch

Source = Generation | PromptGroup

_AT_ONCE: Final = frozenset({ErrorCode.MODEL_QUARANTINED, ErrorCode.INSUFFICIENT_MEMORY})
"""Errors that no request causes, and with which the next request is refused just as soon."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoredInput:
    """The input of a response that is kept."""

    items: bytes
    """Its items, as a JSON array."""
    previous: str | None
    """The id of the response that it continues."""
    output: Callable[[str, AccumulatedChoice, ChoiceEnded | None], bytes]
    """Returns the items of the response's output, as they are kept for the requests that continue
    it: of its id, what it has made, and how that ended."""
    conversation: str | None = None
    """The conversation that gets its items when it is completed."""
    added: tuple[Piece, ...] = ()
    """The items of the input, as the conversation gets them."""


class Job:
    """The record of a generation, as a context manager.

    Within the block it is listed among the live requests, and it is recorded from its beginning to
    its end, however it ends. A generation that is refused before its client knows its id leaves no
    record, nor does a line of a batch.

    It observes the generation and does nothing with it: the consumer of its output calls
    :meth:`began`, :meth:`collect` and :meth:`observe`. It keeps all output, so that the record has
    it too: of a stream, and of a generation that was cut. It is the only owner of the generation's
    figures: :meth:`outcome` gives them to the log, the metrics and the limits.
    """

    def __init__(
        self,
        listed: LiveRequests,
        store: JobStore,
        live: LiveRequest,
        identity: Identity,
        form: AnswerFormat,
        knows_id: Callable[[], bool],
        stored: StoredInput | None = None,
    ) -> None:
        """``knows_id`` returns whether the client has received the job's id; ``stored`` is the
        input that is kept with the record, of a response."""
        self.live = live
        self.beginning = Beginning()
        """What is known of the answer once it has begun."""
        self.ending: Ending | None = None
        """How the generation ended, if it has ended well."""
        self.answer = b""
        """The whole answer as JSON, from the same moment on."""
        self._listed = listed
        self._store = store
        self._identity = identity
        self._form = form
        self._knows_id = knows_id
        self._stored = stored
        self._response: ResponseRow | None = None
        self._made = live.made = Accumulator(form.choices, form.retained_logprobs)
        self._load_s: float | None = None
        """How long the generation waited for its model; None until it has begun."""
        self._ends: dict[int, ChoiceEnded] = {}
        self._started_s: float | None = None
        self._output_at_s: float | None = None
        self._ttft_s: float | None = None
        self._gaps_s: list[float] = []
        self._cut_tokens: int | None = None
        self._has_record = not live.context.background
        self._until_ended = ExitStack()

    def __enter__(self) -> Self:
        self._until_ended.enter_context(self._listed.under_way(self.live))
        self.live.outcome = self.outcome
        if self._stored is not None:
            head, stored = orjson.dumps(self.empty_answer()), self._stored
            self._response = ResponseRow(
                stored.items,
                head,
                stored.previous,
                conversation=stored.conversation,
                added=stored.added,
            )
        self._put(JobState.QUEUED)
        return self

    def __exit__(
        self, _: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self.ending is None:
                self._cut(self.live.failed_with(error))
        finally:
            self._until_ended.close()

    def outcome(self) -> Outcome:
        """Return what has become of the generation so far."""
        live, ending = self.live, self.ending
        known = Outcome(
            model=live.model_id,
            stream=live.stream,
            job_id=live.id if self._has_record else None,
            prompt_tokens=live.prompt_tokens,
            completion_tokens=self._cut_tokens,
            ttft_s=self._ttft_s,
            gaps_s=self._gaps_s,
            # The answers of one request may end for several reasons. Each reason is named once.
            finish_reason=",".join(dict.fromkeys(end.reason.value for end in self._ends.values()))
            or None,
        )
        if ending is None:
            return known
        usage, timings = ending.finished.usage, ending.finished.timings
        answers = ending.clocked.answers
        return replace(
            known,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            reread=None if live.reread is None else live.reread["reason"],
            completion_tokens=usage.completion_tokens,
            load_s=ending.clocked.load_s,
            queue_s=timings.queue_s,
            prefill_s=timings.prefill_s,
            decode_s=timings.decode_s,
            tokens_per_s=tokens_per_s(ending.finished, answers) / answers or None,
        )

    def empty_answer(self) -> Mapping[str, Any]:
        """Return the answer as it is at its beginning, also when it has gone further."""
        nothing = Accumulator(self._form.choices, self._form.retained_logprobs).choices
        return self._form.complete_answer(
            Generated(self._identity, self.beginning, nothing, {}, None)
        )

    def began(self, source: Source) -> None:
        """Note that the generation is accepted."""
        self._load_s = source.load_s
        self.live.prompt_tokens = source.prompt_tokens
        self.beginning = Beginning(
            source.prompt_tokens, source.remarks, source.prompt_ids, source.ignored
        )
        if source.queued:
            self.live.state, self.live.queue_position = LiveState.QUEUED, source.queued
            self.live.has_row = False
            self._put(JobState.QUEUED)
        else:
            self._run()

    def observe(self, batch: Batch) -> None:
        """Collect what was taken of the generation. With its end the whole answer is made."""
        if batch.deltas:
            self.collect(batch.deltas)
        if batch.ended:
            self._ends.update((fact.index, fact) for fact in batch.ended)
        if batch.finished is not None:
            self._finish(batch.finished)

    def collect(self, deltas: Sequence[Delta]) -> None:
        """Collect the next pieces."""
        now_s = time.monotonic()
        if self._output_at_s is None:
            self.live.first_output_s = now_s
            self._ttft_s = now_s - self.live.context.started_at_s
        else:
            self._gaps_s.append(now_s - self._output_at_s)
        self._output_at_s = now_s
        if self._started_s is None:
            self._run()
        self._made.add(deltas)

    def _run(self) -> None:
        self.live.state, self.live.queue_position = LiveState.RUNNING, None
        self._started_s = time.time()
        self._put(JobState.RUNNING)

    def _finish(self, finished: Finished) -> None:
        """The generation has ended well: make the answer and its record, before the client can know
        that it has ended and ask for it."""
        total_s = time.monotonic() - self.live.context.started_at_s
        first_token_s = total_s if self._ttft_s is None else self._ttft_s
        clocked = RouterTimings(total_s, first_token_s, self._load_s or 0.0, self._form.choices)
        ending = Ending(finished, clocked)
        self.answer = orjson.dumps(self._complete_answer(ending))
        self.ending = ending
        self.live.reread = reread_object(finished)
        self._store_output()
        self._put(
            JobState.COMPLETED,
            http_status=200,
            usage=orjson.dumps(usage_object(finished.usage)),
            timings=orjson.dumps(timings_object(finished, clocked)),
            result=self.answer,
        )

    def _cut(self, error: LmxError) -> None:
        """The generation ended before it was whole: record what it has made."""
        live = self.live
        if self._load_s is None and _is_refusal(error) and not self._knows_id():
            # Otherwise clients that try again and again would push out the records of generations.
            self._has_record = False
            self._store.forget(live.id)
            return
        self._cut_tokens = live.tokens or None
        partial = orjson.dumps(self._complete_answer(None)) if live.tokens else None
        self._store_output()
        state = ENDS.get(error.code, JobState.FAILED)
        self._put(
            state,
            http_status=http_status(error.code),
            error=orjson.dumps(openai_error(error)["error"]),
            result=partial,
        )
        if live.detached:
            _log.info("job.ended", job=live.id, state=state, error=error.message)

    def _store_output(self) -> None:
        if self._response is not None and self._stored is not None:
            output = self._stored.output(self.live.id, self._made.choices[0], self._ends.get(0))
            self._response = replace(self._response, output=output)

    def _complete_answer(self, ending: Ending | None) -> Mapping[str, Any]:
        made = Generated(self._identity, self.beginning, self._made.choices, self._ends, ending)
        return self._form.complete_answer(made)

    def _put(self, state: JobState, **known: Any) -> None:
        live, ending = self.live, self.ending
        if live.is_deleted or live.context.background:
            return
        over = state is not JobState.QUEUED and state is not JobState.RUNNING
        tokens = self._made.tokens if ending is None else ending.finished.usage.completion_tokens
        self._store.put(
            JobRow(
                live.id,
                live.kind.value,
                live.model_id,
                live.context.owner,
                state.value,
                live.stream,
                live.created_s,
                live.context.request_id,
                started_s=self._started_s,
                ended_s=time.time() if over else None,
                queue_position=None if over else live.queue_position,
                tokens=tokens,
                response=self._response,
                **known,
            )
        )


def _is_refusal(error: LmxError) -> bool:
    """Return whether a generation ended before it began, with an error that the next request gets
    just as soon: a fault of the request, a full queue, a model that can't be loaded. A cancellation
    and a failed load are no refusals."""
    if error.code in ENDS:
        return False
    return http_status(error.code) < 500 or error.code in _AT_ONCE
