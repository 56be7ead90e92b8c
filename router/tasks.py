"""One task's way to a worker and back: embeddings, reranking, tokenizing."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lmx.protocol.control import ModelView
from lmx.protocol.errors import ErrorCode, GenerationError, LmxError
from lmx.protocol.tasks import Embed, Rerank, Task
from lmx.router.attempts import SAID_NOTHING, blamed, on_worker
from lmx.router.waiting_room import WaitingRoom
from lmx.router.worker_links import WorkerLinks
from lmx.router.worker_task import TaskAnswer, WorkerTask

COMPUTE_DEADLINE_S: Final = 600.0
"""For thousands of inputs on a CPU. A worker that is stuck is found sooner, by its progress."""

TOKENIZE_DEADLINE_S: Final = 60.0

_ANSWER_GRACE_S: Final = 5.0
"""A worker answers by the deadline; later it is lost."""


class TaskDispatcher:
    """Finds a worker for a task. Holds no state of its own."""

    def __init__(self, room: WaitingRoom, workers: WorkerLinks) -> None:
        self._room = room
        self._workers = workers

    async def perform(self, model: ModelView, task: Task) -> TaskAnswer:
        """Have ``task`` done by a worker of ``model``, and cancel it when nobody waits any more.

        Raises the error that it is refused with. A task whose worker is on its way out, or is
        not there any more, is sent again, through the waiting room.
        """
        answer, _ = await on_worker(
            self._room,
            model,
            task.request_id,
            task.owner,
            lambda instance: self._perform(instance, task),
            "task.retried",
            # An attempt is the whole task: what ended its worker may be the task itself.
            SAID_NOTHING,
        )
        return answer

    async def _perform(self, instance: str, task: Task) -> TaskAnswer:
        link = self._workers.link_to(instance)
        pending = link.submit_task(lambda number: replace(task, stream_id=number), _inputs(task))
        try:
            return await _answer(pending, task.deadline_s)
        except LmxError as error:
            raise blamed(error, preparing=pending.preparing) from error
        finally:
            link.close_task(pending)


async def _answer(pending: WorkerTask, deadline_s: float) -> TaskAnswer:
    try:
        return await pending.answer(deadline_s + _ANSWER_GRACE_S)
    except TimeoutError as error:
        raise GenerationError(
            ErrorCode.WORKER_LOST, f"The model's worker did not answer in {deadline_s:g} s."
        ) from error


def _inputs(task: Task) -> int:
    match task:
        case Embed():
            return len(task.texts) or len(task.tokens)
        case Rerank():
            return len(task.documents)
        case _:
            return 0
