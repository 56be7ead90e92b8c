"""The requests that are under way in this router: what is known of each, and how to cancel one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from lmx.protocol.errors import ErrorCode, LmxError, RequestError
from lmx.router.http.outcome import RequestContext
from lmx.router.rendering.accumulator import Accumulator

_T = TypeVar("_T")


class RequestKind(StrEnum):
    """What a request wants. The first two are generations, and have a job record."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RERANK = "rerank"


class LiveState(StrEnum):
    """WAITING: for its model. QUEUED: in the model's worker, for a row. RUNNING: it has one."""

    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"


def cancelled_error() -> LmxError:
    """Return what the client of a request that was cancelled from outside is told."""
    return RequestError(
        ErrorCode.REQUEST_CANCELLED,
        "The request was cancelled through its job or by an operator. Send it again if the answer "
        "is still wanted.",
    )


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One request under way. Whoever performs it owns it and says here what becomes known; others
    read it, and may :meth:`cancel` it. Used from one event loop only."""

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
    """Its place in the worker's queue, as last heard of."""
    prompt_tokens: int | None = None
    made: Accumulator | None = None
    detached: bool = False
    """Whether nobody waits on the connection any more, and the job goes on."""
    error: LmxError | None = None
    """What it was cancelled with."""
    waiting: asyncio.Task[Any] | None = None
    """Its task, while that may be cancelled: while it waits for something of the model's."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    created_s: float = field(init=False)
    """When the request began, in Unix time."""

    def __post_init__(self) -> None:
        self.created_s = time.time() - (time.monotonic() - self.context.started_at_s)

    @property
    def tokens(self) -> int:
        """How many tokens have been made."""
        return 0 if self.made is None else self.made.tokens

    def cancel(self) -> None:
        """Have the request end with REQUEST_CANCELLED. Idempotent.

        It ends at its next wait for the model, at once where it is in one: never between the
        halves of something that is being written to its client.
        """
        if self.error is None:
            self.error = cancelled_error()
            if self.waiting is not None:
                self.waiting.cancel()

    async def interruptible(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what ``work`` returns. Raises the error of :meth:`cancel` when that comes first;
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

    def raise_if_interrupted(self, task: asyncio.Task[Any]) -> None:
        """Raise the error of :meth:`cancel` where it was that which has cancelled ``task``, its
        own, just now. As :func:`asyncio.timeout` does: a cancellation by anybody else goes on."""
        if self.error is not None and task.uncancel() == 0:
            raise self.error from None


class LiveRequests:
    """Owns the list of requests under way. ``place_in_line`` says which place in the line for a
    model a request has, None when it stands in none."""

    def __init__(self, place_in_line: Callable[[str, str], int | None]) -> None:
        self._place_in_line = place_in_line
        self._by_id: dict[str, LiveRequest] = {}

    @property
    def all(self) -> tuple[LiveRequest, ...]:
        """Every request under way, the oldest first."""
        return tuple(self._by_id.values())

    @property
    def ids(self) -> frozenset[str]:
        """Their ids."""
        return frozenset(self._by_id)

    def get(self, live_id: str) -> LiveRequest | None:
        """Return the request of an id (a job's is the same), if it is under way."""
        return self._by_id.get(live_id)

    def named(self, name: str) -> tuple[LiveRequest, ...]:
        """Return the request of an id, else all of a request id: clients may give one to many."""
        found = self._by_id.get(name)
        if found is not None:
            return (found,)
        return tuple(live for live in self._by_id.values() if live.context.request_id == name)

    def shown(self, live: LiveRequest) -> tuple[LiveState, int | None]:
        """Return where a request is, and its place in line there if it stands in one."""
        if live.state is not LiveState.WAITING:
            return live.state, live.queue_position
        place = self._place_in_line(live.model_id, live.context.request_id)
        if place is not None:
            return LiveState.WAITING, place
        # It has been sent to the worker. Tasks are not told when they begin.
        is_task = live.kind in (RequestKind.EMBEDDING, RequestKind.RERANK)
        return (LiveState.RUNNING if is_task else LiveState.QUEUED), None

    async def perform(self, live: LiveRequest, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what ``work`` returns, a task's answer; list ``live`` meanwhile. Raises
        REQUEST_CANCELLED when it is cancelled from outside."""
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


def live_object(live: LiveRequest, state: LiveState, position: int | None) -> dict[str, Any]:
    """Return one request as operators see it."""
    return {
        "id": live.id,
        "object": "request",
        "request_id": live.context.request_id,
        "kind": live.kind.value,
        "model": live.model_id,
        "state": state.value,
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
