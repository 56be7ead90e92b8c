"""Tasks (requests that are no generation), from their arrival to their answer. Event loop only."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from lmx.protocol.errors import ErrorCode, RequestError, UnavailableError
from lmx.protocol.messages.data import BACKGROUND_PRIORITY
from lmx.protocol.messages.speech import Speak, Transcribe
from lmx.protocol.messages.tasks import (
    Embed,
    Rerank,
    Task,
    TaskFinished,
    TaskPart,
    TaskReply,
    Tokenize,
)
from lmx.worker.engine.interfaces import Engine
from lmx.worker.engine.values import TaskPiece, TaskPlan
from lmx.worker.media.values import Sound
from lmx.worker.scheduling.engine_errors import is_out_of_memory
from lmx.worker.scheduling.thread import EngineThread, PieceResult
from lmx.worker.service.admission import IdleClock, LifetimeCounts
from lmx.worker.service.open_requests import OpenRequest, OpenRequests

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class OpenTask(OpenRequest):
    """A task, until its end has been sent."""

    request: Task
    tasks: Tasks
    task_id: int
    pieces: Iterator[TaskPiece] = field(default_factory=lambda: iter(()))
    """The pieces that were not given to the engine thread yet."""
    prompt_tokens: int = 0
    deadline: asyncio.TimerHandle | None = None
    """When it is given up, once its turn has come."""
    planned: bool = False
    """Whether the model was found to be able to do it."""
    computing: bool = False
    """Whether a piece of it is on the engine thread."""

    @property
    def background(self) -> bool:
        """See :attr:`lmx.protocol.messages.tasks.Embed.background`."""
        return self.priority >= BACKGROUND_PRIORITY

    def turn_came(self) -> None:
        """Begin its deadline: what others took before its turn does not count."""
        self.tasks.turn_came(self)

    def release(self) -> None:
        """Compute no further piece of it; a piece that runs is left alone."""
        self.tasks.released(self)

    def cancelled(self) -> None:
        """Do nothing: there is nothing to free."""
        log.info("task.cancelled", request_id=self.request.request_id)

    def fail(self, code: ErrorCode, message: str) -> None:
        """Refuse the task, however far it has come."""
        self.tasks.fail(self, code, message)


class Tasks:
    """Passes tasks through the prompt thread and, piece by piece, through the engine thread.

    A task has one piece on the engine thread at a time. So tasks take turns there, first by owner
    and then by task. Those of the background stand still while others are computed.
    """

    def __init__(
        self,
        engine: Engine,
        thread: EngineThread,
        open_requests: OpenRequests,
        counts: LifetimeCounts,
        idle_clock: IdleClock,
    ) -> None:
        self._engine = engine
        self._thread = thread
        self._open = open_requests
        self._counts = counts
        self._idle_clock = idle_clock
        self._by_id: dict[int, OpenTask] = {}
        self._ids = itertools.count(1)
        self._held = False

    def submit(self, router: bytes, request: Task, blobs: Sequence[bytes] = ()) -> None:
        """Begin a task, or refuse it. ``blobs`` are the bytes of its media."""
        if not self._open.admits(router, request, blobs, self._thread.rows):
            return
        task_id = next(self._ids)
        task = self._by_id[task_id] = OpenTask(router, request, self, task_id)
        self._open.begin(
            task,
            lambda: self._plan(task),
            lambda future: self._planned(task, future),
            blobs,
            decodes=self._needs_media(request),
        )

    def computed(self, task_id: int, result: PieceResult) -> None:
        """Process the result of a piece."""
        task = self._by_id.get(task_id)
        if task is not None:
            task.computing = False
            if isinstance(result, TaskPart):
                self._open.send(task.router, result)
                self._advance(task)
            else:
                self._fail_for(task, result)
        self._open.report_if_idle()

    def turn_came(self, task: OpenTask) -> None:
        """Give a task up when its deadline has passed from now on."""
        left_s = max(0.0, task.request.deadline_s)
        task.deadline = asyncio.get_running_loop().call_later(left_s, self._expire, task.task_id)

    def released(self, task: OpenTask) -> None:
        """Free a task's resources; a piece that is being computed is not waited for."""
        if task.deadline is not None:
            task.deadline.cancel()
        del self._by_id[task.task_id]
        task.pieces = iter(())
        if task.planned:
            self._note_use(task.request)
        if task.computing:
            self._thread.drop_piece(task.task_id)
        self._hold()

    def fail(self, task: OpenTask, code: ErrorCode, message: str) -> None:
        """Refuse a task, however far it has come."""
        self._open.refuse(task, code, message)

    def _needs_media(self, request: Task) -> bool:
        """Return whether the media of a request are to be decoded for its plan."""
        match request:
            case Tokenize():
                return bool(request.media)
            case Transcribe():
                return self._engine.transcriber is not None
            case _:
                return False

    def _plan(self, task: OpenTask) -> TaskPlan | TaskReply:
        # This runs on the prompt thread.
        request, transcriber = task.request, self._engine.transcriber
        media, task.media = task.media, ()
        if isinstance(request, Transcribe) and transcriber is not None:
            (sound,) = media
            assert isinstance(sound, Sound), "a model that transcribes takes nothing else"
            return transcriber.transcribe(request, sound)
        return self._engine.tasks.plan(request, media)

    def _planned(self, task: OpenTask, future: asyncio.Future[TaskPlan | TaskReply | None]) -> None:
        error = future.exception()
        if not task.gone:
            if error is None and (plan := future.result()) is not None:
                task.planned = True
                self._counts.requests += 1
                self._hold()
                if isinstance(plan, TaskPlan):
                    task.pieces, task.prompt_tokens = iter(plan.pieces), plan.prompt_tokens
                    self._open.drop_files(task)
                    self._open.hold(task, plan.held_bytes)
                    self._advance(task)
                else:
                    self._end(task, plan)
            else:
                self._fail_for(task, error)
        self._open.report_if_idle()

    def _advance(self, task: OpenTask) -> None:
        if task.gone:
            return  # Its router could not be reached with what came of the last piece.
        piece = next(task.pieces, None)
        if piece is None:
            self._end(task, TaskFinished(task.request.stream_id, task.prompt_tokens))
            return
        task.computing = True
        self._thread.submit_piece(
            task.task_id, piece, task.request.owner, background=task.background
        )

    def _hold(self) -> None:
        """Let the background stand still while there is any other task that is planned: a piece
        that is held counts as one that is computed, and must not be held for others' prompts."""
        held = {task.background for task in self._by_id.values() if task.planned} == {True, False}
        if held != self._held:
            self._held = held
            self._thread.hold_background(held)

    def _end(self, task: OpenTask, message: TaskReply | TaskFinished) -> None:
        self._open.forget(task)
        self._open.send(task.router, message)
        log.info(
            "task.finished",
            request_id=task.request.request_id,
            task=type(task.request).__name__,
            prompt_tokens=task.prompt_tokens,
        )

    def _fail_for(self, task: OpenTask, error: BaseException | None) -> None:
        if isinstance(error, RequestError | UnavailableError):
            self._open.refuse(task, error.code, error.message, error.param, error.retry_after_s)
            return
        log.error("task.failed", request_id=task.request.request_id, exc_info=error)
        if error is not None and is_out_of_memory(error):
            self._open.refuse(
                task,
                ErrorCode.INSUFFICIENT_MEMORY,
                "There was not enough memory for this request: send fewer or shorter inputs.",
            )
            return
        self._open.refuse(
            task,
            ErrorCode.ENGINE_ERROR,
            "The model failed on this request: its log has the reason under the request id.",
        )

    def _expire(self, task_id: int) -> None:
        task = self._by_id[task_id]
        log.warning("task.expired", request_id=task.request.request_id)
        self._open.refuse(
            task,
            ErrorCode.DEADLINE_EXCEEDED,
            f"The model did not get it done in {task.request.deadline_s:g} s: send less at a "
            "time, or try again later.",
        )

    def _note_use(self, request: Task) -> None:
        now = time.monotonic()
        if isinstance(request, Embed | Rerank | Transcribe | Speak):
            self._idle_clock.ended(request.keep_alive_s, now)
        else:
            self._idle_clock.served(now)
