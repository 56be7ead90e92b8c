"""One request's way to a worker and back: acquire, submit, perhaps again, then the events.

Every endpoint that generates text uses this; what the events look like to the client is the
endpoint's matter.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

from lmx.protocol.control import ModelView
from lmx.protocol.data import Accepted, Generate
from lmx.protocol.errors import ErrorCode, GenerationError, LmxError
from lmx.router.attempts import ENDED, blamed, on_worker
from lmx.router.waiting_room import WaitingRoom
from lmx.router.worker_link import WorkerLink
from lmx.router.worker_links import WorkerLinks
from lmx.router.worker_stream import Batch, WorkerStream

_ACCEPT_DEADLINE_S: Final = 180.0
"""For the worker's verdict: it tokenizes the prompt first, which takes seconds for megabytes.
Longer than the supervisor waits before it ends a worker that hangs, and says so."""


class Generation:
    """A generation that a worker has accepted, when ``queued`` were before it. ``load_s`` is how
    long its model was waited for, ``remarks`` say what is done otherwise than it was asked for.
    ``prompt_ids`` are the tokens of its prompts, where they were asked for."""

    def __init__(
        self, link: WorkerLink, stream: WorkerStream, accepted: Accepted, load_s: float
    ) -> None:
        self.prompt_tokens = accepted.prompt_tokens
        self.queued = accepted.queued
        self.remarks = accepted.remarks
        self.prompt_ids = (accepted.prompt_ids,)
        self.load_s = load_s
        self._link = link
        self._stream = stream

    async def take(self, wait_s: float) -> Batch:
        """Return what is ready within ``wait_s``; raises when the generation is lost.

        Taking again says that the batch before was delivered: only then is the worker given
        its credit back, so that a slow client slows down no more than its own stream.
        """
        self._link.grant(self._stream)
        return await self._stream.take(wait_s)

    def close(self) -> None:
        """Cancel the generation on its worker, unless it has ended."""
        self._link.close_stream(self._stream)


class Dispatcher:
    """Finds a worker for a request. Holds no state of its own."""

    def __init__(self, room: WaitingRoom, workers: WorkerLinks) -> None:
        self._room = room
        self._workers = workers

    @asynccontextmanager
    async def generate(self, model: ModelView, request: Generate) -> AsyncIterator[Generation]:
        """Have ``request`` accepted by a worker of ``model``; cancel it on the way out.

        Raises the error that the request is refused with. Leaving the block by whatever way
        (the end, an error, a client that left) cancels what has not ended. A request that
        meets a worker on its way out, or that is not there any more, is sent again, through the
        waiting room: nothing has been produced for it yet.
        """
        until_s = time.monotonic() + self._room.load_wait_s
        (link, stream, accepted), load_s = await on_worker(
            self._room,
            model,
            request.request_id,
            request.owner,
            lambda instance: self._submit(instance, request, until_s),
            "generation.retried",
            # An attempt ends as soon as the request was taken.
            ENDED,
        )
        generation = Generation(link, stream, accepted, load_s)
        try:
            yield generation
        finally:
            generation.close()

    async def _submit(
        self, instance: str, request: Generate, until_s: float
    ) -> tuple[WorkerLink, WorkerStream, Accepted]:
        link = self._workers.link_to(instance)
        # What waits for memory waits for as long in a worker as it would have for one.
        left_s = max(0.0, until_s - time.monotonic())
        stream = link.submit(replace(request, memory_wait_s=left_s))
        with ExitStack() as undo:
            undo.callback(link.close_stream, stream)
            try:
                accepted = await _verdict(stream)
            except LmxError as error:
                raise blamed(error, preparing=stream.preparing) from error
            undo.pop_all()
        return link, stream, accepted


async def _verdict(stream: WorkerStream) -> Accepted:
    try:
        return await stream.accepted(_ACCEPT_DEADLINE_S)
    except TimeoutError as error:
        raise GenerationError(
            ErrorCode.WORKER_LOST,
            f"The model's worker did not take the request in {_ACCEPT_DEADLINE_S:g} s.",
        ) from error
