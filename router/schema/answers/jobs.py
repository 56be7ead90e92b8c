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
    """What went wrong and what to do next, for people."""
    type: str
    param: str | None
    """The path of the field at fault, where one is."""
    code: str
    """What went wrong, for programs."""


class Job(Answer):
    """One generation. Times are seconds since 1970."""

    id: str
    object: Literal["job"]
    kind: Literal["chat", "completion"]
    model: str
    state: JobState
    stream: bool
    created: float
    """When the request came."""
    started: float | None
    """When it began to run. Null before."""
    ended: float | None
    """When it ended. Null before."""
    queue_position: int | None
    """Its place in line, for the model or in its worker, while it is in one."""
    tokens: int
    """The tokens that were made until now."""
    usage: GenerationUsage | None
    """How many tokens it took, when it has ended well."""
    timings: Timings | None
    """Where the time went, when it has ended well."""
    error: JobError | None
    """Why it did not end well."""
    http_status: int | None
    """The status of the answer; 499 where its client had left."""
    request_id: str


class JobWithResult(Job):
    """A job with what it made."""

    result: dict[str, Any] | None
    """The answer as it is without `stream`. Of a job that did not end well it is what there was,
    without usage and timings."""


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
    """Whether its client was told to fetch the job's result later."""
    cancelled: bool
    """Whether it ends as soon as it can."""
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
