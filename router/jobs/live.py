"""The requests of this router, those under way and the last ones that have ended: what is known of
each, and how one is cancelled."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Final, Literal, TypeVar, cast

from aiohttp import web

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.protocol.messages.data import Finished
from lmx.protocol.messages.tasks import TaskFinished
from lmx.protocol.states import RereadReason
from lmx.router.event_loop import ends_in_time
from lmx.router.http.errors import http_status, internal_error
from lmx.router.http.outcome import Outcome, RequestContext
from lmx.router.http.responses import Answer
from lmx.router.jobs.phases import (
    Phase,
    Phases,
    Times,
    WaitsFor,
    phases_of,
    waits_for_model,
    waits_for_worker,
)
from lmx.router.jobs.records import JobRow, JobState
from lmx.router.jobs.store import JobStore
from lmx.router.rendering.accumulator import Accumulator
from lmx.router.supervisor.directory import Directory
from lmx.router.workers.task import TaskAnswer
from lmx.router.workers.waits import Waits

_T = TypeVar("_T")

MOST_ENDED: Final = 500
"""How many requests that have ended are kept."""

ENDS: Final = {
    ErrorCode.REQUEST_CANCELLED: JobState.CANCELLED,
    ErrorCode.CLIENT_DISCONNECTED: JobState.CANCELLED,
    ErrorCode.SHUTTING_DOWN: JobState.INTERRUPTED,
}
"""The state of a request that ended with one of these errors. With any other error it is FAILED."""


class RequestKind(StrEnum):
    """The kind of a request. The first two are generations, and have a job record."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    TRANSCRIPTION = "transcription"
    SPEECH = "speech"


class LiveState(StrEnum):
    """Where a request is: `waiting` for its model, `queued` for a row in the model's worker, or
    `running`."""

    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"


def cancelled_error() -> LmxError:
    """Return the error that the client gets if somebody else has cancelled its request."""
    return RequestError(
        ErrorCode.REQUEST_CANCELLED,
        "The request was cancelled through its job or by an operator. Send it again if the answer "
        "is still wanted.",
    )


class Reread(Answer):
    """Why much of a prompt was computed again: an earlier one of its model has it too."""

    cached_tokens: int
    """Tokens that were not computed again."""
    expected_tokens: int
    """Tokens that had been computed before."""
    reason: RereadReason
    """`differs`, `answer` or `media`: it departs from the earlier prompt. `evicted`, `disk`,
    `not_cuttable`, `prompt_logprobs` or `no_cache`: what was computed could not be used."""
    position: int
    """The number of the first token, from 0, that differs; where none does, of the first that was
    computed again."""
    before: str | None
    """The text before that token. Null, as the next two, where nothing differs, and unless
    `server.show_rereads` is set."""
    was: str | None
    """How the earlier prompt continues."""
    now: str | None
    """How this prompt continues."""


