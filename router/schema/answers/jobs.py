"""What the routes of jobs and of requests under way answer."""

from __future__ import annotations

from typing import Any, Literal

from lmx.router.http.responses import Answer
from lmx.router.jobs.live import LiveState, RequestKind
from lmx.router.jobs.records import JobState
from lmx.router.schema.answers.errors import GenerationUsage, Timings


class JobError(Answer):
    """Why a job did not end well: the error as its client got it."""

    message: str
    type: str
    param: str | None
    code: str


class Job(Answer):
    """One generation. Times are Unix seconds. ``tokens``: made until now. ``queue_position``: its
    place in line, for the model or in its worker, while it is in one. ``http_status``: of the
    answer, 499 where its client had left."""

    id: str
    object: Literal["job"]
    kind: Literal["chat", "completion"]
    model: str
    state: JobState
    stream: bool
    created: float
    started: float | None
    ended: float | None
    queue_position: int | None
    tokens: int
    usage: GenerationUsage | None
    timings: Timings | None
    error: JobError | None
    http_status: int | None
    request_id: str


class JobWithResult(Job):
    """A job with what it made: the answer as it is without ``stream``. Of a job that did not end
    well it is what there was, without usage and timings."""

    result: dict[str, Any] | None


class JobList(Answer):
    """A page of jobs, the newest first."""

    object: Literal["list"]
    data: list[Job]
    first_id: str | None
    last_id: str | None
    has_more: bool


class CancelledJob(JobWithResult):
    """A job that was under way."""

    deleted: Literal[False]


class DeletedJob(Answer):
    """A job that had ended, and is gone."""

    id: str
    object: Literal["job"]
    deleted: Literal[True]


class LiveRequestShown(Answer):
    """A request under way. ``detached``: its client was told to fetch the job's result later.
    ``cancelled``: it ends as soon as it can."""

    id: str
    object: Literal["request"]
    request_id: str
    kind: RequestKind
    model: str
    state: LiveState
    queue_position: int | None
    stream: bool
    detached: bool
    cancelled: bool
    owner: str | None
    client: str | None
    created: float
    age_s: float
    prompt_tokens: int | None
    tokens: int


class LiveRequestList(Answer):
    """Requests under way, the oldest first."""

    object: Literal["list"]
    data: list[LiveRequestShown]
