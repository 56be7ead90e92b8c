"""A task on the first of several models that can be had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lmx.protocol.control import ModelView
from lmx.protocol.tasks import Task
from lmx.router.fallback import first_loaded
from lmx.router.tasks import TaskDispatcher
from lmx.router.traffic import Record
from lmx.router.worker_task import TaskAnswer


async def perform_on_first(
    tasks: TaskDispatcher, record: Record, models: Sequence[ModelView], task: Task
) -> tuple[ModelView, TaskAnswer]:
    """Return the model that did ``task``, which ``record`` is told too, and its answer."""
    task = replace(task, owner=record.asker)

    async def attempt(model: ModelView) -> tuple[ModelView, TaskAnswer]:
        record.model = model.model_id
        return model, await tasks.perform(model, task)

    return await first_loaded(models, attempt)
