"""Messages between a router and a worker: the hot path. See PROTOCOL.md, "Streams".

Router to worker: Generate, Credit, Cancel. Worker to router: Accepted, Refused, Outputs,
Pulse. A stream is named by ``stream_id``, unique for one router and one worker; two routers
may use the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmx.protocol.codec import message
from lmx.protocol.errors import ErrorCode
from lmx.protocol.states import FinishReason


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. None means: the model's default (config, then its own files)."""

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None


@message
@dataclass(frozen=True, slots=True)
class Generate:
    """Answer a conversation. ``messages`` are OpenAI's, checked by the router, text only.

    ``max_tokens`` None means up to the model's default, else the rest of the context.
    ``credit_deltas`` is how many deltas may be sent before the first Credit.
    """

    stream_id: int
    request_id: str
    messages: tuple[dict[str, Any], ...]
    sampling: Sampling
    credit_deltas: int
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    template_kwargs: dict[str, Any] | None = None


@message
@dataclass(frozen=True, slots=True)
class Credit:
    """The reader has taken ``deltas`` more deltas: as many more may be sent."""

    stream_id: int
    deltas: int


@message
@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop at once, wherever the stream is: queued, in prefill, decoding. No reply."""

    stream_id: int


@message
@dataclass(frozen=True, slots=True)
class Accepted:
    """The prompt fits and waits for (or has) a row. Exactly one Accepted or Refused comes."""

    stream_id: int
    prompt_tokens: int
    queued: int


@message
@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was produced and nothing will be. Safe to send elsewhere or again."""

    stream_id: int
    code: ErrorCode
    message: str
    param: str | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that is final: it will not change, holds whole characters and no stop string."""

    stream_id: int
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts for one stream; real ones, from the engine."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time went, in seconds, measured in the worker.

    ``queue_s``: from arrival to the start of prefill. ``prefill_s``: to the first token.
    ``decode_s``: from the first token to the last.
    """

    queue_s: float
    prefill_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The stream ended well; its deltas came before, or earlier in the same message."""

    stream_id: int
    reason: FinishReason
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream ended badly after it was accepted."""

    stream_id: int
    code: ErrorCode
    message: str


@message
@dataclass(frozen=True, slots=True)
class Outputs:
    """All that one engine step produced for one router: one message, however many rows."""

    deltas: tuple[Delta, ...] = ()
    finished: tuple[Finished, ...] = ()
    failed: tuple[Failed, ...] = ()


@message
@dataclass(frozen=True, slots=True)
class Pulse:
    """The worker's I/O loop lives; sent each beat to every router with an open stream.

    It finds routers that have gone (the send fails) also while no token is due, and tells
    a router whose supervisor is down that the worker is still there. It says nothing of the
    engine's progress: that is the supervisor's to judge.
    """

    instance: str
    streams: int
