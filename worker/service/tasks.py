"""Work that is no generation, from its request to its answer. Event loop only."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Preparing, Pulse, Refused
from lmx.protocol.messages.tasks import Embed, Rerank, Task, TaskFinished, TaskPart, TaskReply
from lmx.worker.engine import TaskEngine, TaskPiece, TaskPlan
from lmx.worker.scheduling.out_of_memory import is_out_of_memory
from lmx.worker.scheduling.thread import EngineThread, PieceResult
from lmx.worker.service.generations import Generations
from lmx.worker.service.prompt_thread import PromptThread

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Open:
    router: bytes
    task_id: int
    request: Task
    deadline: asyncio.TimerHandle
    pieces: deque[TaskPiece] = field(default_factory=deque)
    prompt_tokens: int = 0
    planned: bool = False
    computing: bool = False
    gone: bool = False


class Tasks:
    """Takes tasks through the prompt thread and, piece by piece, through the engine thread.

    A task has one piece on the engine thread at a time, so that tasks take turns there, by their
    owners and then with each other. They share the limits and the refusals of ``generations``.
    """

    def __init__(
        self,
        generations: Generations,
        prompts: PromptThread,
        send: Callable[[bytes, Any], None],
        became_idle: Callable[[], None],
    ) -> None:
        self._generations = generations
        self._prompts = prompts
        self._send = send
        self._became_idle = became_idle
        self.requests_total = 0
        self._engine_thread: EngineThread | None = None
        self._open: dict[tuple[bytes, int], _Open] = {}
        self._by_id: dict[int, _Open] = {}
        self._ids = itertools.count(1)

    def start(self, thread: EngineThread, engine: TaskEngine) -> None:
        """Take tasks from now on, as far as ``generations`` refuses none."""
        self._engine_thread, self._engine = thread, engine

    def take(self, router: bytes, request: Task) -> None:
        """Begin a task, or refuse it."""
        key = (router, request.stream_id)
        if key in self._open:
            log.warning("data.stream_id_in_use", request_id=request.request_id)
            return
        own = sum(task.request.owner == request.owner for task in self._open.values())
        refusal = self._generations.refusal_now(request.owner, own)
        if refusal is not None:
            code, message, retry_after_s = refusal
            refused = Refused(request.stream_id, code, message, retry_after_s=retry_after_s)
            self._send(router, refused)
            return
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(max(0.0, request.deadline_s), self._expire, key)
        task = _Open(router, next(self._ids), request, deadline)
        self._open[key] = self._by_id[task.task_id] = task
        self.requests_total += 1
        self._prompts.run(
            request.owner,
            lambda: self._tell_preparing(task),
            lambda: self._plan(task),
            lambda future: self._planned(task, future),
        )

    def cancel(self, router: bytes, stream_id: int) -> None:
        """Forget a task; a piece that is being computed is not waited for."""
        task = self._open.get((router, stream_id))
        if task is not None:
            self._forget(task)
            log.info("task.cancelled", request_id=task.request.request_id)

    def cancel_router(self, router: bytes) -> None:
        """Forget every task of a router that can't be reached any more."""
        for owner, stream_id in list(self._open):
            if owner == router:
                self.cancel(owner, stream_id)

    def computed(self, task_id: int, result: PieceResult) -> None:
        """Take what a piece came to."""
        task = self._by_id.get(task_id)
        if task is not None:
            task.computing = False
            if isinstance(result, TaskPart):
                self._send(task.router, result)
                self._advance(task)
            else:
                self._fail(task, result)
        self._tell_if_idle()

    def fail_all(self, code: ErrorCode, message: str) -> None:
        """End every task with an error."""
        for task in list(self._open.values()):
            if not task.gone:
                self._refuse(task, code, message)

    def pulse(self, instance: str) -> None:
        """Tell every router with an open task that this loop lives."""
        for router in {router for router, _ in self._open}:
            tasks = sum(owner == router for owner, _ in self._open)
            self._send(router, Pulse(instance, tasks))

    def _tell_preparing(self, task: _Open) -> None:
        if not task.gone:
            self._send(task.router, Preparing(task.request.stream_id))

    def _plan(self, task: _Open) -> TaskPlan | TaskReply | None:
        # On the prompt thread. A request that was cancelled meanwhile isn't worth tokenizing.
        return None if task.gone else self._engine.plan(task.request)

    def _planned(self, task: _Open, future: asyncio.Future[TaskPlan | TaskReply | None]) -> None:
        error = future.exception()
        if not task.gone:
            if error is None and (plan := future.result()) is not None:
                task.planned = True
                if isinstance(plan, TaskPlan):
                    task.pieces, task.prompt_tokens = deque(plan.pieces), plan.prompt_tokens
                    self._advance(task)
                else:
                    self._end(task, plan)
            else:
                self._fail(task, error)
        self._tell_if_idle()

    def _advance(self, task: _Open) -> None:
        if task.gone or self._engine_thread is None:
            return  # Its router could not be reached with what came of the last piece.
        if not task.pieces:
            self._end(task, TaskFinished(task.request.stream_id, task.prompt_tokens))
            return
        task.computing = True
        self._engine_thread.submit_piece(task.task_id, task.pieces.popleft(), task.request.owner)

    def _end(self, task: _Open, message: TaskReply | TaskFinished) -> None:
        self._forget(task)
        self._send(task.router, message)
        log.info(
            "task.finished",
            request_id=task.request.request_id,
            task=type(task.request).__name__,
            prompt_tokens=task.prompt_tokens,
        )

    def _fail(self, task: _Open, error: BaseException | None) -> None:
        if isinstance(error, RequestError):
            self._refuse(task, error.code, error.message, error.param)
            return
        log.error("task.failed", request_id=task.request.request_id, exc_info=error)
        if error is not None and is_out_of_memory(error):
            self._refuse(
                task,
                ErrorCode.INSUFFICIENT_MEMORY,
                "There was not enough memory for this request: send fewer or shorter inputs.",
            )
            return
        self._refuse(
            task,
            ErrorCode.ENGINE_ERROR,
            "The model failed on this request: its log has the reason under the request id.",
        )

    def _expire(self, key: tuple[bytes, int]) -> None:
        task = self._open[key]
        log.warning("task.expired", request_id=task.request.request_id)
        self._refuse(
            task,
            ErrorCode.DEADLINE_EXCEEDED,
            f"The model did not get it done in {task.request.deadline_s:g} s: send less at a "
            "time, or try again later.",
        )

    def _refuse(self, task: _Open, code: ErrorCode, message: str, param: str | None = None) -> None:
        self._forget(task)
        self._send(task.router, Refused(task.request.stream_id, code, message, param))

    def _forget(self, task: _Open) -> None:
        task.gone = True
        task.deadline.cancel()
        del self._open[task.router, task.request.stream_id]
        del self._by_id[task.task_id]
        task.pieces.clear()
        if task.planned:
            self._note_use(task.request)
        if task.computing and self._engine_thread is not None:
            self._engine_thread.drop_piece(task.task_id)

    def _note_use(self, request: Task) -> None:
        last_use, now = self._generations.last_use, time.monotonic()
        if isinstance(request, Embed | Rerank):
            last_use.ended(request.keep_alive_s, now)
        else:
            last_use.served(now)

    def _tell_if_idle(self) -> None:
        if self._generations.held == 0:
            self._became_idle()
