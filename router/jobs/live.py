"""The requests that are under way in this router: what is known of each, and how one is
cancelled."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, TypeVar

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.router.event_loop import ends_in_time
from lmx.router.http.outcome import RequestContext
from lmx.router.http.responses import Answer
from lmx.router.jobs.records import JobRow
from lmx.router.jobs.store import JobStore
from lmx.router.rendering.accumulator import Accumulator

_T = TypeVar("_T")


class RequestKind(StrEnum):
    """The kind of a request. The first two are generations, and have a job record."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    TRANSCRIPTION = "transcription"


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


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One request under way. The task that performs it owns it and records here what becomes known.
    Others read it, and may :meth:`cancel` it. Used from one event loop only."""

    id: str
    context: RequestContext
    kind: RequestKind
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
        """How many tokens have been made."""
        return 0 if self.made is None else self.made.tokens

    def cancel(self) -> None:
        """Let the request end with REQUEST_CANCELLED. Idempotent.

        It ends at its next wait for the model, at once if it is in such a wait: never between the
        halves of something that is being written to its client.
        """
        if self.error is None:
            self.error = cancelled_error()
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


class LiveRequests:
    """Owns the list of requests under way. ``position_of`` returns a request's place in the line
    for a model, None if it stands in none."""

    def __init__(self, position_of: Callable[[str, str], int | None]) -> None:
        self._position_of = position_of
        self._by_id: dict[str, LiveRequest] = {}

    @property
    def all(self) -> tuple[LiveRequest, ...]:
        """Every request under way, the oldest first."""
        return tuple(self._by_id.values())

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

    def shown(self, live: LiveRequest) -> tuple[LiveState, int | None]:
        """Return where a request is, and its place in the line there if it stands in one."""
        if live.state is not LiveState.WAITING:
            return live.state, live.queue_position
        place = self._position_of(live.model_id, live.context.request_id)
        if place is not None:
            return LiveState.WAITING, place
        # The task was sent to the worker. A worker does not report when a task begins.
        is_task = live.kind not in (RequestKind.CHAT, RequestKind.COMPLETION)
        return (LiveState.RUNNING if is_task else LiveState.QUEUED), None

    async def perform(self, live: LiveRequest, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what ``work`` returns, the answer of a task; list ``live`` meanwhile. Raises
        REQUEST_CANCELLED if somebody else cancels it."""
        with self.under_way(live):
            return await live.interruptible(work)

    @contextmanager
    def under_way(self, live: LiveRequest) -> Iterator[None]:
        """List a request for the duration of the block."""
        self._by_id[live.id] = live
        try:
            yield
        finally:
            del self._by_id[live.id]
            live.ended.set()


class LiveRequestShown(Answer):
    """A request under way."""

    id: str
    object: Literal["request"]
    request_id: str
    kind: RequestKind
    model: str
    state: LiveState
    queue_position: int | None
    stream: bool
    detached: bool
    """Whether its client was asked to fetch the job's result later."""
    cancelled: bool
    """Whether it ends as soon as it can."""
    owner: str | None
    client: str | None
    created: float
    age_s: float
    prompt_tokens: int | None
    tokens: int


def live_object(live: LiveRequest, state: LiveState, position: int | None) -> LiveRequestShown:
    """Return one request as operators see it."""
    return {
        "id": live.id,
        "object": "request",
        "request_id": live.context.request_id,
        "kind": live.kind,
        "model": live.model_id,
        "state": state,
        "queue_position": position,
        "stream": live.stream,
        "detached": live.detached,
        "cancelled": live.error is not None,
        "owner": live.context.owner,
        "client": live.client,
        "created": round(live.created_s, 3),
        "age_s": round(time.monotonic() - live.context.started_at_s, 3),
        "prompt_tokens": live.prompt_tokens,
        "tokens": live.tokens,
    }


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
