"""Which models answer a route's requests, how the answer comes from a peer, and what the requests
are listed as. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from lmx.protocol.states import ModelKind
from lmx.router.http.api_family import OLLAMA
from lmx.router.http.endpoint import Endpoint
from lmx.router.jobs.live import RequestKind

AUDIO: Final = "Audio"
"""The tag of the routes whose models hear or speak."""

JSON: Final = "application/json"

_KINDS: Final = {
    ModelKind.EMBEDDING: RequestKind.EMBEDDING,
    ModelKind.RERANK: RequestKind.RERANK,
    ModelKind.TRANSCRIPTION: RequestKind.TRANSCRIPTION,
    ModelKind.SPEECH: RequestKind.SPEECH,
}
"""By the models that answer; others are completions, by their endpoint's tag, or chat."""


class AnswerForm(StrEnum):
    """How an answer comes."""

    WHOLE = "whole"
    EVENTS = "events"
    FILE = "file"
    """As a file that is made meanwhile: nothing but its bytes may be sent."""


def answer_form(endpoint: Endpoint, body: Mapping[str, Any]) -> AnswerForm:
    """Return how the answer to a body comes. Of a form, ``body`` has the texts."""
    if endpoint.answer is None:
        return AnswerForm.EVENTS if body.get("stream_format") == "sse" else AnswerForm.FILE
    wanted = body.get("stream", endpoint.family is OLLAMA)
    if endpoint.form is not None:
        wanted = str(wanted).lower() in ("true", "1")
    return AnswerForm.EVENTS if endpoint.streams and wanted else AnswerForm.WHOLE


def media_types(endpoint: Endpoint, form: AnswerForm) -> tuple[str, ...]:
    """Return the types that an answer may have, where it may be something else than JSON or
    events."""
    if form is AnswerForm.EVENTS or not endpoint.also:
        return ()
    return endpoint.also if form is AnswerForm.FILE else (JSON, *endpoint.also)


def request_kind(endpoint: Endpoint) -> RequestKind:
    """Return what requests are listed as."""
    rest = RequestKind.COMPLETION if endpoint.tag == "Completions" else RequestKind.CHAT
    return rest if endpoint.models is None else _KINDS.get(endpoint.models, rest)


def fills_gap(endpoint: Endpoint, body: Mapping[str, Any]) -> bool:
    """Return whether a request asks for what fills a gap in a text."""
    return endpoint.path == "/infill" or bool(body.get("suffix"))
