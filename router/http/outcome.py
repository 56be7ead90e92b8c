"""Who asks, known when a request begins, and what became of it, known when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from lmx.protocol.errors import ErrorCode

CLIENT_LEFT: Final = ErrorCode.CLIENT_DISCONNECTED.value
"""The error of a request whose client was gone before the end."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who asks, and since when. The middleware makes it, and nobody changes it."""

    request_id: str
    started_at_s: float
    """On the monotonic clock."""
    owner: str | None = None
    """Whose key the request came with (:func:`lmx.router.http.access.key_name`)."""
    asker: str = ""
    """Who takes turns with others, and has limits: the owner, or else the client's address."""
    key: str | None = None
    """What the configuration calls the key."""


CONTEXT: Final = web.RequestKey("context", RequestContext)
"""Where a request carries its context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a request. The log line, the metrics and the rate limits are made of it.

    None says that the request has no such value, or has not had it yet.
    """

    model: str | None = None
    """The model that answered, or that was asked for."""
    stream: bool | None = None
    """Whether the answer streams; None where that cannot be asked for."""
    job_id: str | None = None
    """The id of the request's job record, as long as it has one."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt's tokens, those that the worker did not have to compute."""
    completion_tokens: int | None = None
    load_s: float | None = None
    """How long the request waited for its model."""
    queue_s: float | None = None
    """How long the request waited in the worker. This and the next two are the worker's figures."""
    prefill_s: float | None = None
    decode_s: float | None = None
    ttft_s: float | None = None
    """From the beginning of the request to its first output."""
    gaps_s: Sequence[float] = ()
    """Between one output and the next."""
    finish_reason: str | None = None
    """Why the answer ended. Several reasons of several choices are joined by commas."""
    error: str | None = None
    """The code of the error that the request ended with."""

    @property
    def tokens(self) -> int:
        """All tokens that were computed for the request, cached ones among them."""
        return (self.prompt_tokens or 0) + (self.completion_tokens or 0)


_NOTHING: Final = Outcome()
_OUTCOME: Final[web.RequestKey[Callable[[], Outcome]]] = web.RequestKey("outcome")


def follow_outcome(request: web.Request, outcome: Callable[[], Outcome]) -> None:
    """Say where a request's outcome can be asked for from now on, instead of what was said before.

    It is asked for when the request has ended. A handler's return value would be lost with an
    error that it raises, and with a client that leaves, which cancels it.
    """
    request[_OUTCOME] = outcome


def set_outcome(request: web.Request, outcome: Outcome) -> None:
    """Say what a request's outcome is, instead of what was said before."""
    follow_outcome(request, lambda: outcome)


def outcome_of(request: web.Request) -> Outcome:
    """Return what has become of a request so far."""
    told = request.get(_OUTCOME)
    return _NOTHING if told is None else told()


def last_outcome(request: web.Request) -> Outcome:
    """Return what has become of a request that has ended, and let go of who was asked for it:
    what it has made may be large, and leads back to the request."""
    outcome = outcome_of(request)
    request.pop(_OUTCOME, None)
    return outcome


def log_fields(context: RequestContext, outcome: Outcome) -> dict[str, Any]:
    """Return what the log line of a request says of it, without what is not known."""
    known = {
        "owner": context.owner,
        "key": context.key,
        "job": outcome.job_id,
        "model": outcome.model,
        "stream": outcome.stream,
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.completion_tokens,
        "ttft_s": None if outcome.ttft_s is None else round(outcome.ttft_s, 4),
        "finish_reason": outcome.finish_reason,
        "error": outcome.error,
    }
    return {name: value for name, value in known.items() if value is not None}