def reread_object(finished: Finished) -> Reread | None:
    """Return why a prompt was computed again; None: it was not, or not much of it."""
    found = finished.reread
    if found is None:
        return None
    has_texts = bool(found.before or found.was or found.now)
    return {
        "cached_tokens": finished.usage.cached_tokens,
        "expected_tokens": found.expected_tokens,
        "reason": found.reason,
        "position": found.position,
        "before": found.before if has_texts else None,
        "was": found.was if has_texts else None,
        "now": found.now if has_texts else None,
    }


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One request under way. The task that performs it owns it and records here what becomes known.
    Others read it, and may :meth:`cancel` it. Used from one event loop only."""

    id: str
    context: RequestContext
    kind: RequestKind
    family: str
    """The API that it came by (:func:`lmx.router.http.endpoint.api_of`)."""
    client: str | None
    """The client's address."""
    model_id: str
    """The model that answers it, or that it waits for."""
    stream: bool = False
    state: LiveState = LiveState.WAITING
    queue_position: int | None = None
    """Its last known place in the worker's queue."""
    prompt_tokens: int | None = None
    made: Accumulator | None = None
    """What it has made until now."""
    waits: Waits = field(default_factory=Waits)
    has_row: bool = True
    """Whether its worker had a row for it when it was accepted."""
    first_output_s: float | None = None
    """When its first output came, on the monotonic clock."""
    outcome: Callable[[], Outcome] | None = None
    """Returns the figures of a generation while it is listed. Its job owns them."""
    reread: Reread | None = None
    """Why its prompt was computed again; None if it was not, or is not known."""
    is_captured: bool = False
    """Whether its body was captured."""
    machine: str | None = None
    """The peer that computes it; None for this machine."""
    goes_elsewhere: bool = False
    """Whether that peer has not answered, and another machine was asked: it is not among the ended
    ones then."""
    failure: LmxError | None = None
    """What it ended with, without the traceback, which would lead back here."""
    detached: bool = False
    """Whether no client waits on the connection any more, and the job continues."""
    error: LmxError | None = None
    """The error with which it was cancelled."""
    is_deleted: bool = False
    """Whether its record was deleted. It gets no other one, though it may take a while to end."""
    waiting: asyncio.Task[Any] | None = None
    """The task that performs it, while it may be cancelled: while it waits for something from the
    model."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the request has ended."""
    created_s: float = field(init=False)
    """When the request began, in Unix time."""

    def __post_init__(self) -> None:
        self.created_s = time.time() - (time.monotonic() - self.context.started_at_s)

    @property
    def tokens(self) -> int:
        """How many tokens have been made. Those of a peer are counted as they are passed on."""
        if self.machine is not None and self.outcome is not None:
            return self.outcome().completion_tokens or 0
        return 0 if self.made is None else self.made.tokens

    @property
    def is_task(self) -> bool:
        """Whether it generates nothing: it has no job."""
        return self.kind not in (RequestKind.CHAT, RequestKind.COMPLETION)

    def failed_with(self, error: BaseException | None) -> LmxError:
        """Return, and note, why the request did not end well."""
        match error:
            case LmxError():
                reason = error
            case asyncio.CancelledError() | ConnectionError():
                reason = LmxError(
                    ErrorCode.CLIENT_DISCONNECTED, "The client left before the answer was whole."
                )
            case _:
                reason = internal_error(self.context.request_id)
        self.failure = LmxError(reason.code, reason.message)
        return reason

    def cancel(self, error: LmxError | None = None) -> None:
        """Let the request end with ``error``, by default REQUEST_CANCELLED. Idempotent.

        It ends at its next wait for the model, at once if it is in such a wait: never between the
        halves of something that is being written to its client.
        """
        if self.error is None:
            self.error = error or cancelled_error()
            if self.waiting is not None:
                self.waiting.cancel()

    async def interruptible(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what ``work`` returns. If :meth:`cancel` is called first, raise its error;
        ``work`` is cancelled then."""
        task = asyncio.current_task()
        assert task is not None
        if self.error is not None:
            work.close()
            raise self.error
        self.waiting = task
        try:
            return await work
        except asyncio.CancelledError:
            self.raise_if_interrupted(task)
            raise
        finally:
            self.waiting = None
            # It holds its own end, whose traceback leads here: a circle.
            del task

    def raise_if_interrupted(self, task: asyncio.Task[Any]) -> None:
        """Raise the error of :meth:`cancel` if it was :meth:`cancel` that has just cancelled
        ``task``, the request's own task. As with :func:`asyncio.timeout`, a cancellation by anybody
        else is raised."""
        if self.error is not None and task.uncancel() == 0:
            raise self.error from None


LIVE_REQUEST: Final = web.RequestKey("live_request", LiveRequest)
"""The key under which a request for a model carries what is known of it, until it has ended."""


_ShownState = Literal[
    "waiting", "queued", "running", "completed", "failed", "cancelled", "interrupted"
]


class RequestShown(Answer):
    """A request, under way or ended."""

    id: str
    object: Literal["request"]
    request_id: str
    kind: RequestKind
    family: str
    """The API that it came by: `chat`, `completions`, `messages`, `responses`, `ollama`,
    `embeddings`, `rerank`, `audio`."""
    model: str
    state: _ShownState
    """The first three while it is under way."""
    queue_position: int | None
    stream: bool
    detached: bool
    """Whether its client was asked to fetch the job's result later."""
    cancelled: bool
    """Whether it was cancelled; while it is under way, it ends as soon as it can."""
    owner: str | None
    key: str | None
    """The name of its key in the configuration."""
    client: str | None
    created: float
    ended: float | None
    """When it ended, in Unix time. Null while it is under way."""
    age_s: float
    """How long it has taken until now, or until its end."""
    prompt_tokens: int | None
    cached_tokens: int | None
    """Tokens of the prompt that were not computed again. Null until it has ended well."""
    tokens: int
    """The tokens that were made until now."""
    ttft_s: float | None
    """The time to its first output."""
    phase: Phase | None
    """What it is in now."""
    phases: Phases
    waits_for: WaitsFor | None
    """What it waits for now."""
    http_status: int | None
    """The status of the answer; 499 where its client had left. Null while it is under way."""
    error: str | None
    """The code of the error that it ended with."""
    error_message: str | None
    """The same error for people."""
    reread: Reread | None
    """Why its prompt was computed again. Null where it was not, or where that is not known."""
    machine: str | None
    """The peer that computes it. Null where this machine does."""
    captured: bool
    """Whether its body was captured: GET /admin/requests/{id}/capture, for as long as that is
    kept."""


class LiveRequests:
    """Owns the list of requests under way, and that of the last ended ones. ``position_of`` returns
    the place of a request in the line for a model by the time of its arrival there, None if it
    stands in none; ``directory`` returns the models."""

    def __init__(
        self,
        position_of: Callable[[str, float], int | None],
        directory: Callable[[], Directory | None],
    ) -> None:
        self.ended_total = 0
        """How many requests have ended."""
        self.last_used_s: dict[str, float] = {}
        """When each model's last request ended that somebody waited for, on the monotonic clock."""
        self._position_of = position_of
        self._directory = directory
        self._by_id: dict[str, LiveRequest] = {}
        self._ended: deque[RequestShown] = deque(maxlen=MOST_ENDED)

    @property
    def all(self) -> tuple[LiveRequest, ...]:
        """Every request under way, the oldest first."""
        return tuple(self._by_id.values())

    @property
    def in_foreground(self) -> Iterator[LiveRequest]:
        """Those that this machine computes, and that somebody waits for."""
        return (
            live
            for live in self._by_id.values()
            if not live.context.background and live.machine is None
        )

    @property
    def ids(self) -> frozenset[str]:
        """The ids of the requests under way."""
        return frozenset(self._by_id)

    def get(self, live_id: str) -> LiveRequest | None:
        """Return the request with an id (it is also its job's id); None if it is not under way."""
        return self._by_id.get(live_id)

    def named(self, name: str) -> tuple[LiveRequest, ...]:
        """Return the request with an id, else all with a request id: clients may give the same
        request id to many requests."""
        found = self._by_id.get(name)
        if found is not None:
            return (found,)
        return tuple(live for live in self._by_id.values() if live.context.request_id == name)

    def place(self, live: LiveRequest) -> tuple[LiveState, int | None]:
        """Return where a request is, and its place in the line there if it stands in one."""
        if live.state is not LiveState.WAITING:
            return live.state, live.queue_position
        place = self._position_of(live.model_id, live.waits.arrived_s)
        if place is not None:
            return LiveState.WAITING, place
        # The task was sent to the worker. Its state does not show when the worker begins.
        return (LiveState.RUNNING if live.is_task else LiveState.QUEUED), None

    def last_ended(self, most: int) -> list[RequestShown]:
        """Return the last requests that have ended, the newest first."""
        return list(islice(reversed(self._ended), most))

    def shown(self, live: LiveRequest) -> RequestShown:
        """Return a request under way as operators see it."""
        state, position = self.place(live)
        is_own = live.machine is None
        measured = _NOTHING if is_own or live.outcome is None else live.outcome()
        shown = _shown(live, time.monotonic(), state.value, measured)
        shown["queue_position"] = position
        if not is_own:
            return shown
        if state is LiveState.WAITING:
            shown["waits_for"] = waits_for_model(live.model_id, position, self._directory())
        elif live.error is None:
            accepted = live.waits.accepted_s is not None
            shown["waits_for"] = waits_for_worker(
                live.model_id, shown["phase"], position, accepted=accepted
            )
        return shown

    async def perform(
        self, live: LiveRequest, work: Coroutine[Any, Any, tuple[_T, TaskAnswer]]
    ) -> tuple[_T, TaskAnswer]:
        """Return what ``work`` returns, the answer of a task; list ``live`` meanwhile. Raises
        REQUEST_CANCELLED if somebody else cancels it."""
        with self.under_way(live):
            try:
                done, answer = await live.interruptible(work)
            except BaseException as error:
                live.failed_with(error)
                raise
            if isinstance(answer.last, TaskFinished):
                live.prompt_tokens = answer.last.prompt_tokens
            return done, answer

    @contextmanager
    def under_way(self, live: LiveRequest) -> Iterator[None]:
        """List a request for the duration of the block, and then among the ended ones."""
        self._by_id[live.id] = live
        try:
            yield
        finally:
            del self._by_id[live.id]
            if not live.goes_elsewhere:
                self._ended.append(_ended(live))
                self.ended_total += 1
            if not live.context.background and live.machine is None:
                self.last_used_s[live.model_id] = time.monotonic()
            live.outcome = None  # It leads back here: a circle that holds the answer.
            live.ended.set()


_NOTHING: Final = Outcome()


def _shown(live: LiveRequest, now_s: float, state: str, measured: Outcome) -> RequestShown:
    """Return what is known of a request whether it is under way or not."""
    began_s, first_s = live.context.started_at_s, live.first_output_s
    times = Times(now_s, first_s, live.has_row, live.is_task)
    phases, phase = phases_of(live.waits, times, measured)
    return {
        "id": live.id,
        "object": "request",
        "request_id": live.context.request_id,
        "kind": live.kind,
        "family": live.family,
        "model": live.model_id,
        "state": cast("_ShownState", state),
        "queue_position": None,
        "stream": live.stream,
        "detached": live.detached,
        "cancelled": live.error is not None,
        "owner": live.context.owner,
        "key": live.context.key,
        "client": live.client,
        "created": round(live.created_s, 3),
        "ended": None,
        "age_s": round(now_s - began_s, 3),
        "prompt_tokens": measured.prompt_tokens or live.prompt_tokens,
        "cached_tokens": measured.cached_tokens,
        "tokens": measured.completion_tokens or live.tokens,
        "ttft_s": None if first_s is None else round(first_s - began_s, 4),
        "phase": phase,
        "phases": phases,
        "waits_for": None,
        "http_status": None,
        "error": None,
        "error_message": None,
        "reread": live.reread,
        "machine": live.machine,
        "captured": live.is_captured,
    }


def _ended(live: LiveRequest) -> RequestShown:
    """Return a request that has ended as operators see it."""
    failure = live.failure
    state = JobState.COMPLETED if failure is None else ENDS.get(failure.code, JobState.FAILED)
    measured = _NOTHING if live.outcome is None else live.outcome()
    shown = _shown(live, time.monotonic(), state.value, measured)
    shown["phase"] = None
    shown["ended"] = round(time.time(), 3)
    shown["http_status"] = 200
    if failure is not None:
        shown["http_status"] = http_status(failure.code)
        shown["error"], shown["error_message"] = failure.code.value, failure.message
    return shown


_ENDS_WITHIN_S: Final = 2.0
"""How long a reply waits for the end of a cancelled request. A client that reads slowly may delay
the end; the reply does not wait for it."""


async def cancel_job(listed: LiveRequests, store: JobStore, row: JobRow) -> None:
    """Cancel the job of a record that is under way, and wait for its end. It may have ended by
    itself just before. Raises JOB_RUNS_ELSEWHERE for a job of another router."""
    live = listed.get(row.id)
    if live is not None:
        live.cancel()
        # Whether it has ended or not: it is cancelled all the same, and shown so.
        await ends_in_time(live.ended.wait(), _ENDS_WITHIN_S)
    elif not store.is_own(row):
        raise RequestError(
            ErrorCode.JOB_RUNS_ELSEWHERE,
            f"The job {row.id} runs in another router process ({row.router_pid}), which ends with "
            "its last request. It can't be cancelled from here: wait for its end, or close its "
            "connection.",
        )
