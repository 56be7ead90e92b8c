"""Builds chat completion objects and stream chunks. Pure: no clock, no socket."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from lmx.protocol.data import Delta, Finished, Usage
from lmx.protocol.errors import LmxError
from lmx.protocol.states import FinishReason
from lmx.router.errors import error_body


@dataclass(frozen=True, slots=True)
class Identity:
    """What all chunks of one completion share. ``created_s`` is Unix time."""

    completion_id: str
    created_s: int
    model_id: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Clocked:
    """What the router measured, in seconds from the request's arrival; ``load_s`` is how long
    the model was waited for."""

    total_s: float
    first_token_s: float
    load_s: float


def fingerprint(version: str, model_id: str, source: str) -> str:
    """Return the ``system_fingerprint``: changes with lmx's version and the model's source."""
    digest = hashlib.sha256("\0".join((version, model_id, source)).encode())
    return f"fp_{digest.hexdigest()[:10]}"


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's usage, with Moonshot's ``cached_tokens``."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def timings_object(finished: Finished, clocked: Clocked) -> dict[str, float]:
    """Return where the time went, in seconds. ``tokens_per_s`` counts the tokens after the
    first, over the time they took; 0 when there was none."""
    timings = finished.timings
    later_tokens = finished.usage.completion_tokens - 1
    rate = later_tokens / timings.decode_s if later_tokens > 0 and timings.decode_s > 0 else 0.0
    return {
        "total_s": round(clocked.total_s, 4),
        "queue_s": round(timings.queue_s, 4),
        "load_s": round(clocked.load_s, 4),
        "prefill_s": round(timings.prefill_s, 4),
        "first_token_s": round(clocked.first_token_s, 4),
        "decode_s": round(timings.decode_s, 4),
        "tokens_per_s": round(rate, 2),
    }


def completion_object(
    identity: Identity, text: str, finished: Finished, clocked: Clocked
) -> dict[str, Any]:
    """Return the whole answer of a request that does not stream."""
    return {
        "id": identity.completion_id,
        "object": "chat.completion",
        "created": identity.created_s,
        "model": identity.model_id,
        "system_fingerprint": identity.fingerprint,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": finished.reason.value,
            }
        ],
        "usage": usage_object(finished.usage),
        "timings": timings_object(finished, clocked),
    }


class ChunkWriter:
    """Writes the chunks of one stream as SSE events.

    What is the same in every chunk is encoded once; a delta costs one ``orjson.dumps`` of its
    text. With ``include_usage`` every chunk but the last carries ``"usage": null``.
    """

    def __init__(self, identity: Identity, *, include_usage: bool) -> None:
        head = orjson.dumps(
            {
                "id": identity.completion_id,
                "object": "chat.completion.chunk",
                "created": identity.created_s,
                "model": identity.model_id,
                "system_fingerprint": identity.fingerprint,
            }
        )
        self._include_usage = include_usage
        self._head = b"data: " + head[:-1]
        usage = b',"usage":null' if include_usage else b""
        self._choice = self._head + b',"choices":[{"index":0,"delta":'
        self._after_delta = b',"logprobs":null,"finish_reason":'
        self._close = b"}]" + usage
        self._text_before = self._choice + b'{"content":'
        self._text_after = b"}" + self._after_delta + b"null" + self._close + b"}\n\n"

    def first(self) -> bytes:
        """Return the chunk that carries the role."""
        role = b'{"role":"assistant","content":""}'
        return self._choice + role + self._after_delta + b"null" + self._close + b"}\n\n"

    def deltas(self, deltas: Iterable[Delta]) -> bytes:
        """Return one chunk for each delta that has text, as one piece."""
        before, after = self._text_before, self._text_after
        return b"".join(
            [before + orjson.dumps(delta.text) + after for delta in deltas if delta.text]
        )

    def last(self, finished: Finished, clocked: Clocked) -> bytes:
        """Return the chunk with the finish reason, and the usage chunk where one is asked for.

        The timings are in whichever comes last.
        """
        timings = b',"timings":' + orjson.dumps(timings_object(finished, clocked))
        end = self._finish(finished.reason)
        if not self._include_usage:
            return end + timings + b"}\n\n"
        usage = orjson.dumps(usage_object(finished.usage))
        return end + b"}\n\n" + self._head + b',"choices":[],"usage":' + usage + timings + b"}\n\n"

    def _finish(self, reason: FinishReason) -> bytes:
        return self._choice + b"{}" + self._after_delta + orjson.dumps(reason.value) + self._close


def error_event(error: LmxError) -> bytes:
    """Return the event that ends a stream which was lost after it began."""
    return b"data: " + orjson.dumps(error_body(error)) + b"\n\n"
