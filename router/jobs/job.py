"""One generation from its request to its record: what it has made, where it is, how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

import orjson
import structlog

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages.control import ModelView
from lmx.protocol.messages.data import ChoiceEnded, Finished
from lmx.protocol.states import FinishReason
from lmx.router.http.errors import error_body, http_status
from lmx.router.http.request_record import Record
from lmx.router.jobs.live import LiveRequest, LiveRequests, LiveState, RequestKind, began_s
from lmx.router.jobs.records import JobRow, JobState
from lmx.router.jobs.store import JobStore
from lmx.router.rendering.accumulator import Accumulator
from lmx.router.rendering.chunks import ChoiceShape, with_prompt_ids
from lmx.router.rendering.envelope import (
    Form,
    Identity,
    RouterTimings,
    fingerprint,
    head_object,
    timings_object,
    usage_object,
)
from lmx.router.workers.dispatch import Generation
from lmx.router.workers.prompt_group import PromptGroup
from lmx.router.workers.stream import Batch

Source = Generation | PromptGroup

_ENDS: Final = {
    ErrorCode.REQUEST_CANCELLED: JobState.CANCELLED,
    ErrorCode.CLIENT_DISCONNECTED: JobState.CANCELLED,
    ErrorCode.SHUTTING_DOWN: JobState.INTERRUPTED,
}
"""What a job is that ended with an error; FAILED with any other."""

_AT_ONCE: Final = frozenset({ErrorCode.MODEL_QUARANTINED, ErrorCode.INSUFFICIENT_MEMORY})
"""What is no fault of a request, and refuses the next one as soon."""

_log = structlog.get_logger()


class Job:
    """A generation under way, as a context: listed among the live requests within the block, and
    recorded from its beginning to its end, whichever way that comes. One that is refused, and
    whose id nobody was told, leaves no record.

    Gathers all that is made, so that the record has it, also of a stream, and what there was of
    one that was cut; but no logprobs of a stream, which its client has had: to write out those of
    a long one takes most of a second. ``answer`` is the whole of it, as JSON, and ``clocked`` its
    times, once :meth:`take` has returned a batch that is ``finished``; ``warnings`` say what is
    done otherwise than it was asked for, once it has begun. Sends nothing to the
    client.
    """

    def __init__(
        self,
        live: LiveRequests,
        store: JobStore,
        version: str,
        record: Record,
        identity: Identity,
        form: Form,
        shape: Callable[[Form], ChoiceShape],
        kind: RequestKind,
        client: str | None,
    ) -> None:
        self.identity = identity
        self.form = form
        self.record = record
        self.answer = b""
        self.warnings: tuple[str, ...] = ()
        self._prompt_ids: Sequence[Sequence[int]] = ()
        self.clocked = RouterTimings(0.0, 0.0, 0.0)
        self.live = LiveRequest(identity.completion_id, record, kind, client, began_s(record))
        record.job_id = identity.completion_id
        self._live = live
        self._store = store
        self._version = version
        self._shape = shape
        self._kept = replace(form, logprobs=False) if form.logprobs and record.stream else form
        self._made = self.live.made = Accumulator(form.choices, logprobs=self._kept.logprobs)
        self._task: asyncio.Task[Any] | None = None
        self._ends: dict[int, ChoiceEnded] = {}
        self._started_s: float | None = None
        self._finished = False
        self._listed = ExitStack()

    def __enter__(self) -> Self:
        self._listed.enter_context(self._live.under_way(self.live))
        self._put(JobState.QUEUED)
        return self

    def __exit__(
        self, _: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if not self._finished:
                self._cut(_reason(error, self.record.request_id))
        finally:
            self._listed.close()

    def shape(self) -> ChoiceShape:
        """Return a new shape for a stream of the answer: each is good for writing it out once."""
        return self._shape(self.form)

    def choose(self, model: ModelView) -> None:
        """Have the answer be ``model``'s; only before anything of it went out."""
        self.record.model = self.identity.model_id = model.model_id
        self.identity.fingerprint = fingerprint(self._version, model.model_id, model.source)

    async def begin(
        self, opened: AsyncExitStack, opening: AbstractAsyncContextManager[Source]
    ) -> Source:
        """Enter ``opening`` on ``opened`` and return the generation, once it is accepted. Raises
        what it is refused with, or REQUEST_CANCELLED."""
        source = await self.live.interruptible(opened.enter_async_context(opening))
        self._task = asyncio.current_task()
        self.record.prompt_tokens = self.live.prompt_tokens = source.prompt_tokens
        self.warnings = source.remarks
        self._prompt_ids = source.prompt_ids
        if source.queued:
            self.live.state, self.live.queue_position = LiveState.QUEUED, source.queued
            self._put(JobState.QUEUED)
        else:
            self._run()
        return source

    async def take(self, source: Source, wait_s: float) -> Batch:
        """Return what ``source`` has ready within ``wait_s``, gathered. Raises when it is lost,
        or REQUEST_CANCELLED."""
        # The hot path: what `live.interruptible` does, without one more coroutine for each token.
        live, task = self.live, self._task
        if live.error is not None:
            raise live.error
        live.waiting = task
        try:
            batch = await source.take(wait_s)
        except asyncio.CancelledError:
            assert task is not None
            live.raise_if_interrupted(task)
            raise
        finally:
            live.waiting = None
        if batch.deltas:
            self.record.note_output(time.monotonic())
            if self._started_s is None:
                self._run()
            self._made.take(batch.deltas)
        if batch.ended:
            self._ends.update((fact.index, fact) for fact in batch.ended)
            self.record.finish_reason = ",".join(
                # The answers of one request may end for several reasons; each is named once.
                dict.fromkeys(fact.reason.value for fact in self._ends.values())
            )
        if batch.finished is not None:
            self._finish(source, batch.finished)
        return batch

    def _run(self) -> None:
        self.live.state, self.live.queue_position = LiveState.RUNNING, None
        self._started_s = time.time()
        self._put(JobState.RUNNING)

    def _finish(self, source: Source, finished: Finished) -> None:
        """The generation has ended well: make the answer, and the record of it, before the
        client can know and ask for it."""
        record = self.record
        record.prompt_tokens = finished.usage.prompt_tokens
        record.cached_tokens = finished.usage.cached_tokens
        record.completion_tokens = finished.usage.completion_tokens
        record.load_s = source.load_s
        record.queue_s = finished.timings.queue_s
        record.prefill_s = finished.timings.prefill_s
        record.decode_s = finished.timings.decode_s
        total_s = time.monotonic() - record.started_at
        first_token_s = total_s if record.ttft_s is None else record.ttft_s
        self.clocked = RouterTimings(total_s, first_token_s, source.load_s, self.form.choices)
        usage, timings = usage_object(finished.usage), timings_object(finished, self.clocked)
        self.answer = orjson.dumps(self._whole(usage, timings))
        self._finished = True
        self._put(
            JobState.COMPLETED,
            http_status=200,
            usage=orjson.dumps(usage),
            timings=orjson.dumps(timings),
            result=self.answer,
        )

    def _cut(self, error: LmxError) -> None:
        """The generation has ended before it was whole: record what there is of it."""
        if self._task is None and _is_refusal(error) and not self.record.job_told:
            # Clients that try again and again would push out the records of generations.
            self.record.job_id = None
            self._store.forget(self.live.id)
            return
        self.record.completion_tokens = self.live.tokens or None
        partial = orjson.dumps(self._whole(None, None)) if self.live.tokens else None
        state = _ENDS.get(error.code, JobState.FAILED)
        self._put(
            state,
            http_status=http_status(error.code),
            error=orjson.dumps(error_body(error)["error"]),
            result=partial,
        )
        if self.live.detached:
            _log.info("job.ended", job=self.live.id, state=state, error=error.message)

    def _whole(self, usage: object, timings: object) -> dict[str, Any]:
        shape = self._shape(self._kept)
        whole = {
            **head_object(self.identity, shape.whole_object),
            "choices": [
                shape.whole(self._ends[index], choice)
                if index in self._ends
                else shape.whole(ChoiceEnded(0, index, FinishReason.STOP), choice)
                | {"finish_reason": None}
                for index, choice in enumerate(self._made.choices)
            ],
            "usage": usage,
            "timings": timings,
            **({"warnings": self.warnings} if self.warnings else {}),
        }
        if self.form.token_ids and self._prompt_ids:
            return with_prompt_ids(whole, self._prompt_ids, shape, self.form)
        return whole

    def _put(self, state: JobState, **known: Any) -> None:
        live = self.live
        over = state is not JobState.QUEUED and state is not JobState.RUNNING
        tokens = self.record.completion_tokens if self._finished else self._made.tokens
        self._store.put(
            JobRow(
                live.id,
                live.kind.value,
                live.model_id,
                self.record.owner,
                state.value,
                bool(self.record.stream),
                live.created_s,
                self.record.request_id,
                started_s=self._started_s,
                ended_s=time.time() if over else None,
                queue_position=None if over else live.queue_position,
                tokens=tokens or 0,
                **known,
            )
        )


def _is_refusal(error: LmxError) -> bool:
    """Return whether a generation that had not begun ended with what the next request gets as
    soon: a fault of the request, a queue that is full, a model that can't be loaded. What was
    cancelled, or failed to load, is none."""
    if error.code in _ENDS:
        return False
    return http_status(error.code) < 500 or error.code in _AT_ONCE


def _reason(error: BaseException | None, request_id: str) -> LmxError:
    """Return why a generation ended that did not end well."""
    match error:
        case LmxError():
            return error
        case asyncio.CancelledError() | ConnectionError():
            return LmxError(
                ErrorCode.CLIENT_DISCONNECTED, "The client left before the answer was whole."
            )
        case _:
            return LmxError(
                ErrorCode.INTERNAL,
                f"An internal error occurred. The log has the details under {request_id}.",
            )
