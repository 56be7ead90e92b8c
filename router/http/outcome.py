"""The values that a request carries: who sent it, known at its beginning, and its outcome, known at
its end."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import structlog
from aiohttp import web

from lmx.protocol.errors import ErrorCode
from lmx.protocol.messages.keys import ApiKey

CLIENT_LEFT: Final = ErrorCode.CLIENT_DISCONNECTED.value
"""The error of a request whose client was gone before the end."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What a peer says of a request that it forwards."""

    machine: str
    """The peer's name for itself."""
    client: str = ""
    """What tells its clients apart."""
    apart: bool = False
    """Whether the client shares no computed prefix with the peer's others."""
    priority: int | None = None
    """The lowest priority value that the client's key allows."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who sent a request, and when. The middleware makes it, and nobody changes it."""

    request_id: str
    started_at_s: float
    """When the request began, on the monotonic clock."""
    owner: str | None = None
    """What identifies the key that the request came with (:class:`ApiKey`)."""
    requester: str = ""
    """Who takes turns with others and has rate limits: the owner, or else the client's address."""
    key: str | None = None
    """The name of the key."""
    priority: int | None = None
    """The lowest priority value that the key allows; None: it allows all."""
    apart: bool = False
    """Whether the owner shares no computed prefix and no features of media with others."""
    grant: ApiKey | None = None
    """The key itself; None where requests need none."""
    background: bool = False
    """Whether nobody waits for the answer: it is a line of a batch. It has no time limit, comes
    after everybody else's requests, leaves no job record, and is in no figure of waiting times."""
    show_reread: bool = False
    """Whether the operator sees the text at which its prompt differs from an earlier one."""
    forwarded: Forwarded | None = None
    """Where it comes from, if another lmx forwards it: its answer begins with its first token, and
    its figures go along. Only a key with the scope ``peer`` is believed."""

    @property
    def shown_key(self) -> str | None:
        """What operators call the key: its name, or else its owner; None without a key."""
        return self.key or self.owner


CONTEXT: Final = web.RequestKey("context", RequestContext)
"""The key under which a request carries its context."""


MACHINE: Final = web.RequestKey("machine", str)
"""The key under which a request carries the name of the machine that answers it, where there are
several."""

IGNORED: Final[web.RequestKey[Sequence[str]]] = web.RequestKey("ignored")
"""The key under which a request carries the names of what it had and what changes nothing, in the
form that a header may have."""

_MOST_IGNORED: Final = 20
"""More names than this help nobody."""

_LONGEST_IGNORED: Final = 64
_NO_HEADER_TEXT: Final = re.compile(r"[^A-Za-z0-9_.\[\]-]")

_log = structlog.get_logger()


def note_ignored(request: web.Request, names: Iterable[str]) -> None:
    """Note what a request has and lmx does not know or can't do: it changes nothing. The answer's
    headers and the debug log name it."""
    shown = [_NO_HEADER_TEXT.sub("?", name[:_LONGEST_IGNORED]) for name in names]
    before = request.get(IGNORED, ())
    if not set(shown).issubset(before):
        request[IGNORED] = list(dict.fromkeys((*before, *shown)))[:_MOST_IGNORED]
        _log.debug("request.fields_ignored", fields=request[IGNORED])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a request. The log line, the metrics and the rate limits are made from it.
    None means that the request has no such value, or does not have it yet."""

    model: str | None = None
    """The model that answered, or the one that the client named."""
    stream: bool | None = None
    """Whether the answer streams; None where that cannot be requested."""
    job_id: str | None = None
    """The id of the request's job record, as long as it has one."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """How many of the prompt's tokens the worker did not have to compute."""
    reread: str | None = None
    """Why much of the prompt was computed that had been computed for an earlier one."""
    completion_tokens: int | None = None
    audio_s: float | None = None
    """The length of the sound that was transcribed or made."""
    load_s: float | None = None
    """How long the request waited for its model."""
    queue_s: float | None = None
    """How long the request waited in the worker. The worker measures this and the next two
    figures."""
    prefill_s: float | None = None
    decode_s: float | None = None
    tokens_per_s: float | None = None
    """How fast each of the answers came after its first token; None where a peer has computed
    them."""
    ttft_s: float | None = None
    """The time from the beginning of the request to its first output."""
    gaps_s: Sequence[float] = ()
    """The times between one output and the next."""
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
    """Set where a request's outcome can be read from now on; this replaces the earlier source.

    It is read when the request has ended. A handler's return value would be lost with an error that
    it raises, and with a client that leaves, which cancels the handler.
    """
    request[_OUTCOME] = outcome


def set_outcome(request: web.Request, outcome: Outcome) -> None:
    """Set a request's outcome; this replaces the earlier one."""
    follow_outcome(request, lambda: outcome)


def outcome_of(request: web.Request) -> Outcome:
    """Return what has become of a request so far."""
    source = request.get(_OUTCOME)
    return _NOTHING if source is None else source()


def last_outcome(request: web.Request) -> Outcome:
    """Return the outcome of a request that has ended, and drop the reference to its source: what
    the source has collected may be large, and it refers back to the request."""
    outcome = outcome_of(request)
    request.pop(_OUTCOME, None)
    return outcome


FIGURES: Final = (
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "audio_s",
    "load_s",
    "queue_s",
    "prefill_s",
    "decode_s",
)
"""The fields of :class:`Outcome` that are sent to the lmx that has forwarded a request, and that it
counts. ``finish_reason`` and ``error`` go along."""

RECORD: Final = b"\x1e"
"""It begins those figures behind the end of a stream. JSON has no such byte."""

OUTCOME_HEADER: Final = "X-Lmx-Outcome"
"""It has them where the answer is no stream."""


def outcome_record(request: web.Request) -> bytes:
    """Return the figures of a request for the lmx that has forwarded it."""
    outcome = outcome_of(request)
    return orjson.dumps({name: getattr(outcome, name) for name in (*FIGURES, *_WORDS)})


_WORDS: Final = ("finish_reason", "error")


def log_fields(context: RequestContext, outcome: Outcome) -> dict[str, Any]:
    """Return the fields of a request's log line, without those that are not known."""
    known = {
        "owner": context.owner,
        "key": context.key,
        "job": outcome.job_id,
        "model": outcome.model,
        "stream": outcome.stream,
        "prompt_tokens": outcome.prompt_tokens,
        "reread": outcome.reread,
        "completion_tokens": outcome.completion_tokens,
        "ttft_s": None if outcome.ttft_s is None else round(outcome.ttft_s, 4),
        "finish_reason": outcome.finish_reason,
        "error": outcome.error,
    }
    return {name: value for name, value in known.items() if value is not None}
